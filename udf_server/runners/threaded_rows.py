"""ThreadedRows calls plain `def` functions once per row, in loops on threads.

One thread processes all rows of a cheap function. If the calls wait, more and more threads share the
same iterator of rows. Python cannot stop a thread: if the deadline of a row passes, the row gets its
error, its thread is written off, and another thread replaces it.
"""

import asyncio
import collections
import functools
import threading
from itertools import islice
from typing import Any

from remote_udf.options import DEFAULT_CAPACITY, OutputMode
from udf_server.base.call_scope import NO_CALL, CallScope, current_scope
from udf_server.runners.batches import REPORT_BYTES, UNSET, RowBatch
from udf_server.runners.outputs import Output
from udf_server.runners.runner import FLUSH_SECONDS, InputBatch, Runner, RunnerSetup
from udf_server.runners.slots import Durations, RowTimer, Slot

__all__ = ["ThreadedRows"]

QUANTUM_SECONDS = 0.005
"""A thread works for a stream at least this long before it changes to another stream that waits."""
SPREAD_SECONDS = 0.002
"""Initial interval between two checks of whether more threads are needed."""
SPREAD_ROW_SECONDS = 0.0002
"""If rows take longer than this, they are assumed to wait for something, and more threads are added."""
MAX_SPREAD_SECONDS = 0.1


class _Worker(Slot):
    """A thread and the row that it processes."""

    __slots__ = ("done", "given_up", "stop")

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self.done = 0
        self.given_up = -1
        """The row that timed out on this thread, after which the thread was written off; -1 if none did."""
        self.stop = stop


