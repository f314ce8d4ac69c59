"""Circuit looks at the breaker of one process: no call while it is open, and one test call at a time."""

from tests.simulation.oracles import Violation
from udf_server.limits.settings import GuardSettings

__all__ = ["Circuit"]


class Circuit:
    """What the breaker of a guard must have learned from the calls of its process."""

    def __init__(self, settings: GuardSettings, where: str) -> None:
        self._settings, self._where = settings, where
        self._failures = 0
        self._no_call_until: float | None = None
        """While the breaker is not closed: when it may allow the next test call."""
        self._tests = False
        """Whether it has allowed one since it opened."""

    def began(self, now: float) -> None:
        """A call begins. Raises Violation if the breaker should not have allowed it."""
        if self._no_call_until is not None:
            if now < self._no_call_until:
                early = self._no_call_until - now
                raise Violation(f"{self._where}: a call {early:g} s too early, but the guard has its breaker")
            self._tests, self._no_call_until = True, now + self._settings.breaker_delay

    def ended(self, now: float, went_well: bool | None) -> None:
        """A call has ended; None if it was cancelled because its client is gone, or answered elsewhere."""
        settings = self._settings
        if settings.breaker_failures is None or went_well is None:
            return
        self._failures = 0 if went_well else self._failures + 1
        if self._no_call_until is None:
            if self._failures >= settings.breaker_failures:
                self._no_call_until, self._tests = now + settings.breaker_delay, False
        elif self._tests or now >= self._no_call_until:
            self._no_call_until, self._tests = (None if went_well else now + settings.breaker_delay), False

    def look(self, closed: bool) -> None:
        """Compare with what the guard says of its breaker. Raises Violation."""
        if self._no_call_until is None and not closed:
            raise Violation(f"{self._where}: the breaker is open after {self._failures} failures")
