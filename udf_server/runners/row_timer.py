"""RowTimer measures the time of rows, with one clock read for several rows.

The number of rows between two reads is one if rows take long enough to be timed singly, and hundreds if a clock read
would cost as much as a row.
"""

from collections.abc import Callable

__all__ = ["Durations", "RowTimer"]

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
