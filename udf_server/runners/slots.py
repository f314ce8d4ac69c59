"""What a worker of rows (a coroutine or a thread) notes about them: the current one, for deadlines, and their times.

The worker writes only `batch` and `index`, so that the cost per row is small. The check of deadlines reads them at
intervals to find out how long a worker has been processing a row. Time is measured with one clock read for several
rows: one if rows take long enough to be timed singly, and hundreds if a clock read would cost as much as a row.
"""

import asyncio
from collections.abc import Callable

from udf_server.runners.batches import RowBatch

__all__ = ["Durations", "PoolWorker", "RowTimer", "Slot"]


class Slot:
    """The row of a worker. `index` is -1 between rows; `batch` is None between batches."""

    __slots__ = ("_seen", "batch", "index")

    def __init__(self) -> None:
        self.batch: RowBatch | None = None
        self.index = -1
        self._seen: tuple[RowBatch | None, int, float] = (None, -1, 0.0)
        """The row found at the last check of deadlines, and when it was first found."""

    def leave(self) -> None:
        """Mark the worker as between batches. `_seen` is reset too: it would keep the batch until the next check."""
        self.batch = None
        self.index = -1
        self._seen = (None, -1, 0.0)

    def overdue(self, now: float) -> tuple[RowBatch, int] | None:
        """The current row if it was first seen here longer ago than it may take. Only for the deadline check."""
        batch, index = self.batch, self.index
        if batch is None or index < 0:
            return None
        seen_batch, seen_index, since = self._seen
        if seen_batch is not batch or seen_index != index:
            self._seen = (batch, index, now)
            since = now
        return (batch, index) if now - since > batch.timeout else None

    def since(self, now: float) -> float:
        """When the current row was first seen by `overdue`; `now` if it was not seen yet."""
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


SECONDS = 0.001
"""The approximate interval between two clock reads of a worker."""
MOST_ROWS = 256


class Durations:
    """Mean seconds per row, each with its number of rows. Several workers of one thread may share one object."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._rows: list[int] = []
        self.seconds, self.rows = self._seconds.append, self._rows.append
        """Call both, each with one value. One method for both would cost one call more per row."""

    def take(self) -> tuple[list[float], list[int]]:
        """Remove and return what was added since the last call."""
        taken = self._seconds.copy(), self._rows.copy()
        self._seconds.clear()
        self._rows.clear()
        return taken


class RowTimer:
    """Times the rows of one worker. `interval` is the number of rows before its next clock read."""

    def __init__(self, clock: Callable[[], float], durations: Durations) -> None:
        self.interval = 1
        self._clock = clock
        self._seconds, self._rows = durations.seconds, durations.rows
        self._began = clock()

    def restart(self) -> float:
        """Begin a new measurement, because the worker has done something else. Returns the time."""
        self._began = self._clock()
        return self._began

    def done(self, rows: int) -> float:
        """Record that this many rows were processed since the last clock read, and set `interval`. Returns the time."""
        now = self._clock()
        elapsed, self._began = now - self._began, now
        self._seconds(elapsed / rows)
        self._rows(rows)
        if elapsed < SECONDS / 2:
            self.interval = min(self.interval * 2, MOST_ROWS)
        elif self.interval > 1:
            self.interval = max(self.interval // 4, 1)
        return now
