"""LiveRows asks the servers how many rows of this session they have answered, while the tasks still run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from remote_udf.v1 import service_pb2
from spark_client.base.config import ClientConfig
from spark_client.base.errors import AccessDenied
from spark_client.base.transport import TransportLost
from spark_client.executor.stream.transport import GrpcTransport, transport_for

__all__ = ["Answered", "AsksForProgress", "LiveRows"]

ASK_SECONDS = 2.0


@dataclass(frozen=True)
class Answered:
    """Rows that servers have answered, in all."""

    rows: int = 0
    failed: int = 0
    retries: int = 0


class AsksForProgress(Protocol):
    """A transport that can ask servers how many rows they have answered, as GrpcTransport can."""

    def progress(self, session: str, seconds: float) -> Sequence[service_pb2.GetProgressResponse]:
        """What each server that answers within `seconds` has answered for the session.

        Raises TransportLost, or AccessDenied if a credential cannot be read.
        """
        ...


class LiveRows:
    """The rows since the first question. One thread at a time may ask."""

    def __init__(self, transport: AsksForProgress | None, session: str) -> None:
        """Without a transport or the id of a session, nothing is ever answered."""
        self._transport = transport
        self._session = session
        self._first = self._last = Answered()

    @classmethod
    def of(cls, config: ClientConfig) -> "LiveRows":
        """Those of the servers of a remote session; none if its server is in this process."""
        transport = transport_for(config)
        return cls(transport if isinstance(transport, GrpcTransport) else None, config.session)

    def start(self) -> None:
        """Begin to count now."""
        self._first = self._last = self._ask() or Answered()

    def since_start(self) -> Answered:
        """What was answered since `start`, as far as the servers say; it never becomes less."""
        now = self._ask()
        if now is not None and now.rows >= self._last.rows:  # a server that has ended is missing
            self._last = now
        first, last = self._first, self._last
        return Answered(last.rows - first.rows, last.failed - first.failed, last.retries - first.retries)

    def _ask(self) -> Answered | None:
        """The sums of all servers; None if none may be asked, or one of them does not say all it knows."""
        if self._transport is None or not self._session:
            return None
        try:
            answers = self._transport.progress(self._session, ASK_SECONDS)
        except (TransportLost, AccessDenied):
            return None  # tasks report their rows at their end, whatever servers say meanwhile
        if not answers or any(answer.partial for answer in answers):
            return None
        counts = [answer.counts for answer in answers]
        return Answered(
            sum(each.rows_ok + each.rows_failed + each.rows_skipped for each in counts),
            sum(each.rows_failed for each in counts),
            sum(each.retries for each in counts),
        )
