"""Vectorized calls functions that get one Arrow array per argument and return one array.

A plain `def` runs on the function's threads, one batch of a stream at a time unless buffer-capacity
allows more. An `async def` runs on the function's event loop, four batches at a time. If the deadline of a batch
passes, its rows without an outcome time out. While the client does not read results, no call begins.
"""

import asyncio
import collections
import functools
import threading
from contextlib import AbstractContextManager
from typing import Any

from udf_server.base.call_scope import CallScope, current_scope
from udf_server.hosting.loop_executor import LoopExecutor
from udf_server.runners.batch_calls import BatchCalls
from udf_server.runners.isolation import Outcomes
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
        self._most_rows = min(options.batch_rows, options.buffer_capacity or options.batch_rows)
        self._most_calls = ASYNC_CALLS if self.function.is_async else 1
        self._lock = threading.Lock()
        """Guards the next three attributes: the threads of a plain `def` take batches from `_waiting` themselves."""
        self._waiting: collections.deque[InputBatch] = collections.deque()
        self._working: dict[Work, None] = {}
        self._threads = 0
        """Number of threads that are running or were requested."""
        self._stop = setup.hosted.executors.threads.event()
        self._calls = BatchCalls(setup, self.retry, self._most_rows, self._stop)
        self._held_up = False
        """Whether no batch begins until the client has read results."""

    # The methods below run on the server's event loop.

    def feed(self, batch: InputBatch) -> None:
        with self._lock:
            self._waiting.append(batch)
        self._start()

    def cancel(self) -> None:
        self._stop.set()
        self.setup.party.close()  # a guard must not take these calls for failures of the service
        self.setup.room.close()
        with self._lock:
            self._waiting.clear()
            working = list(self._working)
            self._working.clear()
        for work in working:
            if work.task is not None and work.executor is not None:
                work.executor.post(work.task.cancel)

    def tick(self) -> None:
        now = self.setup.clock()
        for work in list(self._working):
            if work.paused or work.sending:
                continue
            if work.began and now > work.deadline:
                self._overdue(work, now)
            elif not work.began and work.executor and self._is_blocked(work, work.executor, now):
                # A call of another stream blocks the loop.
                work.posted = now
                self.setup.spawn(self._leave_executor(work.executor))

    def _is_blocked(self, work: Work, executor: LoopExecutor, now: float) -> bool:
        """Whether this or another stream has found that the loop of the work is blocked."""
        if self.setup.hosted.running_executor is not executor:
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
                self.setup.hosted.thread_executor.submit(self.setup.party, self._job)
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
        return self.setup.hosted.thread_executor.lent()

    def _has_room(self) -> bool:
        """Whether one more batch may begin now. Call with the lock held."""
        if not self._waiting or self._stop.is_set() or self.setup.room.full:
            return False
        capacity = self.options.buffer_capacity
        if capacity is None or not self._working:
            return len(self._working) < self._most_calls
        in_flight = sum(min(work.batch.calls, self._most_rows) for work in self._working)
        return in_flight + min(self._waiting[0].calls, self._most_rows) <= capacity

    def _start_on_loop(self, work: Work) -> None:
        work.executor, work.posted, work.queued = self.setup.hosted.loop_executor, self.setup.clock(), False
        work.executor.post(self._create_task, work, work.executor)

    def _overdue(self, work: Work, now: float) -> None:
        if work.executor is None:
            self._give_up(work, self._write_off_thread)
        elif not work.told:
            work.told = now
            assert work.task is not None
            work.executor.post(work.task.cancel)
            work.executor.post(setattr, work, "answered", True)
        elif now - work.told > GRACE_SECONDS:
            if work.answered:
                self._give_up(work, self.setup.hosted.write_off_call)
            elif self._give_up(work, lambda: None):
                self.setup.spawn(self._leave_executor(work.executor))

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
        work.outcomes.fail_rest(self.setup.timeout_error(1))
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
        self.setup.hosted.thread_executor.write_off()

    async def _encode_aside(self, work: Work) -> None:
        # It does not wait for the client: that would block an executor's thread, and new calls wait anyway.
        await asyncio.get_running_loop().run_in_executor(None, lambda: list(self._calls.send_rest(work)))
        self._start()

    async def _leave_executor(self, executor: LoopExecutor) -> None:
        """Replace a loop that the function blocks. Work that has not begun there is moved to the new loop."""
        try:
            self.setup.hosted.replace_loop_executor(executor)
            await self.setup.hosted.open()
        except Exception as error:
            self.setup.fail(error)
            return
        for work in list(self._working):
            if work.executor is executor and not work.began:
                self._start_on_loop(work)

    # The methods below run on the function's threads or its event loop.

    def _job(self) -> bool:
        """Process batches until none is left for this thread. Returns False if the thread was written off meanwhile."""
        while (work := self._next_work()) is not None:
            if not self._calls.run_blocking(work):
                return False
            self._leave(work)
            if self.setup.hosted.thread_executor.crowded:
                # Other streams get their turn between two batches.
                self.setup.hosted.thread_executor.submit(self.setup.party, self._job)
                return True
        with self._lock:
            self._threads -= 1
            more = bool(self._waiting)
        if more:
            # The batch arrived after the last check, while this thread was still counted.
            self.setup.post(self._start)
        return True

    def _create_task(self, work: Work, executor: LoopExecutor) -> None:
        if not self._stop.is_set() and work.executor is executor:
            work.queued = True
            work.task = asyncio.get_running_loop().create_task(self._run_in_turn(work, executor))

    async def _run_in_turn(self, work: Work, executor: LoopExecutor) -> None:
        party, turns = self.setup.party, executor.turns
        current_scope.set(CallScope(party))
        turns.join(party)
        try:
            if not turns.enter(work):
                await turns.turn(party, work)
            if work.executor is executor and await self._calls.run(work):
                self._leave(work)
        finally:
            turns.leave(work)

    def _leave(self, work: Work) -> None:
        """Remove work whose outcomes were sent. Work that failed stays, so that no other begins meanwhile."""
        if not work.sent:
            return
        with self._lock:
            self._working.pop(work, None)
        self.setup.metrics.observe_rows([work.seconds], [work.batch.calls])
        self.setup.post(self._start)
