"""Slots: which row a worker, a coroutine or a thread, is at, and how the watch over deadlines sees it.

The worker writes only `batch` and `index`, so that a row costs it next to nothing; since when it is
at a row, the watch finds out by looking from time to time.
"""

import asyncio

from udf_server.runners.batches import RowBatch

__all__ = ["PoolWorker", "Slot"]


class Slot:
    """`index` is -1 between rows, `batch` None between batches."""

    __slots__ = ("_seen", "batch", "index")

    def __init__(self) -> None:
        self.batch: RowBatch | None = None
        self.index = -1
        self._seen: tuple[RowBatch | None, int, float] = (None, -1, 0.0)
        """The row found at the last look, and when it was first found."""

    def leave(self) -> None:
        """Between batches now. What the watch remembers goes as well: it would hold the batch until the next look."""
        self.batch = None
        self.index = -1
        self._seen = (None, -1, 0.0)

    def look(self, now: float) -> tuple[RowBatch, int, float] | None:
        """The row the worker is at and for how long, as far as was seen; None between rows. For the watch only."""
        batch, index = self.batch, self.index
        if batch is None or index < 0:
            return None
        seen_batch, seen_index, since = self._seen
        if seen_batch is not batch or seen_index != index:
            self._seen = (batch, index, now)
            since = now
        return batch, index, now - since

    def since(self, now: float) -> float:
        """When the present row began, to within one look."""
        batch, index, since = self._seen
        return since if batch is self.batch and index == self.index else now


class PoolWorker(Slot):
    """A coroutine of the pool and the row it is at."""

    __slots__ = ("abandoned", "expired", "task", "told")

    def __init__(self) -> None:
        super().__init__()
        self.expired = -1
        """The row that was cancelled for its deadline; -1 if none was."""
        self.told = 0.0
        """When it was."""
        self.abandoned = False
        """The row was given up though its call goes on; the worker ends when the call does."""
        self.task: asyncio.Task[None] | None = None
