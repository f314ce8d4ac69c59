"""ThreadedRows: plain `def` functions, a call per row, in plain loops on threads.

One thread takes the rows of a cheap function one after the other; for one that waits, more and more
threads share the same iterator of rows. Python cannot stop a thread: a row whose deadline passes gets
its error, its thread is written off, and another takes its place.
"""

import asyncio
import collections
import threading
from collections.abc import Sequence
from itertools import islice
from typing import Any

from remote_udf.options import OutputMode
from udf_server.failures import describe, row_error
from udf_server.runners.batches import UNSET, RowBatch
from udf_server.runners.outputs import Output
from udf_server.runners.runner import TRACEBACKS_PER_BATCH, InputBatch, Runner, RunnerSetup

__all__ = ["ThreadedRows"]

DEFAULT_CAPACITY = 100
SPREAD_SECONDS = 0.002
"""How long a thread works alone before it is asked whether it needs help, and how long until the next time."""
SPREAD_ROW_SECONDS = 0.0002
"""Rows that take longer than this wait for something, so that more threads help."""
MAX_SPREAD_SECONDS = 0.1
FLUSH_SECONDS = 0.01
"""With unordered output, completed rows wait about this long for company."""
STRIDE_SECONDS = 0.001
"""A thread looks at the clock about this often, instead of at every row."""
MAX_STRIDE = 256


class _Slot:
    """What one thread is doing. The server's loop reads it to watch deadlines."""

    __slots__ = ("batch", "began", "done", "given_up", "index", "seen", "stop")

    def __init__(self) -> None:
        self.batch: RowBatch | None = None
        self.index = -1
        self.began = 0.0
        """When the stride at work began; its row, if the stride is one row long."""
        self.done = 0
        self.given_up = -1
        """The row that timed out on this thread, which was written off then."""
        self.seen = (-1, 0.0)
        """The row found at work when deadlines were last looked at, and since when."""
        self.stop = threading.Event()


