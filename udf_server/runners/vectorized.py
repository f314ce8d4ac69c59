"""Vectorized calls functions that get one Arrow array per argument and return one array.

A plain `def` runs on the function's threads, one batch of a stream at a time unless buffer-capacity
allows more. An `async def` runs on the function's event loop, four batches at a time. If the deadline of a batch
passes, its rows without an outcome time out. While the client does not read results, no call begins.
"""

import asyncio
import collections
import contextlib
import functools
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.functions import NullCall
from remote_udf.options import OutputMode
from udf_server.base.fairness import current_party
from udf_server.hosting.lanes import LoopLane
from udf_server.runners.emission import Emission
from udf_server.runners.isolation import Answer, Call, Outcomes, Wait, advanced, isolate
from udf_server.runners.outputs import Output, Taken
from udf_server.runners.pool import GRACE_SECONDS
from udf_server.runners.runner import InputBatch, Runner, RunnerSetup
from udf_server.runners.work import Work

__all__ = ["Vectorized"]

ASYNC_CALLS = 4


class Vectorized(Runner):
    """Calls the function for the batches of one stream."""

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        options = self.options
        self._ordered = options.output_mode is OutputMode.ORDERED
        self._most_rows = min(options.batch_rows, options.buffer_capacity or options.batch_rows)
        self._calls = ASYNC_CALLS if self.function.is_async else 1
        self._lock = threading.Lock()
        """Guards the next three attributes: the threads of a plain `def` take batches from `_waiting` themselves."""
        self._waiting: collections.deque[InputBatch] = collections.deque()
        self._working: dict[Work, None] = {}
        self._threads = 0
        """Number of threads that are running or were requested."""
        self._stop = threading.Event()
        self._held_up = False
        """Whether no batch begins until the client has read results."""

    # The methods below run on the server's event loop.

    def feed(self, batch: InputBatch) -> None:
        with self._lock:
            self._waiting.append(batch)
        self._start()

    def cancel(self) -> None:
        self._stop.set()
        self.setup.room.close()
        with self._lock:
            self._waiting.clear()
            working = list(self._working)
            self._working.clear()
        for work in working:
            if work.task is not None and work.lane is not None:
                work.lane.post(work.task.cancel)

    def tick(self) -> None:
        now = self.setup.clock()
        for work in list(self._working):
            if work.paused or work.sending:
                continue
            if work.began and now > work.deadline:
                self._overdue(work, now)
            elif not work.began and work.lane and self._is_blocked(work, work.lane, now):
                # A call of another stream blocks the loop.
                work.posted = now
                self.setup.spawn(self._leave_lane(work.lane))

    def _is_blocked(self, work: Work, lane: LoopLane, now: float) -> bool:
        """Whether this or another stream has found that the loop of the work is blocked."""
        if self.setup.hosted.running_lane is not lane:
            return True
        return not work.queued and now > work.posted + self.options.timeout + GRACE_SECONDS

    def _start(self) -> None:
        """Start as many batches as allowed."""
        if self._held_up or not self._waiting or self._stop.is_set():
            return
        if not self.setup.room.when_free(functools.partial(self.setup.post, self._go_on)):
            self._held_up = True
            return
        if not self.function.is_async:
            with self._lock:
                idle = self._threads - len(self._working)
                wanted = 1 if idle <= 0 and self._has_room() else 0
                self._threads += wanted
            if wanted:
                self.setup.hosted.thread_lane.submit(self.setup.party, self._job)
            return
        while (work := self._next_work()) is not None:
            self._start_on_loop(work)

    def _go_on(self) -> None:
        """Continue after the client has read results."""
        self._held_up = False
        self._start()

    def _next_work(self) -> Work | None:
        with self._lock:
            if not self._has_room():
                return None
            batch = self._waiting.popleft()
            outcomes, setup = Outcomes(batch.rows, self.function.result), self.setup
            work = Work(batch, self.timeout_of(batch), outcomes, self._stop, setup.clock, setup.room, self._lent)
            self._working[work] = None
            return work

    def _lent(self) -> AbstractContextManager[None]:
        return self.setup.hosted.thread_lane.lent()

    def _has_room(self) -> bool:
        """Whether one more batch may begin now. Call with the lock held."""
        if not self._waiting or self._stop.is_set() or self.setup.room.full:
            return False
        capacity = self.options.buffer_capacity
        if capacity is None or not self._working:
            return len(self._working) < self._calls
        in_flight = sum(min(work.batch.rows, self._most_rows) for work in self._working)
        return in_flight + min(self._waiting[0].rows, self._most_rows) <= capacity

    def _start_on_loop(self, work: Work) -> None:
        work.lane, work.posted, work.queued = self.setup.hosted.loop_lane, self.setup.clock(), False
        work.lane.post(self._create_task, work, work.lane)

    def _overdue(self, work: Work, now: float) -> None:
        if work.lane is None:
            self._give_up(work, self._write_off_thread)
        elif not work.told:
            work.told = now
            assert work.task is not None
            work.lane.post(work.task.cancel)
            work.lane.post(setattr, work, "answered", True)
        elif now - work.told > GRACE_SECONDS:
            if work.answered:
                self._give_up(work, self.setup.hosted.write_off_call)
            elif self._give_up(work, lambda: None):
                self.setup.spawn(self._leave_lane(work.lane))

    def _give_up(self, work: Work, write_off: Any) -> bool:
        """Time out the rows without an outcome. Returns False if the work has ended by itself meanwhile."""
        if not work.claim():
            return False
        with work.lock:
            work.stopped = True
            # The call may still return and write to the original.
            work.outcomes = work.outcomes.copied()
        with self._lock:
            self._working.pop(work, None)
        work.outcomes.fail_rest(self.timeout_error(1))
        try:
            write_off()
        except Exception as error:
            self.setup.fail(error)
            return False
        self.setup.spawn(self._encode_aside(work))
        return True

    def _write_off_thread(self) -> None:
        with self._lock:
            self._threads -= 1
        self.setup.hosted.thread_lane.write_off()

    async def _encode_aside(self, work: Work) -> None:
        # It does not wait for the client: that would block an executor's thread, and new calls wait anyway.
        await asyncio.get_running_loop().run_in_executor(None, lambda: list(self._send_rest(work)))
        self._start()

    async def _leave_lane(self, lane: LoopLane) -> None:
        """Replace a loop that the function blocks. Work that has not begun there is moved to the new loop."""
        try:
            self.setup.hosted.replace_loop_lane(lane)
            await self.setup.hosted.open()
        except Exception as error:
            self.setup.fail(error)
            return
        for work in list(self._working):
            if work.lane is lane and not work.began:
                self._start_on_loop(work)

    def _deliver(self, outputs: Sequence[Output]) -> None:
        if not self._stop.is_set():
            for output in outputs:
                self.setup.emit(output)

    # The methods below run on the function's threads or its event loop.

    def _job(self) -> bool:
        """Process batches until none is left for this thread. Returns False if the thread was written off meanwhile."""
        while (work := self._next_work()) is not None:
            if not self._see_through(work):
                return False
            if self.setup.hosted.thread_lane.crowded:
                # Other streams get their turn between two batches.
                self.setup.hosted.thread_lane.submit(self.setup.party, self._job)
                return True
        with self._lock:
            self._threads -= 1
            more = bool(self._waiting)
        if more:
            # The batch arrived after the last check, while this thread was still counted.
            self.setup.post(self._start)
        return True

    def _see_through(self, work: Work) -> bool:
        """Process one batch on this thread. Returns False if it was given up."""
        try:
            # For a plain `def` nothing is awaited that suspends the coroutine, so this runs it to its end.
            self._run(work).send(None)
        except StopIteration as end:
            return bool(end.value)
        raise AssertionError("a plain function was awaited")

    def _create_task(self, work: Work, lane: LoopLane) -> None:
        if not self._stop.is_set() and work.lane is lane:
            work.queued = True
            work.task = asyncio.get_running_loop().create_task(self._run_in_turn(work, lane))

    async def _run_in_turn(self, work: Work, lane: LoopLane) -> None:
        party, turns = self.setup.party, lane.turns
        current_party.set(party)
        turns.join(party)
        try:
            if not turns.enter(work):
                await turns.turn(party, work)
            if work.lane is lane:
                await self._run(work)
        finally:
            turns.leave(work)

    async def _run(self, work: Work) -> bool:
        """Process one batch, on the event loop or on a thread. Returns False if it was given up."""
        try:
            columns, is_async = self._prepare(work), self.function.is_async
            steps = isolate(work.outcomes, self.retry, self._most_rows, self.timeout_error)
            answer: Answer | None = None
            failure: BaseException | None = None
            while (step := advanced(steps, answer)) is not None and not work.abandoned:
                answer = None  # its result may be large
                try:
                    if isinstance(step, Wait):
                        late = work.too_late(step.seconds)
                        await self._sleep(0.0 if late else step.seconds)
                        answer = (None, late)
                    else:
                        for _ in self._send_settled(work):
                            await self._available(work)
                        if work.abandoned:
                            break
                        self._tell_retry(work, step, failure)
                        result = await self._call(work, columns, step) if is_async else self._call(work, columns, step)
                        answer, failure = (result, None), None
                        del result
                except BaseException as error:
                    answer, failure = (None, error), error
                if work.told and not work.abandoned:
                    work.outcomes.fail_rest(self.timeout_error(1))
                    break
        except Exception as error:
            self.setup.post(self.setup.fail, error)
            return work.claim()
        finally:
            # The exception of the function refers to this frame, and so to the batch: that would be a reference cycle.
            answer = failure = None
        mine = work.claim()
        if mine and not self._stop.is_set():
            for _ in self._send_rest(work):
                await self._available(work)
            self._leave(work)
        return mine

    async def _sleep(self, seconds: float) -> None:
        if self.function.is_async:
            await asyncio.sleep(seconds)
        else:
            self._stop.wait(seconds)

    async def _available(self, work: Work) -> None:
        """Wait until the client has read enough, or until the stream ends.

        Cancellation is ignored: a deadline that passes meanwhile does not apply to outcomes that already exist.
        """
        if not self.function.is_async:
            work.wait()
            return
        while not self._stop.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await work.available()
                return

    def _tell_retry(self, work: Work, call: Call, failure: BaseException | None) -> None:
        if failure is not None and call.attempt > 1:
            first = work.batch.first_row
            self.setup.retried(first, first + call.first, call.attempt - 1, failure)

    def _prepare(self, work: Work) -> list[pa.Array]:
        """The arguments of the rows that are called."""
        batch, spec = work.batch, self.function.spec
        columns = self.setup.arguments.columns(batch)
        if spec.nulls is NullCall.SKIP and any(column.null_count for column in columns):
            present = np.logical_and.reduce([column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
            work.called = np.flatnonzero(present)
            columns = [column.take(pa.array(work.called)) for column in columns]
            work.outcomes.rows = len(work.called)
        work.began = self.setup.clock()
        self.setup.began(batch.first_row)
        return columns

    def _call(self, work: Work, columns: Sequence[pa.Array], call: Call) -> Any:
        arguments: list[Any] = [column.slice(call.first, call.rows) for column in columns]
        if self.function.emits:
            return self.function.call(self._emission(work, call), *arguments)
        if self.function.context_parameter is None:
            return self.function.call(*arguments)
        first = call.first if work.called is None else int(work.called[call.first])
        row = work.batch.first_row + first
        context = self.call_context(row, call.rows, call.attempt, work.deadline, columns, call.first)
        return self.function.call_with(arguments, context)

    def _emission(self, work: Work, call: Call) -> Emission | None:
        if not self.setup.takes_parts:
            return None
        return Emission(work, call.first, self.setup.writer, functools.partial(self.setup.post, self._deliver))

    def _send_settled(self, work: Work) -> Iterator[None]:
        """Send outcomes before the next call if they are large or the client is slow. Yields as `_send` does."""
        if not work.outcomes.slices or work.abandoned:
            return
        work.results.add(work.outcomes.bytes - work.results.held)
        if work.outcomes.bytes < self.setup.writer.piece_bytes and not self.setup.room.full:
            return
        with work.lock:
            if work.abandoned:
                return
            taken = work.outcomes.take()
        yield from self._send(work, taken)
        if self.setup.room.backed_up:
            yield

    def _send_rest(self, work: Work) -> Iterator[None]:
        """Send the unsent outcomes. Yields as `_send` does."""
        if not self._stop.is_set():
            work.results.add(work.outcomes.bytes - work.results.held)
            yield from self._send(work, work.outcomes.take())

    def _send(self, work: Work, taken: Taken) -> Iterator[None]:
        """Send these outcomes, message by message. Yields if the client has to read some messages first."""
        writer, room = self.setup.writer, self.setup.room
        try:
            for piece in taken.cut(writer.piece_bytes):
                if room.backed_up:
                    yield
                if self._stop.is_set():
                    return
                placed = work.placed(piece)
                if len(placed.values):
                    first = work.first_row + placed.first
                    rows = None if self._ordered else list(range(first, first + len(placed.values)))
                    self.setup.post(self._deliver, writer.write(work.first_row, placed, rows))
        except Exception as error:
            self.setup.post(self.setup.fail, error)
        work.results.release()

    def _leave(self, work: Work) -> None:
        """Remove work whose outcomes were sent."""
        with self._lock:
            self._working.pop(work, None)
        self.setup.metrics.observe_rows([work.seconds], [work.batch.rows])
        self.setup.post(self._start)
