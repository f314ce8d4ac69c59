"""BatchCalls calls a vectorized function for one batch and sends the outcomes.

A plain `def` is called on a thread, an `async def` on an event loop. Both run the same coroutine.
"""

import asyncio
import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from remote_udf.options import OutputMode
from udf_server.base.call_scope import NO_CALL, CallScope, NotCalled, current_scope
from udf_server.base.context import BatchContext, CallContext
from udf_server.base.errors import RowErrors
from udf_server.runners.calling import Calling, Returned
from udf_server.runners.isolation import Answer, Call, Wait, advanced, isolate
from udf_server.runners.outputs import Output, Taken
from udf_server.runners.retries import RetryPolicy
from udf_server.runners.runner import RunnerSetup
from udf_server.runners.selection import rows_without_null
from udf_server.runners.work import BatchWork, Emission

__all__ = ["BatchCalls"]


class BatchCalls:
    """The calls of one stream. Use it on the function's threads or its event loop, for several batches at a time."""

    def __init__(self, setup: RunnerSetup, retry: RetryPolicy, most_rows: int, stop: threading.Event) -> None:
        """`most_rows` is the maximum number of rows of a call. No call begins after `stop` is set."""
        self._setup = setup
        self._function = setup.function
        self._calling = Calling(setup.function, setup.arguments.targets)
        self._retry = retry
        self._most_rows = most_rows
        self._stop = stop
        self._ordered = setup.options.output_mode is OutputMode.ORDERED

    async def run(self, work: BatchWork) -> bool:
        """Call the function for one batch and send the outcomes. Returns False if the batch was given up."""
        try:
            columns = self._prepare(work)
            steps = isolate(work.outcomes, self._retry, self._most_rows, self._setup.timeout_error)
            answer: Answer | None = None
            failure: BaseException | None = None
            # What a call returns after it was given up does not fit the outcomes that were sent meanwhile.
            while not work.abandoned and (step := advanced(steps, answer)) is not None:
                answer = None  # its result may be large
                try:
                    if isinstance(step, Wait):
                        late = TimeoutError() if work.clock() + step.seconds >= work.deadline else None
                        await self._sleep(0.0 if late else step.seconds)
                        answer = (None, late)
                    else:
                        for _ in self._send_settled(work):
                            await self._available(work)
                        if work.abandoned or not self._begins(work, step):
                            break
                        self._tell_retry(work, step, failure)
                        returned = await self._attempt(work, columns, step)
                        answer, failure = (returned, None), next(iter(returned.failed.values()), None)
                        del returned
                except BaseException as error:
                    answer, failure = (None, error), error
                if work.told and not work.abandoned:
                    late_error = self._setup.timeout_error(1)
                    if isinstance(step, Call) and isinstance(failure, NotCalled):
                        late_error = failure.outcome(step.attempt - 1, self._setup.timeout_error)
                        work.outcomes.not_called(step.attempt)
                    work.outcomes.fail_rest(late_error)
                    break
        except Exception as error:
            self._setup.post(self._setup.fail, error)
            return work.claim()
        finally:
            # The exception of the function refers to this frame, and so to the batch: that would be a reference cycle.
            answer = failure = None
        if not work.claim():
            return False
        for _ in self.send_rest(work):
            await self._available(work)
        work.sent = not self._stop.is_set()
        return True

    def run_blocking(self, work: BatchWork) -> bool:
        """Do the same as `run` on the calling thread, for a plain `def`."""
        try:
            # For a plain `def` nothing is awaited that suspends the coroutine, so this runs it to its end.
            self.run(work).send(None)
        except StopIteration as end:
            return bool(end.value)
        finally:
            if self._function.waits:
                current_scope.set(NO_CALL)  # the thread must not keep an ended stream in memory
        raise AssertionError("a plain function was awaited")

    async def _sleep(self, seconds: float) -> None:
        if self._function.is_async:
            await asyncio.sleep(seconds)
        else:
            self._stop.wait(seconds)

    async def _available(self, work: BatchWork) -> None:
        """Wait until the client has read enough, or until the stream ends.

        Cancellation is ignored: a deadline that passes meanwhile does not apply to outcomes that already exist.
        """
        if not self._function.is_async:
            work.wait()
            return
        while not self._stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await work.available()
                return

    def _begins(self, work: BatchWork, call: Call) -> bool:
        """Whether the call may begin. Of rows that were dropped from their selection, none is called."""
        selection = work.batch.selection
        return selection is None or selection.take(call.rows[-1] + 1)

    def _tell_retry(self, work: BatchWork, call: Call, failure: BaseException | None) -> None:
        if failure is not None and call.attempt > 1:
            first = work.batch.first_row
            self._setup.retried(first, first + call.rows[0], call.attempt - 1, failure)

    def _prepare(self, work: BatchWork) -> list[pa.Array]:
        """The arguments of the rows that are called."""
        batch, selection = work.batch, work.batch.selection
        columns = self._setup.arguments.columns(batch)
        work.called = rows_without_null(self._function.spec, columns) if selection is None else selection.called
        if work.called is not None:
            columns = [column.take(pa.array(work.called)) for column in columns]
            work.outcomes.rows = len(work.called)
        work.began = self._setup.clock()
        self._setup.began(batch.first_row)
        return columns

    async def _attempt(self, work: BatchWork, columns: Sequence[pa.Array], call: Call) -> Returned:
        """Call the function once. Raises what it raises, except RowErrors, and WrongResult."""
        try:
            arguments = self._calling.arguments(columns, call.rows)
            result = self._call(work, columns, call, arguments)
            return self._returned(work, call, await result if self._function.is_async else result)
        except RowErrors as named:
            return self._calling.named(named, len(call.rows))

    def _returned(self, work: BatchWork, call: Call, result: Any) -> Returned:
        # A function that emits has sent the outcomes of the first rows, and returns those of the others.
        rows = len(call.rows) - max(work.outcomes.sent - call.rows[0], 0)
        return self._calling.returned(result, rows) if rows else Returned(None)

    def _call(self, work: BatchWork, columns: Sequence[pa.Array], call: Call, arguments: list[Any]) -> Any:
        if self._function.waits and not self._function.is_async:
            current_scope.set(CallScope(self._setup.party, work.deadline))
        if self._function.emits:
            return self._function.call(self._emission(work, call), *arguments)
        if self._function.context_parameter is None:
            return self._function.call(*arguments)
        if self._function.takes_batch_context:
            return self._function.call_with(arguments, self._batch_context(work, columns, call))
        if not isinstance(call.rows, range):
            places = pa.array(call.rows, pa.int64())
            columns = [column.take(places) for column in columns]
        offset = call.rows[0] if isinstance(call.rows, range) else 0
        first = call.rows[0] if work.called is None else int(work.called[call.rows[0]])
        row = work.batch.first_row + first
        context = self._setup.call_context(row, len(call.rows), call.attempt, work.deadline, columns, offset)
        return self._function.call_with(arguments, context)

    def _batch_context(self, work: BatchWork, columns: Sequence[pa.Array], call: Call) -> BatchContext:
        setup, deadline = self._setup, work.deadline

        def row(place: int) -> CallContext:
            offset = call.rows[place]
            position = work.batch.first_row + (offset if work.called is None else int(work.called[offset]))
            return setup.call_context(position, 1, call.attempt, deadline, columns, offset)

        return BatchContext.of(setup.context, len(call.rows), call.attempt, deadline, setup.clock, row)

    def _emission(self, work: BatchWork, call: Call) -> Emission | None:
        if not self._setup.takes_parts:
            return None
        return Emission(work, call.rows[0], self._setup.writer, functools.partial(self._setup.post, self._deliver))

    def _send_settled(self, work: BatchWork) -> Iterator[None]:
        """Send outcomes before the next call if they are large or the client is slow. Yields as `_send` does."""
        if not work.outcomes.slices or work.abandoned:
            return
        work.results.add(work.outcomes.bytes - work.results.held)
        if work.outcomes.bytes < self._setup.writer.piece_bytes and not self._setup.room.full:
            return
        with work.lock:
            if work.abandoned:
                return
            taken = work.outcomes.take()
        yield from self._send(work, taken)
        if self._setup.room.backed_up:
            yield

    def send_rest(self, work: BatchWork) -> Iterator[None]:
        """Send the unsent outcomes. Yields as `_send` does."""
        if not self._stop.is_set():
            work.results.add(work.outcomes.bytes - work.results.held)
            yield from self._send(work, work.outcomes.take())

    def _send(self, work: BatchWork, taken: Taken) -> Iterator[None]:
        """Send these outcomes, message by message. Yields if the client has to read some messages first."""
        writer, room = self._setup.writer, self._setup.room
        try:
            for piece in taken.cut(writer.piece_bytes):
                if room.backed_up:
                    yield
                if self._stop.is_set():
                    return
                placed = work.placed(piece)
                if len(placed.values):
                    rows = None if self._ordered else work.positions(placed)
                    self._setup.post(self._deliver, writer.write(work.batch.first_row, placed, rows))
        except Exception as error:
            self._setup.post(self._setup.fail, error)
        work.results.release()

    def _deliver(self, outputs: Sequence[Output]) -> None:
        if not self._stop.is_set():
            for output in outputs:
                self._setup.emit(output)
