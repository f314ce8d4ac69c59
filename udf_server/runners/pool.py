"""CoroutinePool is a fixed set of coroutines that pull rows from one iterator.

There is no task, timer or queue entry per row, so that a row costs a fraction of a microsecond.
There is no barrier between batches either: a worker takes its next row from the next
batch while other workers still wait for rows of this one.
"""

import asyncio
import collections
import threading
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from remote_udf.options import DEFAULT_CAPACITY, OutputMode
from udf_server.base.call_scope import CallScope, current_scope
from udf_server.hosting.turns import Turns
from udf_server.runners.batches import REPORT_ROWS, RowBatch
from udf_server.runners.outputs import Output
from udf_server.runners.runner import InputBatch, Runner
from udf_server.runners.sending import Sender
from udf_server.runners.slots import Durations, PoolWorker, RowTimer

__all__ = ["GRACE_SECONDS", "CoroutinePool", "PoolRunner"]

T = TypeVar("T")
STEP_SECONDS = 0.005
"""A worker whose calls never wait yields to the event loop after this time."""
GRACE_SECONDS = 1.0
"""How long a cancelled coroutine, or a loop that was asked to do something, may take to react."""


class PoolRunner(Runner):
    """A runner whose rows a pool processes. The methods below are called on the server's event loop, by the pool."""

    @abstractmethod
    def answered(self, pool: "CoroutinePool") -> None:
        """Note that the pool has checked its deadlines, so that its loop is not blocked."""

    @abstractmethod
    def abandoned(self) -> None:
        """Note that a call of the pool ignores its cancellation and was given up."""

    @abstractmethod
    def deliver(self, sender: Sender, outputs: list[Output]) -> None:
        """Accept the outputs of a pool, unless the pool was replaced."""


