"""Hedger sends the rows of a message that waits long to another server too, and takes the first complete answer."""

import collections
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from remote_udf.errors import ErrorCode, ProtocolViolation, RemoteUdfError, StreamError
from remote_udf.hedging import HedgeBudget
from remote_udf.threads import Threads
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.statistics import Statistics
from spark_client.base.transport import TransportLost
from spark_client.executor.stream.chunks import Answer, Chunk
from spark_client.executor.stream.connection import Connection
from spark_client.executor.stream.pending import Pending
from spark_client.executor.stream.results import add_counts, read_result

__all__ = ["HedgeBudgets", "Hedger", "SecondConnection", "Won", "process_hedge_budgets"]

log = logging.getLogger(__name__)

MOST_FUNCTIONS = 1_000
OPEN_SECONDS = 10.0
"""How long another server may take to accept the rows."""
REFUSED_SECONDS = 1.0
"""A message for which the budget had no hedge, or no delay yet, is looked at again after this time."""


class HedgeBudgets:
    """What streams of one process may send twice, by function; of too many, those used last are kept. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._budgets: collections.OrderedDict[tuple[Any, ...], HedgeBudget] = collections.OrderedDict()

    def of(self, target: str, function: str, agreed: pb.SecondSending) -> HedgeBudget:
        """The budget of a function of this target, as agreed with the server."""
        after = agreed.after.ToNanoseconds() / 1e9 if agreed.HasField("after") else None
        key = target, function, after, agreed.share
        with self._lock:
            budget = self._budgets.setdefault(key, HedgeBudget(after, agreed.share, self._clock))
            self._budgets.move_to_end(key)
            while len(self._budgets) > MOST_FUNCTIONS:
                self._budgets.popitem(last=False)
        return budget


_PROCESS = HedgeBudgets()


def process_hedge_budgets() -> HedgeBudgets:
    """Those of this process."""
    return _PROCESS


class SecondConnection(Protocol):
    """Requests a stream for rows that another server has too. Raises TransportLost."""

    def __call__(self, *, avoid: set[str], second: bool) -> Connection: ...


@dataclass(frozen=True, slots=True)
class Won:
    """The answers of another server that came first."""

    connection: Connection
    chunk: Chunk
    """The rows as they were sent to the first server."""
    answers: list[Answer]
    """The outcomes of the rows that were unanswered; `rows` are positions in the chunk."""
    counts: pb.StreamCounts
    """What the other server has counted."""
    statistics: Statistics
    """The same for the statistics of the job, with what was spent and the bytes of the messages."""


class Hedger:
    """The hedges of one stream, one at a time. A thread of its own sends them and waits for their answers.

    Each method is called with the lock of the stream held, except `stop`.
    """

    def __init__(
        self, budget: HedgeBudget, new: SecondConnection, lock: Any, pending: Callable[[], Pending],
        current: Callable[[], Connection], sent: Callable[[], object], clock: Callable[[], float], threads: Threads,
    ) -> None:  # fmt: skip
        """`pending` and `current` are those of the stream. `sent` counts a hedge."""
        self._budget, self._new, self._lock, self._pending = budget, new, lock, pending
        self._current, self._sent, self._clock = current, sent, clock
        self._changed = threads.event()
        self._stopped = False
        self._chunk: Chunk | None = None
        """The rows of the hedge that runs."""
        self._second: Connection | None = None
        self._won: Won | None = None
        threads.start("remote-udf-hedger", self._run)

    def submitted(self, *, first: bool) -> None:
        """A chunk was sent; `first` if for the first time, because only those add to what may be sent twice."""
        if first:
            self._budget.begun()
        self._changed.set()

    def followed(self, messages: int) -> None:
        """This many messages were sent twice, because another message of their stream has won."""
        self._budget.charge(messages)

    def answered(self, chunk: Chunk) -> None:
        """All rows of a chunk have outcomes: a hedge of it has lost."""
        self._budget.ended(self._clock() - chunk.sent_last)
        if self._chunk is chunk:
            self.forget()

    def overloaded(self) -> None:
        """The server has called again after errors, or failed rows that may succeed later."""
        self._budget.overloaded()

    def take_won(self) -> Won | None:
        """Remove and return the answers of a hedge that has won."""
        won, self._won, self._second = self._won, None, None if self._won else self._second
        return won

    def forget(self) -> None:
        """Cancel the hedge that runs, because its rows have outcomes or are sent again."""
        won, second = self._won, self._second
        self._chunk = self._won = self._second = None
        if second is not None:
            second.close(cancel=True)
        if won is not None:
            won.connection.close(cancel=True)

    def stop(self) -> None:
        """End the thread. Safe to call twice, from any thread."""
        self._stopped = True
        self._changed.set()
        won, second = self._won, self._second
        if second is not None:
            second.close(cancel=True)
        if won is not None:
            won.connection.close(cancel=True)

    def _run(self) -> None:
        while not self._stopped:
            with self._lock:
                chunk, seconds = self._due()
            if chunk is None:
                self._changed.wait(seconds)
                self._changed.clear()
            else:
                self._hedge(chunk)

    def _due(self) -> tuple[Chunk | None, float | None]:
        """The message to be sent again now; otherwise in how many seconds to look again, None for the next message."""
        after = self._budget.after
        if self._won is not None:
            return None, None
        if after is None:
            # Other streams of the process may learn the delay, even after the last message of this one was sent.
            waits = next(self._pending().waiting(), None) is not None
            return None, REFUSED_SECONDS if waits else None
        for chunk in self._pending().waiting():
            wait = chunk.sent_last + after - self._clock()
            if wait > 0:
                return None, wait
            if not self._budget.take():
                return None, REFUSED_SECONDS
            chunk.hedged = True
            self._chunk = chunk
            return chunk, None
        return None, None

    def _hedge(self, chunk: Chunk) -> None:
        won = None
        try:
            won = self._race(chunk)
        except (TransportLost, RemoteUdfError) as error:
            if isinstance(error, StreamError) and error.code is ErrorCode.OVERLOADED:
                self._budget.overloaded(error.retry_after)
        except Exception:
            # The first server still has the rows, and other messages may need a hedge.
            log.exception("rows of a slow message could not be sent to another server")
        finally:
            with self._lock:
                self._end(chunk, won)

    def _end(self, chunk: Chunk, won: Won | None) -> None:
        if won is None or self._stopped or self._chunk is not chunk:
            if self._second is not None:
                self._second.close(cancel=True)
                self._second = None
        else:
            # The thread that reads from the first server finds the answers when that connection is lost.
            self._won = won
            self._current().close(cancel=True)
        self._chunk = None

    def _race(self, chunk: Chunk) -> Won | None:
        """Send the rows to another server. Returns None if there is none, the rows have outcomes, or one fails."""
        first = self._current()
        second = self._new(avoid={first.server}, second=True)
        with self._lock:
            wanted = self._chunk is chunk and not self._stopped and second.server != first.server
            self._second = second if wanted else None
        if not wanted:
            second.close(cancel=True)
            return None
        second.open(OPEN_SECONDS)
        with self._lock:
            # `stop` takes no lock, so it may have missed the second connection.
            if self._chunk is not chunk or self._stopped or second.ordered != first.ordered:
                return None
            copy = chunk.unanswered_rows()
        payload = second.payload(copy)
        size = sum(map(len, payload or ()))
        if len(copy.rows) > second.message_rows or size > second.payload_bytes:
            return None
        self._sent()
        second.send(copy, payload, 0.0)
        answers, counts, statistics, pending = [], pb.StreamCounts(), Statistics(bytes_out=size), Pending()
        pending.add(copy)
        while pending.rows:
            envelope, data = second.read()
            kind = envelope.WhichOneof("response")
            if kind == "result":
                found, errors = read_result(envelope.result, data, second, pending)
                if errors:
                    return None
                add_counts(counts, statistics, envelope.result, errors, len(data or ()))
                answers += found
            elif kind != "progress":
                raise ProtocolViolation(f"the server sent {kind} in the middle of the stream")
        return Won(second, chunk, answers, counts, statistics)
