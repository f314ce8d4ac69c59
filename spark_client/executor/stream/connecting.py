"""Connector tries servers, with pauses, until one accepts the stream or the deadline passes."""

import collections
import functools
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from remote_udf.errors import ErrorCode, ErrorKind, RemoteUdfError, StreamError
from remote_udf.spans import Span
from spark_client.base.calls import ScalarCall
from spark_client.base.errors import BudgetNotKept, ServerUnavailable
from spark_client.base.transport import Place, TransportLost
from spark_client.executor.stream.connection import Connection
from spark_client.executor.stream.ports import Elsewhere, process_ports

__all__ = ["BACKOFF_SECONDS", "BudgetLedgers", "Connector", "backoff", "process_ledgers"]

BACKOFF_SECONDS = (0.05, 2.0)
"""First and longest pause between attempts to connect."""
SHARE_SECONDS = 1.0
"""Minimum time for a server to send its first message, unless a quarter of the time to the deadline is less."""
_ELSEWHERE = frozenset(
    {
        ErrorCode.UNKNOWN_FUNCTION,
        ErrorCode.UNKNOWN_VERSION,
        ErrorCode.FUNCTION_CHANGED,
        ErrorCode.UNSUPPORTED_PROTOCOL,
    }
)
"""Refusals after which another server may accept the stream, as during a rolling update."""
_OTHER_SERVER = _ELSEWHERE | {ErrorCode.UNAUTHENTICATED, ErrorCode.PERMISSION_DENIED}
"""Refusals at a port at which the server that was asked may not be reached."""
PORT_SECONDS = 0.5
"""Time for the process at a port to send its first message. Its end is noticed within another half second."""
SHARED = "shared"
"""What servers send that count a budget in a Redis."""
MOST_JOBS = 1_000
_ADVICE = "give all of them the same Redis, [coordination] url = 'redis://...'"


class NewConnection(Protocol):
    """Requests a stream at a place, or from a server not in `avoid`, if there is another one. Raises TransportLost."""

    def __call__(self, *, avoid: set[str] = ..., place: Place | None = ...) -> Connection: ...


