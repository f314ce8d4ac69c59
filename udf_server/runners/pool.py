"""CoroutinePool: a fixed set of coroutines that pull rows from one iterator.

No task, no timer and no queue entry per row: that is what makes a row cost a fraction of a
microsecond. There is no barrier between batches either; a worker takes its next row from the next
batch while others still wait in this one.
"""

import asyncio
import collections
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any

from remote_udf.options import OutputMode
from remote_udf.outcomes import RowError
from udf_server.failures import describe, row_error
from udf_server.runners.batches import RowBatch
from udf_server.runners.outputs import Output
from udf_server.runners.runner import TRACEBACKS_PER_BATCH, InputBatch

if TYPE_CHECKING:
    from udf_server.runners.async_rows import AsyncRows

__all__ = ["DEFAULT_CAPACITY", "GRACE_SECONDS", "CoroutinePool", "Slot"]

DEFAULT_CAPACITY = 100
FLUSH_SECONDS = 0.01
"""With unordered output, completed rows wait no longer than this for company."""
STEP_SECONDS = 0.005
"""A worker whose calls never wait hands the loop on after this long."""
GRACE_SECONDS = 1.0
"""How long a coroutine that was cancelled, or a loop that was asked something, may take to react."""


class Slot:
    """What one worker is doing. The server's loop reads it too, to watch deadlines."""

    __slots__ = ("abandoned", "batch", "began", "expired", "index", "task")

    def __init__(self) -> None:
        self.batch: RowBatch | None = None
        self.index = -1
        self.began = 0.0
        """When the row at work began; 0.0 between rows."""
        self.expired = 0.0
        """When the row at work was cancelled for its deadline; 0.0 if it was not."""
        self.abandoned = False
        """The row was given up though its call goes on; the worker ends when the call does."""
        self.task: asyncio.Task[None] | None = None


