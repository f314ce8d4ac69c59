"""Vectorized calls functions that get one Arrow array per argument and return one array.

A plain `def` runs on the function's threads, one batch of a stream at a time unless buffer-capacity
allows more. An `async def` runs on the function's event loop, four batches at a time. If the deadline of a batch
passes, its rows without an outcome time out. While the client does not read results, no call begins.
"""

import asyncio
import collections
import functools
import threading

from udf_server.runners.batch_calls import BatchCalls
from udf_server.runners.runner import InputBatch, Runner, RunnerSetup
from udf_server.runners.work import BatchWork

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
        self._working: dict[BatchWork, None] = {}
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
            work.cancel_task()

    def tick(self) -> None:
        now = self.setup.clock()
        for work in list(self._working):
            if not work.paused:
                work.check(now, work.deadline, self.options.timeout)

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
            work.post()

    def _go_on(self) -> None:
        """Continue after the client has read results."""
        self._held_up = False
        self._start()

    def _next_work(self) -> BatchWork | None:
        with self._lock:
            if not self._has_room():
                return None
            batch = self._waiting.popleft()
            work = BatchWork(self.setup, self, batch, self.timeout_of(batch), self._stop)
            self._working[work] = None
            return work

    def _has_room(self) -> bool:
        """Whether one more batch may begin now. Call with the lock held."""
        if not self._waiting or self._stop.is_set() or self.setup.room.full:
            return False
        capacity = self.options.buffer_capacity
        if capacity is None or not self._working:
            return len(self._working) < self._most_calls
        in_flight = sum(min(work.batch.calls, self._most_rows) for work in self._working)
        return in_flight + min(self._waiting[0].calls, self._most_rows) <= capacity

    def remove(self, work: BatchWork) -> None:
        with self._lock:
            self._working.pop(work, None)

    def leave_thread(self) -> None:
        with self._lock:
            self._threads -= 1

    def send_aside(self, work: BatchWork) -> None:
        self.setup.spawn(self._encode_aside(work))

    async def _encode_aside(self, work: BatchWork) -> None:
        # It does not wait for the client: that would block an executor's thread, and new calls wait anyway.
        await asyncio.get_running_loop().run_in_executor(None, lambda: list(self._calls.send_rest(work)))
        self._start()

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

    async def run(self, work: BatchWork) -> None:
        if await self._calls.run(work):
            self._leave(work)

    def _leave(self, work: BatchWork) -> None:
        """Remove work whose outcomes were sent. Work that failed stays, so that no other begins meanwhile."""
        if not work.sent:
            return
        self.remove(work)
        self.setup.metrics.observe_rows([work.seconds], [work.batch.calls])
        self.setup.post(self._start)
