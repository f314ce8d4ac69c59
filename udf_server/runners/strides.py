"""Strides: how many rows a worker does between two looks at the clock.

One, while rows take long enough to be worth timing singly; hundreds, when a look at the clock would
cost as much as the row.
"""

from collections.abc import Callable

__all__ = ["Durations", "Strides"]

SECONDS = 0.001
"""A worker looks at the clock about this often."""
MOST_ROWS = 256


class Durations:
    """Mean seconds per row, and for how many rows each. Several workers of one thread may share it."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._rows: list[int] = []
        self.seconds, self.rows = self._seconds.append, self._rows.append
        """Add one of each, always both: a call less per row than a method would cost."""

    def take(self) -> tuple[list[float], list[int]]:
        """What was added since the last time."""
        taken = self._seconds.copy(), self._rows.copy()
        self._seconds.clear()
        self._rows.clear()
        return taken


class Strides:
    """The pace of one worker."""

    def __init__(self, clock: Callable[[], float], durations: Durations) -> None:
        self.length = 1
        self._clock = clock
        self._seconds, self._rows = durations.seconds, durations.rows
        self._began = clock()

    def restart(self) -> float:
        """The worker has done something else meanwhile. Returns the time."""
        self._began = self._clock()
        return self._began

    def done(self, rows: int) -> float:
        """This many rows were done since the last look; sets the next length. Returns the time."""
        now = self._clock()
        elapsed, self._began = now - self._began, now
        self._seconds(elapsed / rows)
        self._rows(rows)
        if elapsed < SECONDS / 2:
            self.length = min(self.length * 2, MOST_ROWS)
        elif self.length > 1:
            self.length = max(self.length // 4, 1)
        return now
