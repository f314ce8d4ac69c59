"""AsyncRows calls `async def` functions once per row, with many rows in flight.

A `CoroutinePool` processes the rows on the function's own event loop. AsyncRows runs on the server's
loop: it feeds the pool, watches deadlines, and replaces the pool if its loop blocks.
"""

import collections

from udf_server.runners.outputs import Output
from udf_server.runners.pool import GRACE_SECONDS, CoroutinePool, PoolRunner
from udf_server.runners.runner import InputBatch, RunnerSetup
from udf_server.runners.sending import Sender

__all__ = ["AsyncRows"]


class AsyncRows(PoolRunner):
    """Calls the function for the rows of one stream on the function's event loop."""

    def __init__(self, setup: RunnerSetup) -> None:
        super().__init__(setup)
        self._executor = setup.hosted.loop_executor
        self._pool: CoroutinePool | None = CoroutinePool(self, self._executor.turns, self._executor.post)
        """None after `cancel`."""
        self._asked = 0.0
        """When the pool was asked to check its deadlines; 0.0 if it has answered."""
        self._sent: collections.deque[InputBatch] = collections.deque()
        """Batches the pool may not have taken yet, oldest first."""
        self._taken = 0
        """Number of batches removed from `_sent` because the pool has taken them."""
        self._since = 0.0
        """When `tick` first saw the oldest batch of `_sent`; 0.0 if it saw none."""
        self._held: list[InputBatch] | None = None
        """Batches received while the pool is being replaced; None at other times."""

    def feed(self, batch: InputBatch) -> None:
        if self._pool is None:
            return
        if self._held is not None:
            self._held.append(batch)
        else:
            self._forget_taken(self._pool.taken)
            self._sent.append(batch)
            self._executor.post(self._pool.feed, batch)

    def cancel(self) -> None:
        # A pool and its runner refer to each other. This breaks the cycle, so that the collector is not needed.
        pool, self._pool = self._pool, None
        if pool is not None:
            self._sent.clear()
            self._executor.post(pool.cancel)

    def tick(self) -> None:
        now, pool = self.setup.clock(), self._pool
        if pool is None or self._held is not None:
            return
        overdue = [(worker, *late) for worker in pool.workers() if (late := worker.overdue(now)) is not None]
        if not overdue:
            self._asked = 0.0
        if self._is_stuck(pool, now):
            self._held = []
            self.setup.spawn(self._replace_pool(pool))
        elif overdue:
            self._asked = self._asked or now
            self._executor.post(pool.expire, overdue)

    def _is_stuck(self, pool: CoroutinePool, now: float) -> bool:
        """Whether the loop is blocked: the pool does not react to deadlines, or takes no batches.

        It is also blocked if another stream has replaced it, which matters while all rows of this stream are queued.
        """
        self._forget_taken(pool.taken)
        if self.setup.hosted.running_executor is not self._executor:
            return True
        if not self._sent:
            self._since = 0.0
        else:
            self._since = self._since or now
        return (self._asked > 0 and now - self._asked > GRACE_SECONDS) or (
            self._since > 0 and now - self._since > self.options.timeout + GRACE_SECONDS
        )

    def _forget_taken(self, taken: int) -> None:
        while self._taken < taken:
            self._taken += 1
            self._sent.popleft()
            self._since = 0.0

    def answered(self, pool: CoroutinePool) -> None:
        if pool is self._pool:
            self._asked = 0.0

    def abandoned(self) -> None:
        try:
            self.setup.hosted.write_off_call()
        except Exception as error:
            self.setup.fail(error)

    def deliver(self, sender: Sender, outputs: list[Output]) -> None:
        heard = self._pool is not None and self._pool.sender is sender
        for output in outputs:
            if heard:
                self.setup.emit(output)
            else:
                self.setup.room.give_back(output.size)

    async def _replace_pool(self, stuck: CoroutinePool) -> None:
        """Move to a new loop, because the function blocks this one. Rows being processed time out, the others move."""
        self._asked = 0.0
        self._forget_taken(stuck.close())
        try:
            self._executor = self.setup.hosted.replace_loop_executor(self._executor)
            await self.setup.hosted.open()
        except Exception as error:
            self.setup.fail(error)
            return
        if self._pool is None:
            return
        self._pool = CoroutinePool(self, self._executor.turns, self._executor.post)
        self._executor.post(self._pool.take_over, stuck)
        left, self._held = [*self._sent, *(self._held or ())], None
        self._sent.clear()
        self._taken, self._since = 0, 0.0
        for batch in left:
            self.feed(batch)