class CoroutinePool:
    """As many workers as rows may be in flight, started as rows come.

    Everything but the constructor and `overdue` runs on the function's event loop.
    """

    def __init__(self, runner: "AsyncRows") -> None:
        self._runner = runner
        self._setup = setup = runner.setup
        self._options = options = runner.options
        self._capacity = options.buffer_capacity or DEFAULT_CAPACITY
        self._ordered = options.output_mode is OutputMode.ORDERED
        self._codecs = [runner.function.codec_for(*target) for target in enumerate(setup.arguments.targets)]
        self._context_parameter = runner.function.context_parameter
        self._queue: collections.deque[RowBatch] = collections.deque()
        """Batches with rows nobody has taken yet."""
        self._unfinished: dict[RowBatch, None] = {}
        """Batches with rows that have no outcome yet, oldest first."""
        self._slots: list[Slot] = []
        self._parked: list[asyncio.Future[None]] = []
        self._flush: asyncio.TimerHandle | None = None
        self._durations: list[float] = []
        self._closed = False

    def overdue(self, now: float) -> list[Slot]:
        """Slots whose row is past its deadline. Safe to call from any thread."""
        timeout = self._options.timeout
        return [
            slot
            for slot in self._slots.copy()
            if (batch := slot.batch) is not None and slot.began and now > slot.began + timeout - batch.waited
        ]

    def surrender(self) -> list[RowBatch]:
        """Closes the pool for its successor: what is unfinished, with errors for rows at work. From any thread."""
        self._closed = True
        timeout_error = self._runner.timeout_error
        return [
            batch.continued(
                {
                    slot.index: timeout_error(batch.attempts.get(slot.index, 1))
                    for slot in self._slots.copy()
                    if slot.batch is batch and slot.began
                }
            )
            for batch in list(self._unfinished)
        ]

    def feed(self, batch: InputBatch) -> None:
        if self._closed:
            return
        try:
            columns = self._setup.arguments.columns(batch)
            self._take(
                RowBatch(self._runner.function, self._codecs, columns, batch.first_row, batch.rows, batch.waited)
            )
        except Exception as error:
            self._setup.post(self._setup.fail, error)

    def take_over(self, stuck: "CoroutinePool") -> None:
        """Goes on where a pool has stopped whose loop is blocked. Rows it was working on are given up."""
        for batch in stuck.surrender():
            self._take(batch)

    def cancel(self) -> None:
        self._closed = True
        self._queue.clear()
        self._unfinished.clear()
        for slot in self._slots:
            if slot.task is not None:
                slot.task.cancel()

    def expire(self, slots: Sequence[Slot]) -> None:
        """Gives up the rows of these slots, if they still are past their deadline."""
        self._setup.post(self._runner.answered, self)
        now = self._setup.clock()
        late = set(self.overdue(now))
        for slot in slots:
            if slot not in late or slot.abandoned:
                continue
            if not slot.expired:
                slot.expired = now
                assert slot.task is not None
                slot.task.cancel()
            elif now - slot.expired > GRACE_SECONDS:
                self._abandon(slot)

    def _take(self, batch: RowBatch) -> None:
        if not batch.owed:
            self._finish(batch)
            return
        self._unfinished[batch] = None
        self._queue.append(batch)
        self._wake()
        if batch.fresh:
            self._flush_soon()

    def _wake(self) -> None:
        """Sets one worker to work, or makes one. Each wakes two more once it has found a row."""
        while self._parked:
            future = self._parked.pop()
            if not future.done():
                future.set_result(None)
                return
        if len(self._slots) < self._capacity:
            slot = Slot()
            self._slots.append(slot)
            slot.task = asyncio.get_running_loop().create_task(self._work(slot))

    async def _work(self, slot: Slot) -> None:
        """One worker. The loop over rows is the hottest code of the server: nothing in it is there for show."""
        clock, call = self._setup.clock, self._runner.function.call
        plain, unordered = self._context_parameter is None, not self._ordered
        durations, queue = self._durations, self._queue
        stepped = clock()
        while not self._closed:
            if not queue:
                await self._park()
                stepped = clock()
                continue
            batch = slot.batch = queue[0]
            values, alone = batch.values, True
            now = clock()
            for index, arguments in batch.pending:
                slot.index = index
                slot.began = now
                if alone:
                    alone = False
                    self._wake()
                    self._wake()
                try:
                    value = await (call(*arguments) if plain else self._call(batch, index, arguments, 1, now))
                    if slot.expired:
                        # It swallowed the cancellation; its deadline has passed all the same.
                        raise TimeoutError
                    values[index] = value
                except BaseException as error:
                    if not await self._failed(slot, batch, index, arguments, error):
                        return
                slot.began = 0.0
                if unordered:
                    batch.fresh.append(index)
                    if self._flush is None:
                        self._flush_soon()
                batch.owed -= 1
                if not batch.owed:
                    self._finish(batch)
                later = clock()
                durations.append(later - now)
                now = later
                if now - stepped > STEP_SECONDS:
                    await asyncio.sleep(0)
                    if self._closed:
                        return
                    stepped = now = clock()
            slot.batch = None
            if queue and queue[0] is batch:
                queue.popleft()

    async def _park(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._parked.append(future)
        await future

    def _call(
        self, batch: RowBatch, index: int, arguments: tuple[Any, ...], attempt: int, began: float
    ) -> Awaitable[Any]:
        """Calls the function, with the context if it wants one."""
        if self._context_parameter is None:
            return self._runner.function.call(*arguments)
        deadline = began + self._options.timeout - batch.waited
        context = self._runner.call_context(batch.first_row + index, 1, attempt, deadline)
        return self._runner.function.call(*arguments, **{self._context_parameter: context})

    async def _failed(
        self, slot: Slot, batch: RowBatch, index: int, arguments: tuple[Any, ...], error: BaseException
    ) -> bool:
        """Sees a row through after its first call failed: more attempts, or its error.

        False means that the worker must end: the pool is closed, or the row was given up meanwhile.
        """
        attempts, last = 1, ""
        began = slot.began
        while True:
            if self._closed or slot.abandoned:
                return False
            if slot.expired:
                slot.expired = 0.0
                assert slot.task is not None
                slot.task.uncancel()
                batch.fail(index, self._runner.timeout_error(attempts, last))
                return True
            last = describe(error)
            delay = self._runner.retry.delay(error, attempts)
            if delay is None:
                retryable = self._runner.retry.worthwhile(error)
                traced = len(batch.errors) < TRACEBACKS_PER_BATCH
                batch.fail(index, row_error(error, attempts, retryable=retryable, with_traceback=traced))
                return True
            if self._setup.clock() + delay >= began + self._options.timeout - batch.waited:
                batch.fail(index, self._runner.timeout_error(attempts, last))
                return True
            try:
                await asyncio.sleep(delay)
                attempts += 1
                batch.attempts[index] = attempts
                value = await self._call(batch, index, arguments, attempts, began)
                if slot.expired:
                    raise TimeoutError
                batch.values[index] = value
                return True
            except BaseException as raised:
                error = raised

    def _abandon(self, slot: Slot) -> None:
        """The coroutine ignores its cancellation: its row times out, and another worker takes its place."""
        batch = slot.batch
        assert batch is not None
        slot.abandoned = True
        self._slots.remove(slot)
        error: RowError = self._runner.timeout_error(batch.attempts.get(slot.index, 1))
        batch.fail(slot.index, error)
        self._setup.post(self._runner.abandoned)
        if not self._ordered:
            batch.fresh.append(slot.index)
            self._flush_soon()
        batch.owed -= 1
        if not batch.owed:
            self._finish(batch)
        self._wake()

    def _flush_soon(self) -> None:
        if self._flush is None and not self._ordered:
            self._flush = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._flush_now)

    def _flush_now(self) -> None:
        self._flush = None
        writer = self._setup.writer
        outputs = [output for batch in list(self._unfinished) for output in batch.fresh_outputs(writer)]
        self._deliver(outputs, 0)

    def _finish(self, batch: RowBatch) -> None:
        """Every row of the batch has an outcome."""
        self._unfinished.pop(batch, None)
        writer = self._setup.writer
        try:
            outputs = batch.outputs(writer) if self._ordered else batch.fresh_outputs(writer)
        except Exception as error:
            self._setup.post(self._setup.fail, error)
            return
        self._setup.metrics.observe_rows(self._durations)
        self._durations.clear()
        self._deliver(outputs, batch.retries)

    def _deliver(self, outputs: list[Output], retries: int) -> None:
        if outputs or retries:
            self._setup.post(self._runner.deliver, self, outputs, retries)
