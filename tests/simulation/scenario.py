"""A scenario is everything that a seed decides about a world: servers, tasks, rows and faults. It is plain data."""

from dataclasses import dataclass

from tests.simulation.functions import Behaviour
from udf_server.limits.settings import GuardSettings
from udf_server.streams.services import AdmissionLimits, StreamLimits

__all__ = [
    "EXECUTORS",
    "LEDGER_FAULTS",
    "PROBE",
    "SERVER_FAULTS",
    "Fault",
    "HedgePlan",
    "JobPlan",
    "Limits",
    "Scenario",
    "TaskPlan",
]

SERVER_FAULTS = ("crash", "freeze", "drain", "slow-server", "out-of-memory", "deployment")
LEDGER_FAULTS = ("ledger-away", "ledger-late", "ledger-lost", "ledger-older")
"""What happens to the Redis with the guards that servers share."""
EXECUTORS = 2
"""Of an application."""


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong: what, when, where, and for how long."""

    kind: str
    at: float
    server: int
    client: int
    seconds: float


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    admission: AdmissionLimits
    streams: StreamLimits
    calls: int
    """Rows in flight of a function, over all streams."""


@dataclass(frozen=True)
class HedgePlan:
    """The options `hedge-after` and `hedge-share` of the function `slow`."""

    after: float
    share: float

    @property
    def options(self) -> dict[str, str]:
        return {"hedge-after": f"{self.after:g} s", "hedge-share": f"{self.share:g}"}


@dataclass(frozen=True)
class TaskPlan:
    """One task of a Spark job: its calls, its rows and how they arrive."""

    functions: tuple[str, ...]
    ordered: bool
    rows: tuple[Behaviour, ...]
    batch_rows: int
    begins: float
    pause: float
    """Seconds that Spark takes for each batch."""
    timeout: float
    attempts: int
    capacity: int
    connect_seconds: float
    stream_seconds: float
    max_replays: int
    message_rows: int = 65_536
    """The option `batch-rows`."""
    held_bytes: int = 64 << 20
    """What the client may hold before it reads more input."""


@dataclass(frozen=True)
class JobPlan:
    """A job of a Spark application, or a streaming query. `calls` has its rows, and the options of its calls."""

    kind: str
    calls: TaskPlan
    partitions: int
    reducers: int
    keys: int
    bundle_rows: int
    speculates_after: float
    """A task that takes longer gets a second attempt."""
    micro_batches: int
    keeps_errors: bool
    """Whether a key that fails has an error, so that its job goes on."""


@dataclass(frozen=True)
class Scenario:
    seed: int
    mode: str
    servers: int
    tasks: tuple[TaskPlan, ...]
    faults: tuple[Fault, ...]
    quiet: float
    """When the last fault is over."""
    lasting: tuple[str, ...] = ()
    """In mode `liveness`: what is wrong from then on with each server but the first one."""
    jobs: tuple[JobPlan, ...] = ()
    """The jobs of an application, instead of tasks. They run at the same time, in the same executors."""
    losses: tuple[int, ...] = ()
    """An executor of the application is lost soon after it begins these attempts."""
    crashes: tuple[int, ...] = ()
    """The driver crashes soon after this many attempts have ended."""
    limits: "Limits | None" = None
    """In mode `safety`: limits of each server that are so small that it refuses streams and rows wait."""
    guard: GuardSettings | None = None
    """The guard of the function `slow` on each server."""
    shared: bool = False
    """Whether the servers share that guard."""
    hedge: HedgePlan | None = None
    """The hedges of the function `slow`."""
    budget: float | None = None
    """The tokens that all tasks together may spend."""
    callers: int = 0
    """If it is not 0, the tasks belong to this number of callers in turn; otherwise each is a caller."""


PROBE = TaskPlan(
    functions=("slow",), ordered=True, rows=(Behaviour(seconds=0.01),) * 15, batch_rows=5, begins=0.0, pause=0.5,
    timeout=10.0, attempts=1, capacity=5, connect_seconds=10.0, stream_seconds=300.0, max_replays=50,
)  # fmt: skip
"""A task that must succeed once a server and the way to it are healthy."""
