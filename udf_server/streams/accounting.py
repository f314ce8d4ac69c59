"""RowAccounts tracks every row of a stream from its arrival to its answer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from remote_udf.spans import NO_SPAN, Span
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.metrics import FunctionMetrics
from udf_server.limits.stream_budget import StreamBudget
from udf_server.runners.outputs import Output
from udf_server.runners.runner import InputBatch
from udf_server.security.access import Caller
from udf_server.streams.services import Admission, StreamLimits

__all__ = ["RowAccounts"]


@dataclass
class _UnansweredBatch:
    """A batch with unanswered rows."""

    rows: int
    size: int
    arrived: float
    began: float = 0.0
    """Time of the first call of the function for one of its rows; 0.0 before that call."""
    ready: float = 0.0
    """Time at which the latest of its results was ready to be sent."""
    span: Span = NO_SPAN
    failed: int = 0


class RowAccounts:
    """What a stream has received and answered, and whether it may receive more."""

    def __init__(
        self, limits: StreamLimits, metrics: FunctionMetrics, clock: Callable[[], float], *, admission: Admission,
        function: str, span: Span, caller: Caller, count: Callable[[int], object], budgets: Sequence[StreamBudget],
    ) -> None:  # fmt: skip
        """`budgets` count rows that fail; `count` is called with the number of rows that were answered.

        `admission` has the limits that all streams share; it counts the rows of this stream under `function`
        and `caller`.

        `span` is the stream's span, the parent of the batches' spans.
        """
        self._span, self._budgets, self._caller, self._count = span, budgets, caller, count
        self._admission = admission
        self._function = function
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self.counts = pb.StreamCounts()
        """The counts so far. Only calls that led to answered rows are counted."""
        self._pending: dict[int, _UnansweredBatch] = {}
        self._unanswered_bytes = 0
        self._changed = asyncio.Event()
        self._waiting = asyncio.Event()
        """Set while there are unanswered rows."""
        self.unanswered_rows = 0
        self._queue_seconds = self._function_seconds = 0.0

    @property
    def rows_done(self) -> int:
        """Number of answered rows."""
        return self.counts.rows_in - self.unanswered_rows

    async def receive(self, batch: InputBatch, size: int) -> None:
        """Wait until there is room for a message of `size` bytes, then count it.

        A stream without unanswered messages always has room for one. Raises StreamError OVERLOADED if other streams
        fill the server.
        """
        arrived = self._clock()
        span = self._span.child("udf.batch", first_row=batch.first_row, rows=batch.rows, bytes=size)
        while self._pending and not self._has_room(batch.rows, size):
            await self._change()
        await self._admission.take(
            self._function, batch.rows, size, patient=lambda: bool(self._pending), caller=self._caller
        )
        self._pending[batch.first_row] = _UnansweredBatch(batch.rows, size, arrived, span=span)
        span.event("taken")
        self.unanswered_rows += batch.rows
        self._waiting.set()
        self._unanswered_bytes += size
        self.counts.rows_in += batch.rows
        self._metrics.batch_received(batch.rows, size, self._clock() - arrived, again=batch.waited > 0)

    def began(self, first_row: int) -> None:
        """Record that this thread or task calls the function for rows of the batch that begins at `first_row`.

        The first call sets the time at which the batch began.
        """
        pending = self._pending.get(first_row)
        if pending is None:
            return
        pending.span.make_current()
        if not pending.began:
            pending.began = self._clock()
            pending.span.event("called")

    def retried(self, first_row: int, row: int, attempts: int, error: BaseException) -> None:
        """Record that a row of the batch that begins at `first_row` is called again. Safe to call from any thread."""
        pending = self._pending.get(first_row)
        if pending is not None:
            pending.span.event("retry", row=row, attempts=attempts, error=type(error).__name__)

    def ready(self, output: Output) -> None:
        """Record the time at which a Result was ready to be sent."""
        self._pending[output.batch].ready = self._clock()

    def answer(self, output: Output) -> None:
        """Count the rows of a Result as answered. Call when it was sent."""
        counts, failed = self.counts, output.failed
        ok = output.rows - failed - output.skipped
        counts.rows_ok += ok
        counts.rows_failed += failed
        counts.rows_skipped += output.skipped
        counts.calls += output.calls
        counts.retries += output.retries
        self.unanswered_rows -= output.rows
        if not self.unanswered_rows:
            self._waiting.clear()
        self._give_back(output.rows, 0)
        pending = self._pending[output.batch]
        pending.rows -= output.rows
        pending.failed += failed
        if pending.rows == 0:
            del self._pending[output.batch]
            self._unanswered_bytes -= pending.size
            self._give_back(0, pending.size)
            self._metrics.batch_duration.observe(self._clock() - pending.arrived)
            # If no row was called, because all were skipped, the whole time was spent in the queue.
            began = pending.began or pending.ready
            self._queue_seconds += began - pending.arrived
            self._function_seconds += pending.ready - began
            pending.span.set(failed=pending.failed)
            pending.span.end()
        self._metrics.rows_answered(ok, failed, output.skipped, output.size)
        self._metrics.called(output.calls, output.retries)
        self._count(output.rows)
        for budget in self._budgets:
            budget.answered(output.rows, output.codes)
        if any(output.cached):
            self._metrics.cached(*output.cached)
        for code, count in output.codes.items():
            self._metrics.rows_failed(code, count, self._caller.name, output.texts[code])
        self._changed.set()

    def waits_since(self) -> float | None:
        """When the oldest message arrived for which the function was not called yet; None if there is none."""
        return next((pending.arrived for pending in self._pending.values() if not pending.began), None)

    async def some_unanswered(self) -> None:
        """Wait until a row is unanswered."""
        await self._waiting.wait()

    async def all_answered(self) -> None:
        """Wait until every row is answered."""
        while self._pending:
            await self._change()

    def reduce_to(self, rows: Mapping[int, int]) -> None:
        """Release what unanswered rows hold, except for the number of rows of each batch, by its first row.

        Call when the stream was lost and the calls of these rows go on.
        """
        kept = {first: self._pending[first] for first in rows}
        for first, pending in self._pending.items():
            if first not in kept:
                pending.span.end("not answered")
        unanswered, size = sum(rows.values()), sum(pending.size for pending in kept.values())
        self._give_back(self.unanswered_rows - unanswered, self._unanswered_bytes - size)
        self._pending, self.unanswered_rows, self._unanswered_bytes = kept, unanswered, size

    def drop(self) -> None:
        """Release what the unanswered rows hold. Call once, when the stream has ended."""
        self._give_back(self.unanswered_rows, self._unanswered_bytes)
        for pending in self._pending.values():
            pending.span.end("not answered")

    def times(self) -> pb.StreamTimes:
        """The time that the batches answered so far spent in the queue and in the function."""
        times = pb.StreamTimes()
        times.queue.FromNanoseconds(round(self._queue_seconds * 1e9))
        times.function.FromNanoseconds(round(self._function_seconds * 1e9))
        return times

    def balanced(self) -> pb.StreamCounts:
        """The counts of a stream whose rows are all answered. Raises RuntimeError if they do not add up."""
        counts = self.counts
        if counts.rows_in != counts.rows_ok + counts.rows_failed + counts.rows_skipped:
            raise RuntimeError(f"row accounting does not add up: {counts}")
        return counts

    def _has_room(self, rows: int, size: int) -> bool:
        limits = self._limits
        return (
            self.unanswered_rows + rows <= limits.unanswered_rows
            and self._unanswered_bytes + size <= limits.unanswered_bytes
        )

    def _give_back(self, rows: int, size: int) -> None:
        self._admission.give_back(self._function, rows, size, self._caller)

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