class ThreadedRows(Runner):
    """Runs rows of one stream on the function's threads. `_lock` guards the lists of work and workers."""

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        self._lane = setup.hosted.thread_lane
        self._threads = min(self.options.buffer_capacity or DEFAULT_CAPACITY, self._lane.limit)
        self._ordered = self.options.output_mode is OutputMode.ORDERED
        self._codecs = [self.function.codec_for(*target) for target in enumerate(setup.arguments.targets)]
        self._context_parameter = self.function.context_parameter
        self._lock = threading.Lock()
        self._arrived: collections.deque[InputBatch] = collections.deque()
        self._open: list[RowBatch] = []
        """Batches somebody works on, oldest first."""
        self._workers: dict[RowBatch, int] = {}
        self._slots: list[_Slot] = []
        self._jobs = 0
        """Threads at work or asked for."""
        self._any_given_up = False
        self._done = 0
        """Rows done by threads that have left."""
        self._spreading = False
        self._flushed = 0.0
        self._closed = False
        if not self._ordered:
            self.tick_seconds = min(self.tick_seconds, FLUSH_SECONDS)

    def feed(self, batch: InputBatch) -> None:
        with self._lock:
            self._arrived.append(batch)
        self._hire(1 if not self._jobs else 0)
        if not self._spreading:
            self._spreading = True
            asyncio.get_running_loop().call_later(SPREAD_SECONDS, self._spread, self._done, SPREAD_SECONDS)

    def cancel(self) -> None:
        with self._lock:
            self._closed = True
            self._arrived.clear()
            self._open.clear()
            for slot in self._slots:
                slot.stop.set()

    def tick(self) -> None:
        now = self.setup.clock()
        for slot in self._slots.copy():
            batch, index = slot.batch, slot.index
            if slot.seen[0] != index or batch is None:
                slot.seen = (index, now)
            began = max(slot.began, slot.seen[1])
            if batch is not None and index >= 0 and now > began + self.options.timeout - batch.waited:
                self._give_up(slot, batch, index)
        if not self._ordered and now - self._flushed >= FLUSH_SECONDS:
            self._flushed = now
            self.setup.spawn(self._flush())

    # On the server's event loop.

    def _hire(self, count: int) -> None:
        with self._lock:
            count = min(count, self._threads - self._jobs)
            self._jobs += max(count, 0)
        for _ in range(count):
            self._lane.submit(self._job)

    def _spread(self, done_before: int, waited: float) -> None:
        """Doubles the threads while rows are slow and there are rows left."""
        with self._lock:
            left = not self._closed and bool(self._arrived or self._open)
            done, active = self._done + sum(slot.done for slot in self._slots), self._jobs
        if not left:
            self._spreading = False
            return
        if slow := (done - done_before) * SPREAD_ROW_SECONDS < waited * active:
            self._hire(max(active, 1))
        wait = SPREAD_SECONDS if slow and active < self._threads else min(waited * 2, MAX_SPREAD_SECONDS)
        asyncio.get_running_loop().call_later(wait, self._spread, done, wait)

    def _give_up(self, slot: _Slot, batch: RowBatch, index: int) -> None:
        """The row at work on this thread is past its deadline."""
        with self._lock:
            if slot.batch is not batch or slot.index != index or slot.given_up == index or self._closed:
                return
            first = slot.given_up < 0
            slot.given_up = index
            slot.stop.set()
            batch.fail(index, self.timeout_error(batch.attempts.get(index, 1)))
            batch.fresh.append(index)
            self._any_given_up = True
            if first:
                self._workers[batch] -= 1
                self._jobs -= 1
            if batch not in self._open:
                # Its rows are all taken; somebody must join once more to find out whether it has ended.
                self._open.insert(0, batch)
        try:
            if first:
                self._lane.write_off()
        except Exception as error:
            self.setup.fail(error)
            return
        self._hire(1)

    async def _flush(self) -> None:
        """Sends rows that are done, whatever the threads are busy with."""
        with self._lock:
            batches = [batch for batch in self._open if batch.fresh]
        if batches:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, self._emit_all, batches)

    def _deliver(self, outputs: list[Output], retries: int) -> None:
        if not self._closed:
            self.retries += retries
            for output in outputs:
                self.setup.emit(output)

    # On the function's threads.

    def _job(self) -> bool:
        """Works until no rows are left. False if the thread was written off meanwhile."""
        slot = _Slot()
        with self._lock:
            self._slots.append(slot)
        try:
            while (batch := self._join(slot)) is not None:
                self._run(slot, batch)
                if not self._leave(slot, batch):
                    return False
        except Exception as error:
            self.setup.post(self.setup.fail, error)
        finally:
            with self._lock:
                self._slots.remove(slot)
                self._done += slot.done
                if slot.given_up < 0:
                    self._jobs -= 1
        return True

    def _join(self, slot: _Slot) -> RowBatch | None:
        """The oldest batch with rows left, decoded by whoever comes first."""
        with self._lock:
            if self._closed:
                return None
            if self._open:
                batch = self._open[0]
                self._workers[batch] += 1
                slot.batch = batch
                return batch
            if not self._arrived:
                return None
            arrived = self._arrived.popleft()
        columns = self.setup.arguments.columns(arrived)
        batch = RowBatch(self.function, self._codecs, columns, arrived.first_row, arrived.rows, arrived.waited)
        with self._lock:
            self._open.append(batch)
            self._workers[batch] = 1
            slot.batch = batch
        return batch

    def _run(self, slot: _Slot, batch: RowBatch) -> None:
        """Calls the function for rows of the batch until none is left or the thread must stop."""
        clock, call, values = self.setup.clock, self.function.call, batch.values
        plain, unordered = self._context_parameter is None, not self._ordered
        stride, stop = 1, slot.stop
        lengths, counts = [], []
        began = clock()
        while not stop.is_set():
            slot.began = began
            done = 0
            for index, arguments in islice(batch.pending, stride):
                slot.index = index
                done += 1
                try:
                    values[index] = (
                        call(*arguments) if plain else self._call_with_context(batch, index, arguments, 1, began)
                    )
                except BaseException as error:
                    self._failed(slot, batch, index, arguments, error)
                if unordered:
                    self._done_one(slot, batch, index)
            if not done:
                break
            slot.done += done
            now = clock()
            lengths.append((now - began) / done)
            counts.append(done)
            stride = min(stride * 2, MAX_STRIDE) if now - began < STRIDE_SECONDS / 2 else max(stride // 4, 1)
            began = now
        self.setup.metrics.observe_rows(lengths, counts)

    def _done_one(self, slot: _Slot, batch: RowBatch, index: int) -> None:
        """The row may leave, unless it was given up and has left before."""
        with self._lock:
            if slot.given_up != index:
                slot.index = -1
                batch.fresh.append(index)

    def _call_with_context(
        self, batch: RowBatch, index: int, arguments: tuple[Any, ...], attempt: int, began: float
    ) -> Any:
        deadline = began + self.options.timeout - batch.waited
        context = self.call_context(batch.first_row + index, 1, attempt, deadline)
        assert self._context_parameter is not None
        return self.function.call(*arguments, **{self._context_parameter: context})

    def _failed(
        self, slot: _Slot, batch: RowBatch, index: int, arguments: tuple[Any, ...], error: BaseException
    ) -> None:
        """Sees a row through after its first call failed: more attempts, or its error."""
        attempts, began = 1, slot.began
        deadline = began + self.options.timeout - batch.waited
        while not slot.stop.is_set():
            delay = self.retry.delay(error, attempts)
            if delay is None:
                retryable = self.retry.worthwhile(error)
                traced = len(batch.errors) < TRACEBACKS_PER_BATCH
                batch.fail(index, row_error(error, attempts, retryable=retryable, with_traceback=traced))
                return
            if self.setup.clock() + delay >= deadline:
                batch.fail(index, self.timeout_error(attempts, describe(error)))
                return
            if slot.stop.wait(delay):
                return
            attempts += 1
            batch.attempts[index] = attempts
            try:
                if self._context_parameter is None:
                    batch.values[index] = self.function.call(*arguments)
                else:
                    batch.values[index] = self._call_with_context(batch, index, arguments, attempts, began)
                return
            except BaseException as raised:
                error = raised

    def _leave(self, slot: _Slot, batch: RowBatch) -> bool:
        """Ends this thread's work on the batch, and the batch if nobody else works on it."""
        with self._lock:
            slot.batch = None
            slot.index = -1
            mine = slot.given_up < 0
            if mine:
                self._workers[batch] -= 1
            if batch in self._open and not (slot.stop.is_set() and not mine):
                self._open.remove(batch)
            finished = (
                not self._closed
                and batch not in self._open
                and self._workers.get(batch) == 0
                # A thread that was written off may hold one more row than the one it was given up for.
                and not (self._any_given_up and any(value is UNSET for value in batch.values))
            )
            if finished:
                del self._workers[batch]
        if finished:
            self._emit(batch, finished=True)
        return mine

    def _emit_all(self, batches: Sequence[RowBatch]) -> None:
        for batch in batches:
            self._emit(batch, finished=False)

    def _emit(self, batch: RowBatch, *, finished: bool) -> None:
        try:
            writer = self.setup.writer
            outputs = batch.outputs(writer) if self._ordered else batch.fresh_outputs(writer)
        except Exception as error:
            self.setup.post(self.setup.fail, error)
            return
        self.setup.post(self._deliver, outputs, batch.retries if finished else 0)
