"""StoreAccess asks the store of the cache, and leaves it alone for some time after it has failed."""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import TypeVar

from udf_server.base.store import StoreError

__all__ = ["StoreAccess"]

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
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


class StoreAccess:
    """Operations on one store. It never fails: an operation without an answer has None."""

    def __init__(
        self, clock: Callable[[], float], errors: Callable[[str, int], object], took: Callable[[str, float], object]
    ) -> None:
        """`errors` counts failures by their reason; `took` gets the seconds of each operation with an answer."""
        self._clock, self._errors, self._took = clock, errors, took
        self._reading, self.writing = Backoff(clock), Backoff(clock)
        """A store that is full can still be read."""

    async def asked(self, operation: str, asked: Coroutine[None, None, Answer], seconds: float) -> Answer | None:
        """The answer of the store; None if it fails, takes too long, or has just failed."""
        began, side = self._clock(), self._reading if operation == "get" else self.writing
        if side.left(seconds):
            asked.close()
            self._errors("unavailable", 1)
            return None
        try:
            async with asyncio.timeout(seconds):
                answer = await asked
        except Exception as error:
            # Whatever it is, no row may fail because of it, and later writes must go on.
            self._failed(operation, error, began, seconds if isinstance(error, TimeoutError) else math.inf)
            return None
        if side.fails(seconds) and operation != "release":  # which a store that is full may allow
            self._worked(side)
        self._took(operation, self._clock() - began)
        return answer

    def _failed(self, operation: str, error: BaseException, began: float, patience: float) -> None:
        self._errors(operation, 1)
        side, effect = self.writing, "nothing new is kept, and rows may be called by several servers"
        if operation == "get":
            side, effect = self._reading, "functions are called without it"
            # It would not answer claims either, and rows wait for both.
            self.writing.failed(began, patience)
        side.failed(began, patience)
        if not (side.logged or self._reading.logged):
            side.logged = True
            why = str(error) or type(error).__name__
            unexpected = None if isinstance(error, (StoreError, OSError)) else error
            log.warning(
                "cache is unavailable; %s", effect, extra={"during": operation, "why": why}, exc_info=unexpected
            )  # fmt: skip

    def _worked(self, side: Backoff) -> None:
        if side.logged:
            log.info("cache is available again", extra={"for": "reading" if side is self._reading else "writing"})
        side.worked()
        if not self.writing.logged:
            self.writing.worked()
