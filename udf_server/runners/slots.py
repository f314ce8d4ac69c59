"""Slots show which row a worker (a coroutine or a thread) is processing, for the check of deadlines.

The worker writes only `batch` and `index`, so that the cost per row is small. The check of deadlines
reads them at intervals to find out how long a worker has been processing a row.
"""

import asyncio

from udf_server.runners.batches import RowBatch

__all__ = ["PoolWorker", "Slot"]


class Slot:
    """The row of a worker. `index` is -1 between rows; `batch` is None between batches."""

    __slots__ = ("_seen", "batch", "index")

    def __init__(self) -> None:
        self.batch: RowBatch | None = None
        self.index = -1
        self._seen: tuple[RowBatch | None, int, float] = (None, -1, 0.0)
        """The row found at the last `look`, and when it was first found."""

    def leave(self) -> None:
        """Mark the worker as between batches. `_seen` is reset too: it would keep the batch until the next `look`."""
        self.batch = None
        self.index = -1
        self._seen = (None, -1, 0.0)

    def look(self, now: float) -> tuple[RowBatch, int, float] | None:
        """The current row and the seconds since it was first seen; None between rows. Only for the deadline check."""
        batch, index = self.batch, self.index
        if batch is None or index < 0:
            return None
        seen_batch, seen_index, since = self._seen
        if seen_batch is not batch or seen_index != index:
            self._seen = (batch, index, now)
            since = now
        return batch, index, now - since

    def since(self, now: float) -> float:
        """When the current row was first seen by `look`; `now` if it was not seen yet."""
        batch, index, since = self._seen
        return since if batch is self.batch and index == self.index else now


class PoolWorker(Slot):
    """A coroutine of the pool and the row that it processes."""

    __slots__ = ("abandoned", "expired", "task", "told", "unused", "waited")

    def __init__(self) -> None:
        super().__init__()
        self.expired = -1
        """The row that was cancelled because of its deadline; -1 if none was."""
        self.told = 0.0
        """When `expired` was cancelled."""
        self.abandoned = False
        """Whether the row was given up although its call continues. The worker ends when the call ends."""
        self.waited = False
        """Whether a call has waited since the worker's turn began, so that the time since then is not the loop's."""
        self.unused = False
        """Whether it has taken no row since it had its turn."""
        self.task: asyncio.Task[None] | None = None
