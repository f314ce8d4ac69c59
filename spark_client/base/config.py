"""ClientConfig: how to reach a server. Plans send it to the executors, so it contains no secret."""

from collections.abc import Callable
from dataclasses import dataclass, field

from spark_client.base.budget import SessionBudget
from spark_client.base.security import Security
from spark_client.base.statistics import Reporter
from spark_client.base.transport import Transport

__all__ = ["ClientConfig"]


@dataclass(frozen=True)
class ClientConfig:
    """Where the servers are and how long to wait for one. Raises ValueError if a token would be sent unencrypted."""

    target: str
    """A gRPC target: "host:port", "unix:/path", "dns:///name:port"; or several, separated by commas."""
    connect_seconds: float = 10.0
    """How long to wait for the first answer, on the driver and in every task."""
    security: Security = field(default_factory=Security)
    """TLS and tokens."""
    max_stream_seconds: float = 300.0
    """After this time a stream reconnects to the next server, between two batches, so that new servers get work."""
    max_replays: int = 50
    """How often rows are sent again before they fail as SERVER_UNAVAILABLE. A poison row would crash every server."""
    shared_memory: bool = True
    """Whether to exchange rows with a server on the same host through shared memory, if both sides support it."""
    budget: SessionBudget | None = None
    """What the calls of the remote session may spend; None for any amount."""
    estimates: bool = False
    """Whether servers return what calls would cost in place of their values."""
    session: str = field(default="", compare=False, repr=False)
    """The random id under which servers count the rows of the remote session; empty if nobody asks for them."""
    reporter: Reporter | None = field(default=None, compare=False, repr=False)
    """Receives the statistics of each task's calls; see `RemoteSession.summary`."""
    micro_batch: tuple[str, int] | None = field(default=None, compare=False)
    """The id of the streaming query and the number of its micro-batch, where Spark's tasks do not know them."""
    in_process: Callable[[str], Transport] | None = field(default=None, compare=False, repr=False)
    """For a target "local:...": runs the functions of a module or file in this process. `connect` sets it."""

    def __post_init__(self) -> None:
        if self.max_stream_seconds <= 0 or self.max_replays < 0:
            raise ValueError("max_stream_seconds must be more than 0, and max_replays at least 0")
        self.security.check(self.target)