class Connector:
    """Connects one stream to the servers of its target. One thread connects; any thread may close."""

    def __init__(
        self,
        call: ScalarCall,
        new: NewConnection,
        servers: Callable[[], Sequence[str]],
        clock: Callable[[], float],
        sleep: Callable[[float], object],
        span: Span,
        uniform: Callable[[float, float], float],
    ) -> None:
        """`servers` returns the current addresses. `sleep` must end when the stream is closed.

        `uniform` draws the jitter of pauses.
        """
        self._call = call
        self._new = new
        self._servers = servers
        self._clock = clock
        self._sleep = sleep
        self._span = span
        self._uniform = uniform
        self._closed = False
        self._opening: Connection | None = None
        """The connection that is being opened."""

    def close(self) -> None:
        """Give up the connection that is being opened and open no other. Safe to call twice."""
        self._closed = True
        if (opening := self._opening) is not None:
            opening.close(cancel=True)

    def connect(self, deadline: float, open_deadline: float, prefer: str | None = None) -> Connection:
        """Open a stream on one of the servers. A function's `open` hook may take until `open_deadline`.

        The server that is preferred is the first, if it is listed.

        Servers are tried in rounds, each once per round. The first message of a server must arrive within its share of
        the time until the deadline, so that a server that hangs does not use up the time of the others. If another
        server may accept what one refuses, the refusal is final only if all servers of a round refuse.

        Raises ServerUnavailable after the deadline or `close`, StreamError if the refusal is final or if the function's
        `open` still fails at the deadline, BudgetNotKept if the servers do not count the budget together.
        """
        function, target = self._call.spec.key, self._call.config.target
        attempts = 0
        tried: set[str] = set()
        refused: dict[str, StreamError] = {}
        while not self._closed:
            hint, servers = 0.0, frozenset[str]()
            connection: Connection | None = None
            try:
                servers = frozenset(self._servers())
                if tried >= servers:
                    tried, refused = set(), {}
                avoid = set(servers - {prefer}) if prefer in servers - tried else tried
                connection = self._begun(self._new(avoid=avoid))
                tried.add(connection.server)
                open_seconds = open_deadline - self._clock()
                first = open_seconds if len(servers) == 1 else self._share(deadline, len(servers - tried) + 1)
                connection = self._opened(connection, open_deadline, first)
                self._require_budget(connection, servers)
                return connection
            except TransportLost as lost:
                if connection is not None:
                    connection.distrust()
                problem: Exception = lost
                why = f"no server at {target}: {lost}"
            except StreamError as error:
                assert connection is not None
                if error.code in _ELSEWHERE:
                    refused[connection.server] = error
                    if refused.keys() >= servers:
                        raise
                elif error.retryable:
                    connection.distrust(error.retry_after or 0.0, leave=error.code is ErrorCode.SHUTTING_DOWN)
                else:
                    raise
                problem, hint = error, error.retry_after or 0.0
                why = f"the server at {target} does not take the stream: {error}"
            finally:
                self._opening = None
            # Only the server that asks for a delay needs one.
            pause = max(backoff(attempts, self._uniform), hint if tried >= servers else 0.0)
            attempts += 1
            self._span.event("connect failed", attempt=attempts, error=type(problem).__name__, pause=pause)
            if self._clock() + pause > deadline:
                if refused:  # a refusal is more informative than a server that cannot be reached
                    raise next(iter(refused.values()))
                if isinstance(problem, StreamError) and problem.kind is ErrorKind.USER:
                    raise problem  # the server is available; the function's `open` fails
                raise ServerUnavailable(f"function {function}: {why}") from None
            self._sleep(pause)
        raise ServerUnavailable(f"function {function}: the stream was closed")

    def _begun(self, connection: Connection) -> Connection:
        """The connection, which is closed if this is."""
        self._opening = connection
        if self._closed:  # `close` was called before `_opening` was set
            connection.close(cancel=True)
        return connection

    def _opened(self, connection: Connection, deadline: float, first: float) -> Connection:
        """Open the stream until the deadline. If the server sends it elsewhere, returns the one that is open there.

        If it cannot be opened there, the server is asked to pass it on. Raises as `Connection.open`.
        """
        server, patience = connection.server, min(PORT_SECONDS, first / 2)
        certain = patience == PORT_SECONDS
        try:
            connection.open(deadline - self._clock(), first)
            return connection
        except Elsewhere as elsewhere:
            place, why = elsewhere.place(server), f"{elsewhere} is no port of the same host for certain"
        if place is not None:
            try:
                moved = self._begun(self._new(place=place))
                moved.open(deadline - self._clock(), patience)
                return moved
            except StreamError as error:
                if error.code is not ErrorCode.SHUTTING_DOWN and error.code not in _OTHER_SERVER:
                    raise
                certain = error.code is not ErrorCode.SHUTTING_DOWN
                why = f"the process at {place.address} refuses it: {error}"
            except (TransportLost, RemoteUdfError) as error:
                why = f"{place.address} cannot be reached: {error}"
        passed_on = self._begun(self._new(place=Place(server)))
        passed_on.open(deadline - self._clock(), first)
        # A group that is away cannot be reached by its server either. One that is reloaded is there soon.
        if certain:
            process_ports().failed(server, self._clock(), why)
        return passed_on

    def _require_budget(self, connection: Connection, servers: Collection[str]) -> None:
        budget = self._call.config.budget
        if budget is None:
            return
        problem = process_ledgers().problem(budget.job, connection.budget, len(servers), budget.ledger)
        if problem:
            connection.close(cancel=True)
            raise BudgetNotKept(f"function {self._call.spec.key}, servers at {self._call.config.target}: {problem}")

    def may_change(self) -> bool:
        """Whether several servers are listed, so that a delay that one asks for need not be waited for."""
        try:
            return len(self._servers()) > 1
        except TransportLost:
            return False

    def _share(self, deadline: float, servers: int) -> float:
        """Seconds within which a server must send its first message. `servers` counts those left in the round.

        One share is kept for the next round, when a server that is restarting may be available.
        """
        left = deadline - self._clock()
        return max(left / (servers + 1), min(SHARE_SECONDS, left / 4), 0.0)


def backoff(attempts: int, uniform: Callable[[float, float], float]) -> float:
    """Seconds to wait after this many attempts, with jitter, so that the tasks of a job do not retry together."""
    first, longest = BACKOFF_SECONDS
    return min(first * 2.0 ** min(attempts, 16), longest) * uniform(0.5, 1.0)


class BudgetLedgers:
    """Where the servers of this process's streams count the budget of each session. Safe to use from any thread."""

    def __init__(self) -> None:
        self._seen: collections.OrderedDict[str, str] = collections.OrderedDict()
        self._lock = threading.Lock()

    def problem(self, job: str, ledger: str, servers: int, first: str = "") -> str:
        """Why a server does not keep the budget of a job as one; empty if it does.

        `ledger` is what the server has sent, `servers` the number of those that are listed, and `first` what the driver
        was told: Spark repeats a task that has failed in a new process, which has met no server.
        """
        if not ledger:
            return "a server is too old to keep a budget; update it"
        if ledger == SHARED:
            return ""
        if servers > 1:
            return f"{servers} servers are listed, and each would keep a budget of its own; {_ADVICE}"
        with self._lock:
            seen = self._seen.setdefault(job, first or ledger)
            while len(self._seen) > MOST_JOBS:
                self._seen.popitem(last=False)
        if seen != ledger:
            return (
                "another server has counted the budget so far, or this one has restarted, so it does not know what was "
                f"spent; {_ADVICE}, or connect again for a new budget"
            )
        return ""


@functools.cache
def process_ledgers() -> BudgetLedgers:
    """Those of this process."""
    return BudgetLedgers()