class CoroutinePool:
    """Has one worker per row that may be in flight. Workers start as rows arrive.

    Call its methods on the function's event loop, unless their docstring allows any thread.
    """

    def __init__(self, runner: PoolRunner, turns: Turns, post: Callable[..., object]) -> None:
        """`turns` are the turns of the function's event loop; `post` calls a function on that loop, from any thread."""
        self._runner = runner
        self._turns = turns
        self._setup = runner.setup
        options = runner.options
        self._capacity = options.buffer_capacity or DEFAULT_CAPACITY
        self._ordered = options.output_mode is OutputMode.ORDERED
        self._context_parameter = runner.function.context_parameter
        self._result = runner.function.result
        self.arrived: collections.deque[InputBatch] = collections.deque()
        """Batches that are not decoded yet; a worker decodes one when it has its turn."""
        self._queue: collections.deque[RowBatch] = collections.deque()
        """Batches with rows that no worker has taken yet."""
        self.sender = Sender(runner.setup, runner.deliver, turns, post)
        self._workers: list[PoolWorker] = []
        self._parked: list[asyncio.Future[None]] = []
        self._ready = 0
        """Number of workers that have yielded to the loop and then take their next row."""
        self._running: PoolWorker | None = None
        """The worker that was resumed last."""
        self._durations = Durations()
        self._closed = False
        self._gate = threading.Lock()
        """Ensures that a batch is either taken by this pool or left to its successor."""
        self.taken = 0
        """Number of batches taken from the runner."""

    def workers(self) -> list[PoolWorker]:
        """The workers that are running or parked, for checking deadlines. Safe to call from any thread."""
        return self._workers.copy()

    def close(self) -> int:
        """Start and take nothing more. Returns the number of batches taken. Safe to call from any thread."""
        with self._gate:
            self._closed = True
            self.sender.close()
            return self.taken

    def surrender(self) -> list[RowBatch]:
        """The rows that a closed pool leaves to its successor, with errors for the rows being processed.

        Safe to call from any thread.
        """
        timeout_error = self._setup.timeout_error
        return [
            batch.continued(
                {
                    worker.index: timeout_error(batch.attempts.get(worker.index, 1))
                    for worker in self._workers.copy()
                    if worker.batch is batch and worker.index >= 0
                }
            )
            for batch in list(self.sender.unfinished)
        ]

    def feed(self, batch: InputBatch) -> None:
        with self._gate:
            if self._closed:
                return
            self.taken += 1
            self.arrived.append(batch)
        self._turns.join(self._setup.party)
        self._wake()

    def take_over(self, stuck: "CoroutinePool") -> None:
        """Continue the work of a closed pool whose loop is blocked. The rows that it was processing are given up."""
        self._turns.join(self._setup.party)
        for batch in stuck.surrender():
            self._take(batch)
        self.arrived.extend(stuck.arrived)
        if self.arrived:
            self._wake()

    def cancel(self) -> None:
        self._closed = True
        self._setup.party.close()  # a guard must not take these calls for failures of the service
        self.arrived.clear()
        self._queue.clear()
        self.sender.cancel()
        for worker in self._workers:
            if worker.task is not None:
                worker.task.cancel()
                # A cancelled task keeps its frames, and the frames refer to the worker.
                worker.task = None
        self._workers.clear()
        self._parked.clear()

    def expire(self, overdue: Sequence[tuple[PoolWorker, RowBatch, int]]) -> None:
        """Give up those of these rows that their worker still processes."""
        self._setup.post(self._runner.answered, self)
        now = self._setup.clock()
        for worker, batch, index in overdue:
            if worker.batch is not batch or worker.index != index or worker.abandoned or worker.task is None:
                continue
            if worker.expired != index:
                worker.expired, worker.told = index, now
                worker.task.cancel()
            elif now - worker.told > GRACE_SECONDS:
                self._abandon(worker, batch)

    def _take(self, batch: RowBatch) -> None:
        if not batch.to_call:
            self._finish(batch)
            return
        self.sender.unfinished[batch] = None
        self._queue.append(batch)
        self._wake()
        if batch.fresh:
            self.sender.flush_soon()

    def _wake(self) -> None:
        """Wake or create one worker. If a call of that worker waits, the worker wakes two more.

        If a worker is about to take a row, none is woken: another one would only make each loop iteration longer.
        """
        if self._ready:
            return
        while self._parked:
            future = self._parked.pop()
            if not future.done():
                future.set_result(None)
                return
        if len(self._workers) < self._capacity:
            worker = PoolWorker()
            self._workers.append(worker)
            worker.task = asyncio.get_running_loop().create_task(self._work(worker))

    def _wake_others(self, worker: PoolWorker) -> None:
        """Wake two workers if a call of this one waits.

        If its calls only compute, more workers would only make each loop iteration longer.
        """
        if worker.index >= 0:
            worker.waited = True
            self._wake()
            self._wake()

    async def _work(self, worker: PoolWorker) -> None:
        """Run one worker until the pool is closed."""
        current_scope.set(CallScope(self._setup.party))
        try:
            await self._work_on(worker)
        finally:
            self._turns.leave(worker)

    async def _work_on(self, worker: PoolWorker) -> None:
        """Process rows, batch after batch, until the pool is closed.

        The loop over rows is the hottest one of the server: keep out of it what can be outside.
        """
        call, unordered = self._runner.function.call, not self._ordered
        plain = self._context_parameter is None and not self._result.mutable
        room, sender, piece = self._setup.room, self.sender, self._setup.writer.piece_bytes
        turns, call_soon = self._turns, asyncio.get_running_loop().call_soon
        timer = RowTimer(self._setup.clock, self._durations)
        stepped = timer.restart()
        while not self._closed:
            if not (self._queue or self.arrived) or (room.full and sender.holds_up(self._wake)):
                if worker.unused:
                    # Other workers have taken the rows: a stream with more workers than rows must not lose turns.
                    worker.unused = False
                    turns.forgo(self._setup.party, worker)
                else:
                    turns.leave(worker)
                await self._park()
                stepped = timer.restart()
                continue
            if not turns.enter(worker):
                await self._let_others(worker, None, ask=True)
                stepped, worker.waited = timer.restart(), False
            if not self._queue:
                if turns.pressed:
                    await self._decode_in_turn()
                else:
                    self._decode_next()
                continue
            batch = worker.batch = self._queue[0]
            batch.workers += 1
            self._setup.began(batch.first_row)
            values, woken, exhausted = batch.values, False, False
            while not self._closed:
                done, interval, self._running = 0, timer.interval, worker
                # islice would cost one more object per row that waits.
                for index, arguments in batch.pending:
                    worker.index = index
                    done += 1
                    if not woken:
                        woken = True
                        call_soon(self._wake_others, worker)
                    try:
                        values[index] = await (call(*arguments) if plain else self._call(batch, index, arguments, 1))
                        if worker.expired == index:
                            # The function suppressed its cancellation, but its deadline has passed.
                            raise TimeoutError
                    except BaseException as error:
                        if not await self._failed(worker, batch, index, arguments, error):
                            return
                        batch.results.add(batch.error_bytes(index))
                    if unordered:
                        batch.fresh.append(index)
                        if not sender.flushes:
                            sender.flush_soon()
                    if done == interval:
                        break
                worker.index = -1
                if not done:
                    exhausted = True
                    break
                worker.unused = False
                batch.unsized += done
                if batch.unsized >= REPORT_ROWS and not self._closed:
                    batch.report(index)
                now = timer.done(done)
                if room.full or batch.results.held >= piece:
                    # Outcomes must be sent as soon as possible: other streams wait for the room that they take.
                    sender.send_soon(batch)
                    if room.full:
                        turns.leave(worker)  # it has had its turn
                        break
                if self._running is not worker:
                    stepped = now  # other workers ran while a call of this one waited
                if turns.busy or now - stepped > STEP_SECONDS:
                    await self._let_others(worker, None if worker.waited else now - stepped, ask=turns.busy)
                    stepped, woken, worker.waited = timer.restart(), False, False
            worker.leave()
            if not self._closed:
                self._leave(batch, exhausted=exhausted)
            # Otherwise a worker that is parked, or was cancelled while parked, would keep its last batch in memory.
            del batch, values

    async def _let_others(self, worker: PoolWorker, cost: float | None, *, ask: bool) -> None:
        """Yield to the event loop for one iteration; with `ask`, until `Turns.turn` returns, which gets the `cost`."""
        self._ready += 1
        try:
            if ask:
                await self._turns.turn(self._setup.party, worker, cost)
                worker.unused = True
            else:
                await asyncio.sleep(0)
        finally:
            self._ready -= 1

    async def _decode_in_turn(self) -> None:
        """Wait until a batch was decoded, or until there is none left."""
        done = asyncio.get_running_loop().create_future()

        def decode() -> None:
            self._decode_next()
            if not done.done():
                done.set_result(None)

        self._turns.do(self._setup.party, decode)
        await done

    def _decode_next(self) -> None:
        """Decode the oldest batch that has arrived, if there is one."""
        with self._gate:
            if self._closed or not self.arrived:
                return
            batch = self.arrived.popleft()
        try:
            self._take(self._runner.row_batch(batch))
        except Exception as error:
            self._setup.post(self._setup.fail, error)

    async def _park(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._parked.append(future)
        await future

    def _call(
        self, batch: RowBatch, index: int, arguments: tuple[Any, ...], attempt: int, deadline: float | None = None
    ) -> Awaitable[Any]:
        """Call the function, with a context if it takes one. The value is copied if a later call may change it."""
        function = self._runner.function
        if self._context_parameter is None:
            called = function.call(*arguments)
        else:
            if deadline is None:
                deadline = self._setup.clock() + batch.timeout
            context = self._setup.call_context(batch.first_row + index, 1, attempt, deadline, batch.columns, index)
            called = function.call_with(arguments, context)
        return self._copied(called) if self._result.mutable else called

    async def _copied(self, called: Awaitable[T]) -> T:
        # Values are encoded after the last row, and the function may return the same object for several rows.
        return self._result.copied(await called)

    async def _failed(
        self, worker: PoolWorker, batch: RowBatch, index: int, arguments: tuple[Any, ...], error: BaseException
    ) -> bool:
        """Retry a row whose first call failed, until it has a value or its error.

        Returns False if the worker must end, because the pool is closed or the row was given up meanwhile.
        """
        runner = self._runner
        attempts = runner.attempts(batch, worker.since(self._setup.clock()))
        try:
            while not (self._closed or worker.abandoned):
                if worker.expired == index:
                    worker.expired = -1
                    assert worker.task is not None
                    worker.task.uncancel()
                    batch.fail(index, attempts.timed_out(error))
                    return True
                delay = runner.delay(batch, index, attempts, error)
                if delay is None:
                    return True
                try:
                    await asyncio.sleep(delay)
                    runner.begin_attempt(batch, index, attempts, error)
                    batch.values[index] = await self._call(batch, index, arguments, attempts.made, attempts.deadline)
                    if worker.expired == index:
                        raise TimeoutError
                    return True
                except BaseException as raised:
                    error = raised
            return False
        finally:
            del error  # if it was raised here, it refers to this frame, and the frame refers to the batch

    def _leave(self, batch: RowBatch, *, exhausted: bool) -> None:
        """Remove a worker that found no more rows in the batch, or that has to wait. The last worker ends the batch."""
        if exhausted:
            if self._queue and self._queue[0] is batch:
                self._queue.popleft()
            batch.exhausted = True
        batch.workers -= 1
        if not batch.workers and batch.exhausted:
            self._finish(batch)

    def _abandon(self, worker: PoolWorker, batch: RowBatch) -> None:
        """Replace a worker whose coroutine ignores its cancellation. Its row times out."""
        index = worker.index
        worker.abandoned = True
        self._turns.leave(worker)
        self._workers.remove(worker)
        batch.fail(index, self._setup.timeout_error(batch.attempts.get(index, 1)))
        self._setup.post(self._runner.abandoned)
        if not self._ordered:
            batch.fresh.append(index)
            self.sender.flush_soon()
        self._leave(batch, exhausted=False)
        self._wake()

    def _finish(self, batch: RowBatch) -> None:
        """End a batch of which every row has an outcome."""
        self._setup.metrics.observe_rows(*self._durations.take())
        self.sender.finish(batch)
