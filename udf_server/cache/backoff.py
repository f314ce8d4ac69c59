"""Backoff says when a store that has failed is asked again."""

from collections.abc import Callable

__all__ = ["Backoff"]

RETRY_SECONDS = (1.0, 30.0)
"""After a failure, the store is not used for this time, which doubles up to the second value."""


class Backoff:
    """The failures of one kind of operation since it last succeeded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.failures = 0
        self.until = 0.0
        """The operation is not tried before this time."""
        self._failed_at = 0.0
        self.logged = False
        """Whether the log says that the operation fails."""

    def failed(self, began: float) -> None:
        """Wait longer after each failure. Operations that had begun at the last one are not failures of their own."""
        if self.failures and began <= self._failed_at:
            return
        self._failed_at = self._clock()
        self.until = self._failed_at + min(RETRY_SECONDS[0] * 2.0**self.failures, RETRY_SECONDS[1])
        self.failures = min(self.failures + 1, 10)

    def worked(self) -> None:
        """Wait no more."""
        self.failures, self.until, self.logged = 0, 0.0, False