class ThreadedRows(Runner):
    """Calls the function for the rows of one stream on its threads. `_lock` guards the lists of work and workers."""

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        self._executor = setup.hosted.thread_executor
        self._threads = min(self.options.buffer_capacity or DEFAULT_CAPACITY, self._executor.limit)
        self._ordered = self.options.output_mode is OutputMode.ORDERED
        self._context_parameter = self.function.context_parameter
        self._lock = threading.Lock()
        self._emitting = threading.Lock()
        """Held while outcomes are written, because several threads may write, and a flush may meet the batch's end."""
        self._held_up = False
        """Whether no row begins until the client has read results."""
        self._arrived: collections.deque[InputBatch] = collections.deque()
        self._decoding = 0
        """Number of batches that have left `_arrived` and are not in `_open` yet."""
        self._open: list[RowBatch] = []
        """Batches that may have rows left to take, oldest first."""
        self._workers: dict[RowBatch, int] = {}
        self._crew: list[_Worker] = []
        self._jobs = 0
        """Number of threads that are running or were requested."""
        self._any_given_up = False
        self._done = 0
        """Number of rows processed by jobs that have ended."""
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
            for worker in self._crew:
                worker.stop.set()

    def tick(self) -> None:
        now = self.setup.clock()
        for worker in self._crew.copy():
            if (late := worker.overdue(now)) is not None:
                self._give_up(worker, *late)
        if not self._ordered and now - self._flushed >= self.setup.flush_seconds():
            self._flushed = now
            self.setup.spawn(self._flush())

    # The methods below run on the server's event loop.

    def _hire(self, count: int) -> None:
        with self._lock:
            count = min(count, self._threads - self._jobs)
            self._jobs += max(count, 0)
        for _ in range(count):
            self._executor.submit(self.setup.party, self._job)

    def _go_on(self) -> None:
        """Continue after the client has read results."""
        self._held_up = False
        if not self._closed:
            self._hire(1)

    def _spread(self, done_before: int, waited: float) -> None:
        """Double the number of threads if rows are slow and rows are left, and schedule the next check."""
        with self._lock:
            left = not self._closed and bool(self._arrived or self._decoding or self._open)
            done, active = self._done + sum(worker.done for worker in self._crew), self._jobs
        if not left:
            self._spreading = False
            return
        if slow := (done - done_before) * SPREAD_ROW_SECONDS < waited * active:
            self._hire(max(active, 1))
        wait = SPREAD_SECONDS if slow and active < self._threads else min(waited * 2, MAX_SPREAD_SECONDS)
        asyncio.get_running_loop().call_later(wait, self._spread, done, wait)

    def _give_up(self, worker: _Worker, batch: RowBatch, index: int) -> None:
        """Time out the row that this thread processes, and write off the thread."""
        with self._lock:
            if worker.batch is not batch or worker.index != index or worker.given_up == index or self._closed:
                return
            first = worker.given_up < 0
            worker.given_up = index
            worker.stop.set()
            batch.fail(index, self.setup.timeout_error(batch.attempts.get(index, 1)))
            batch.fresh.append(index)
            self._any_given_up = True
            if first:
                self._workers[batch] -= 1
                self._jobs -= 1
            if batch not in self._open:
                # All its rows are taken. Another thread must join the batch to find out whether it has ended.
                self._open.insert(0, batch)
        try:
            if first:
                self._executor.write_off()
        except Exception as error:
            self.setup.fail(error)
            return
        self._hire(1)

    async def _flush(self) -> None:
        """Send completed rows while the threads are busy."""
        with self._lock:
            # `_open` lacks the batches whose last rows are being processed, but these may have much to send.
            batches = [batch for batch in self._workers if batch.fresh]
        if batches:
            await asyncio.get_running_loop().run_in_executor(None, lambda: list(map(self._send, batches)))

    def _deliver(self, outputs: list[Output]) -> None:
        if not self._closed:
            for output in outputs:
                self.setup.emit(output)

    # The methods below run on the function's threads.

    def _job(self) -> bool:
        """Process rows until none is left. Returns False if the thread was written off meanwhile."""
        worker = _Worker(self.setup.hosted.executors.threads.event())
        again, until = False, self.setup.clock() + QUANTUM_SECONDS
        with self._lock:
            self._crew.append(worker)
        try:
            while not again and not self._holds_up() and (batch := self._join(worker)) is not None:
                self.setup.began(batch.first_row)
                exhausted = self._run(worker, batch, until)
                if not self._leave(worker, batch, exhausted=exhausted):
                    return False
                again = (not exhausted or self._executor.crowded) and not self._closed
        except Exception as error:
            self.setup.post(self.setup.fail, error)
        finally:
            if self.function.guarded:
                current_scope.set(NO_CALL)  # the thread must not keep an ended stream in memory
            with self._lock:
                self._crew.remove(worker)
                self._done += worker.done
                if worker.given_up < 0 and not again:
                    self._jobs -= 1
                # A batch arrived, or the client read results, while this thread was still counted in `_jobs`.
                missed = not (self._jobs or self._held_up or self._closed) and bool(self._arrived or self._open)
            if missed:
                self.setup.post(self._hire, 1)
        if again:
            self._executor.submit(self.setup.party, self._job)
        return True

    def _holds_up(self) -> bool:
        """Whether no row may begin because the client does not read. Once it has read enough, a thread is requested.

        Outcomes that are ready are sent, because other streams may wait for the room that they take.
        """
        if not self.setup.room.full:
            return False
        with self._lock:
            batches, told = list(self._workers), self._held_up
            self._held_up = True
        for batch in batches:
            self._send(batch)
        if told or not self.setup.room.when_free(functools.partial(self.setup.post, self._go_on)):
            return True
        self._held_up = False
        return False

    def _join(self, worker: _Worker) -> RowBatch | None:
        """The oldest batch with rows left. The first thread to join a batch decodes it."""
        with self._lock:
            if self._closed:
                return None
            if self._open:
                batch = self._open[0]
                self._workers[batch] += 1
                worker.batch = batch
                return batch
            if not self._arrived:
                return None
            arrived = self._arrived.popleft()
            self._decoding += 1
        batch = self.row_batch(arrived)
        with self._lock:
            self._decoding -= 1
            self._open.append(batch)
            self._workers[batch] = 1
            worker.batch = batch
        return batch

    def _run(self, worker: _Worker, batch: RowBatch, until: float) -> bool:
        """Call the function for rows of the batch until none is left or the thread must stop.

        It also stops if the client does not read results, or after `until` if other streams wait for a thread. Returns
        whether no row is left.
        """
        call, values = self.function.call, batch.values
        plain = self._context_parameter is None and not self.function.result.mutable and not self.function.guarded
        unordered, exhausted = not self._ordered, False
        durations, room, piece = Durations(), self.setup.room, self.setup.writer.piece_bytes
        timer, stop, rows, unreported = RowTimer(self.setup.clock, durations), worker.stop, 0, 0
        while not stop.is_set():
            done = 0
            for index, arguments in islice(batch.pending, timer.interval):
                worker.index = index
                done += 1
                try:
                    values[index] = call(*arguments) if plain else self._call(batch, index, arguments, 1)
                except BaseException as error:
                    self._failed(worker, batch, index, arguments, error)
                    unreported += batch.error_bytes(index)
                if unordered:
                    self._done_one(worker, batch, index)
            if not done:
                exhausted = True
                break
            worker.done += done
            now = timer.done(done)
            rows += done
            unreported += batch.made_bytes(index, done)
            if unreported > REPORT_BYTES and not stop.is_set():
                batch.results.add(unreported, rows)
                rows, unreported = 0, 0
                if batch.results.held >= piece:
                    self._send(batch)
            if room.full or (now > until and self._executor.crowded):
                break
        if not stop.is_set():
            batch.results.add(unreported, rows)
        self.setup.metrics.observe_rows(*durations.take())
        return exhausted

    def _done_one(self, worker: _Worker, batch: RowBatch, index: int) -> None:
        """Mark the row as ready to be sent, unless it was given up: then its error was marked before."""
        with self._lock:
            if worker.given_up != index:
                worker.index = -1
                batch.fresh.append(index)

    def _call(
        self, batch: RowBatch, index: int, arguments: tuple[Any, ...], attempt: int, deadline: float | None = None
    ) -> Any:
        """Call the function, with a context if it takes one. The value is copied if a later call may change it."""
        # Values are encoded after the last row, and the function may return the same object for several rows.
        copied = self.function.result.copied
        if self.function.guarded:
            deadline = deadline or self.setup.clock() + batch.timeout
            current_scope.set(CallScope(self.setup.party, deadline))
        if self._context_parameter is None:
            return copied(self.function.call(*arguments))
        if deadline is None:
            deadline = self.setup.clock() + batch.timeout
        context = self.setup.call_context(batch.first_row + index, 1, attempt, deadline, batch.columns, index)
        return copied(self.function.call_with(arguments, context))

    def _failed(
        self, worker: _Worker, batch: RowBatch, index: int, arguments: tuple[Any, ...], error: BaseException
    ) -> None:
        """Retry a row whose first call failed, until it has a value or its error."""
        attempts = self.attempts(batch, worker.since(self.setup.clock()))
        try:
            while not worker.stop.is_set():
                delay = self.delay(batch, index, attempts, error)
                if delay is None or worker.stop.wait(delay):
                    return
                self.begin_attempt(batch, index, attempts, error)
                try:
                    batch.values[index] = self._call(batch, index, arguments, attempts.made, attempts.deadline)
                    return
                except BaseException as raised:
                    error = raised
        finally:
            del error  # if it was raised here, it refers to this frame, and the frame refers to the batch

    def _leave(self, worker: _Worker, batch: RowBatch, *, exhausted: bool) -> bool:
        """End this thread's work on the batch. If no row and no other thread is left, end the batch too.

        Returns False if the thread was written off.
        """
        with self._lock:
            worker.leave()
            mine = worker.given_up < 0
            if mine:
                self._workers[batch] -= 1
            if exhausted and mine and batch in self._open:
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
            self._send(batch, ended=True)
        return mine

    def _send(self, batch: RowBatch, *, ended: bool = False) -> None:
        """Send the outcomes of a batch that are ready. Every row has one if the batch has `ended`."""
        try:
            with self._emitting:
                outputs = batch.outputs(self.setup.writer, ended=ended)
                if outputs:
                    self.setup.post(self._deliver, outputs)
        except Exception as error:
            self.setup.post(self.setup.fail, error)
