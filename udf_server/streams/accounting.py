"""RowAccounts: every row of a stream, from its arrival to its answer."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from remote_udf.spans import NO_SPAN, Span
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.metrics import FunctionMetrics
from udf_server.runners.outputs import Output
from udf_server.runners.room import RESULT_BYTES
from udf_server.runners.runner import InputBatch
from udf_server.streams.admission import Admission

__all__ = ["RowAccounts", "StreamLimits"]


@dataclass(frozen=True)
class StreamLimits:
    """What one stream may hold on the server. Reading stops beyond it until results were sent."""

    message_bytes: int = 64 << 20
    unanswered_rows: int = 1_000_000
    unanswered_bytes: int = 128 << 20
    result_bytes: int = RESULT_BYTES
    """Of results that were not sent. Beyond it the function makes no more, until some were."""
    shared_memory: bool = True
    """Callers on this host may hand rows over in memory they share with the server."""


@dataclass
class _Pending:
    """A batch that is not answered in full."""

    rows: int
    size: int
    arrived: float
    began: float = 0.0
    """When the function was first called for one of its rows; 0.0 before."""
    ready: float = 0.0
    """When the latest of its results was ready to be sent."""
    span: Span = NO_SPAN
    failed: int = 0


class RowAccounts:
    """What a stream has received and answered, and whether it may receive more."""

    def __init__(
        self, limits: StreamLimits, metrics: FunctionMetrics, clock: Callable[[], float] = time.monotonic,
        *, admission: Admission | None = None, function: str = "", span: Span = NO_SPAN,
    ) -> None:  # fmt: skip
        """`admission` has the limits that all streams share; `function` is this one's, for its sake.

        Spans of batches are below `span`, the stream's.
        """
        self._span = span
        self._admission = admission or Admission()
        self._function = function
        self._limits = limits
        self._metrics = metrics
        self._clock = clock
        self._counts = pb.StreamCounts()
        self._pending: dict[int, _Pending] = {}
        self._unanswered_bytes = 0
        self._changed = asyncio.Event()
        self.unanswered_rows = 0
        self._queue_seconds = self._function_seconds = 0.0

    @property
    def rows_done(self) -> int:
        """Rows with an answer."""
        return self._counts.rows_in - self.unanswered_rows

    async def receive(self, batch: InputBatch, size: int) -> None:
        """Takes a message of `size` bytes into the books, once there is room for it; one always fits the stream.

        Raises StreamError OVERLOADED if other streams fill the server.
        """
        arrived = self._clock()
        span = self._span.child("udf.batch", first_row=batch.first_row, rows=batch.rows, bytes=size)
        while self._pending and not self._has_room(batch.rows, size):
            await self._change()
        await self._admission.take(self._function, batch.rows, size, patient=bool(self._pending))
        self._pending[batch.first_row] = _Pending(batch.rows, size, arrived, span=span)
        span.event("taken")
        self.unanswered_rows += batch.rows
        self._unanswered_bytes += size
        self._counts.rows_in += batch.rows
        self._metrics.batch_received(batch.rows, size, self._clock() - arrived, again=batch.waited > 0)

    def began(self, first_row: int) -> None:
        """This thread, or task, calls the function for rows of the batch that begins there; the first time counts."""
        pending = self._pending.get(first_row)
        if pending is None:
            return
        pending.span.make_current()
        if not pending.began:
            pending.began = self._clock()
            pending.span.event("called")

    def retried(self, first_row: int, row: int, attempts: int, error: BaseException) -> None:
        """A row of the batch that begins at `first_row` is called again. From any thread."""
        pending = self._pending.get(first_row)
        if pending is not None:
            pending.span.event("retry", row=row, attempts=attempts, error=type(error).__name__)

    def ready(self, output: Output) -> None:
        """A Result waits to be sent."""
        self._pending[output.batch].ready = self._clock()

    def answer(self, output: Output) -> None:
        """A Result was sent: its rows are answered."""
        counts, failed = self._counts, output.failed
        ok = output.rows - failed - output.skipped
        counts.rows_ok += ok
        counts.rows_failed += failed
        counts.rows_skipped += output.skipped
        counts.calls += output.calls
        counts.retries += output.retries
        self.unanswered_rows -= output.rows
        self._admission.give_back(self._function, output.rows, 0)
        pending = self._pending[output.batch]
        pending.rows -= output.rows
        pending.failed += failed
        if pending.rows == 0:
            del self._pending[output.batch]
            self._unanswered_bytes -= pending.size
            self._admission.give_back(self._function, 0, pending.size)
            self._metrics.batch_answered(self._clock() - pending.arrived)
            # Without a call, as of rows that are skipped, all of it was waiting.
            began = pending.began or pending.ready
            self._queue_seconds += began - pending.arrived
            self._function_seconds += pending.ready - began
            pending.span.set(failed=pending.failed)
            pending.span.end()
        self._metrics.rows_answered(ok, failed, output.skipped, output.size)
        self._metrics.called(output.calls, output.retries)
        for code, count in output.codes.items():
            self._metrics.row_failed(code, count)
        self._changed.set()

    async def all_answered(self) -> None:
        """Returns once no row waits for its answer."""
        while self._pending:
            await self._change()

    def drop(self) -> None:
        """The stream has ended: what is unanswered holds nothing any more. Called once."""
        self._admission.give_back(self._function, self.unanswered_rows, self._unanswered_bytes)
        for pending in self._pending.values():
            pending.span.end("not answered")

    @property
    def counts(self) -> pb.StreamCounts:
        """The counts so far. Calls are those that led to what was answered."""
        return self._counts

    def times(self) -> pb.StreamTimes:
        """How long the batches answered so far took, and at what."""
        times = pb.StreamTimes()
        times.queue.FromNanoseconds(round(self._queue_seconds * 1e9))
        times.function.FromNanoseconds(round(self._function_seconds * 1e9))
        return times

    def balanced(self) -> pb.StreamCounts:
        """The counts of a stream whose rows are all answered. Raises RuntimeError if they do not add up."""
        counts = self._counts
        if counts.rows_in != counts.rows_ok + counts.rows_failed + counts.rows_skipped:
            raise RuntimeError(f"row accounting does not add up: {counts}")
        return counts

    def _has_room(self, rows: int, size: int) -> bool:
        limits = self._limits
        return (
            self.unanswered_rows + rows <= limits.unanswered_rows
            and self._unanswered_bytes + size <= limits.unanswered_bytes
        )

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()
