"""LiveRows asks the servers how many rows of this session they have answered, while the tasks still run."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from remote_udf.v1 import service_pb2
from spark_client.base.config import ClientConfig
from spark_client.base.errors import AccessDenied
from spark_client.base.transport import TransportLost
from spark_client.executor.stream.transport import GrpcTransport, transport_for

__all__ = ["Answered", "AsksForProgress", "LiveRows"]

ASK_SECONDS = 2.0
MOST_IDLE = 16
"""Number of servers without rows of the session that are asked at once. If there are more, they are asked in turn."""
ID_CHARACTERS = 64


@dataclass(frozen=True)
class Answered:
    """Rows that servers have answered, in all."""

    rows: int = 0
    failed: int = 0
    retries: int = 0


class AsksForProgress(Protocol):
    """A transport that can ask servers how many rows they have answered, as GrpcTransport can."""

    def servers(self) -> Sequence[str]:
        """The addresses of the servers. Raises TransportLost."""
        ...

    def progress(
        self, session: str, seconds: float, servers: Container[str]
    ) -> Mapping[str, service_pb2.GetProgressResponse]:
        """What each of the servers that answers within `seconds` has answered for the session, by address.

        Raises TransportLost, or AccessDenied if a credential cannot be read.
        """
        ...


class LiveRows:
    """The rows since the first question. One thread at a time may ask."""

    def __init__(self, transport: AsksForProgress | None, session: str) -> None:
        """Without a transport or the id of a session, nothing is ever answered."""
        self._transport = transport
        self._session = session
        self._answers: dict[str, service_pb2.GetProgressResponse] = {}
        """The last answer of each server, also of those that have ended."""
        self._in_use: set[str] = set()
        """The addresses of servers whose last answer shows that they have streams of the session."""
        self._turn = 0
        self.partial = False
        """Whether a server has several processes, each of which knows its own rows only."""
        self._first = self._last = Answered()

    @classmethod
    def of(cls, config: ClientConfig) -> "LiveRows":
        """Those of the servers of a remote session; none if its server is in this process."""
        transport = transport_for(config)
        return cls(transport if isinstance(transport, GrpcTransport) else None, config.session)

    def start(self) -> None:
        """Begin to count now. Every server is asked, because each may have answered rows before."""
        self._answers.clear()
        self._ask(everyone=True)
        self._first = self._last = self._sum()

    def since_start(self) -> Answered:
        """What was answered since `start`, as far as the servers say; it never becomes less."""
        self._ask()
        now = self._sum()
        if now.rows >= self._last.rows:  # an older server that was restarted has no id and counts from 0
            self._last = now
        first, last = self._first, self._last
        return Answered(last.rows - first.rows, last.failed - first.failed, last.retries - first.retries)

    def _ask(self, *, everyone: bool = False) -> None:
        if self._transport is None or not self._session:
            return
        try:
            listed = self._transport.servers()
            asked = listed if everyone else self._due(listed)
            answers = self._transport.progress(self._session, ASK_SECONDS, asked)
        except (TransportLost, AccessDenied):
            return  # tasks report their rows at their end, whatever servers say meanwhile
        self._in_use = {address for address, answer in answers.items() if self._take(address, answer)}

    def _due(self, listed: Sequence[str]) -> Sequence[str]:
        """The servers in use, and those of the others whose turn it is."""
        idle = [address for address in listed if address not in self._in_use]
        turn = self._turn % max(len(idle), 1)
        self._turn += MOST_IDLE
        return [*self._in_use, *(idle[turn:] + idle[:turn])[:MOST_IDLE]]

    def _take(self, address: str, answer: service_pb2.GetProgressResponse) -> bool:
        """Keep an answer. Returns whether the server is in use. That of a server with several processes is skipped."""
        if answer.partial:
            self.partial = True
            return False
        server = answer.server[:ID_CHARACTERS] or address
        before = self._answers.get(server) or service_pb2.GetProgressResponse()
        self._answers[server] = answer
        return answer.rows_unanswered > 0 or answer.counts != before.counts

    def _sum(self) -> Answered:
        counts = [answer.counts for answer in self._answers.values()]
        return Answered(
            sum(each.rows_ok + each.rows_failed + each.rows_skipped for each in counts),
            sum(each.rows_failed for each in counts),
            sum(each.retries for each in counts),
        )
