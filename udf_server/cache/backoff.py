"""Backoff says when a store that has failed is asked again."""

import math
from collections.abc import Callable

__all__ = ["Backoff"]

RETRY_SECONDS = (1.0, 30.0)
"""After a failure, the store is not used for this time, which doubles up to the second value."""


class Backoff:
    """The failures of one kind of operation since it last succeeded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.failures = 0
        self.logged = False
        """Whether the log says that the operation fails."""
        self._until = self._failed_at = 0.0
        self._patience = math.inf
        """An operation that may take longer than this has not failed: callers choose how long they wait."""

    def fails(self, seconds: float) -> bool:
        """Whether the operation has failed, and would have failed if it might have taken this time."""
        return self.failures > 0 and seconds <= self._patience

    def left(self, seconds: float) -> float:
        """For how long an operation that may take `seconds` is not tried."""
        return max(self._until - self._clock(), 0.0) if self.fails(seconds) else 0.0

    def failed(self, began: float, patience: float) -> None:
        """Wait longer after each failure. Operations that had begun at the last one are not failures of their own.

        `patience` is the time after which the operation was given up; infinite if the store has refused it.
        """
        if self.failures and began <= self._failed_at:
            self._patience = max(self._patience, patience)
            return
        self._failed_at, self._patience = self._clock(), patience
        self._until = self._failed_at + min(RETRY_SECONDS[0] * 2.0**self.failures, RETRY_SECONDS[1])
        self.failures = min(self.failures + 1, 10)

    def worked(self) -> None:
        """Wait no more."""
        self.failures, self.logged = 0, False
