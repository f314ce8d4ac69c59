"""Guarded looks at a function with a guard: the calls at once, the calls per time, the breaker, and fair shares."""

from collections import deque
from typing import Any

from tests.simulation.oracles import Violation
from tests.simulation.shares import Shares
from udf_server.guards.guard import Guard
from udf_server.guards.limits import ADAPTIVE_MOST
from udf_server.guards.rates import CALLS
from udf_server.guards.settings import GuardSettings

__all__ = ["Guarded"]


class Guarded:
    """The calls of one guarded function in one process."""

    def __init__(self, settings: GuardSettings, guard: Guard, where: str) -> None:
        self.guard = guard
        self._settings, self._where = settings, where
        self._most = settings.max_concurrency or (ADAPTIVE_MOST if settings.adaptive else None)
        self._loop: Any = None
        self._running = 0
        """Calls on this loop. A guard does not count those on a loop that was replaced."""
        self._rates = [rate for rate in settings.rate if rate.unit == CALLS]
        self._begun = [deque[float](maxlen=int(rate.amount)) for rate in self._rates]
        """The latest calls, for each rate as many as it allows in its time."""
        self._failures = 0
        self._no_call_until: float | None = None
        """While the breaker is not closed: when it may allow the next test call."""
        self._tests = False
        """Whether it has allowed one since it opened."""
        self.shares = Shares()

    def began(self, x: int, now: float, loop: Any, party: Any) -> None:
        """A call begins. Raises Violation if the guard should not have allowed it."""
        settings = self._settings
        self._running = self._running + 1 if loop is self._loop else 1
        self._loop = loop
        self.shares.began(x, now, loop, party)
        if self._most is not None and self._running > self._most:
            self._fail(f"{self._running} calls at once", f"max-concurrency {self._most}")
        for rate, begun in zip(self._rates, self._begun, strict=True):
            if len(begun) == begun.maxlen and now < begun[0] + rate.seconds:
                self._fail(f"{len(begun) + 1} calls in {now - begun[0]:g} s", str(rate))
            begun.append(now)
        if self._no_call_until is not None:
            if now < self._no_call_until:
                self._fail(f"a call {self._no_call_until - now:g} s too early", "its breaker")
            self._tests, self._no_call_until = True, now + settings.breaker_delay

    def ended(self, x: int, now: float, loop: Any, party: Any, went_well: bool | None) -> None:
        """A call has ended; None if it was cancelled because its client is gone, or answered elsewhere."""
        if loop is not self._loop:
            return
        self._running -= 1
        settings = self._settings
        if settings.breaker_failures is None or went_well is None:
            return
        self._failures = 0 if went_well else self._failures + 1
        if self._no_call_until is None:
            if self._failures >= settings.breaker_failures:
                self._no_call_until, self._tests = now + settings.breaker_delay, False
        elif self._tests or now >= self._no_call_until:
            self._no_call_until, self._tests = (None if went_well else now + settings.breaker_delay), False

    def look(self) -> None:
        """After an iteration of the loop. Raises Violation."""
        if self._no_call_until is None and not self.guard.gate.limits.closed:
            raise Violation(f"{self._where}: the breaker is open after {self._failures} failures")
        if self._most is not None or self._settings.rate:
            coming = 0 if self._most else max(self.guard.gate._in_use - self._running, 0)
            self.shares.look(self.guard.gate._waiting.queue, 2 * (self._most or 1) + 4, self._where, coming)

    def check_left(self) -> None:
        """After the last call. Raises Violation."""
        gate = self.guard.gate
        waiting = len(gate._waiting)
        if gate._in_use or waiting:
            raise Violation(f"{self._where}: {gate._in_use} places are taken and {waiting} calls wait at the end")

    def _fail(self, found: str, allowed: str) -> None:
        raise Violation(f"{self._where}: {found}, but the guard has {allowed}")
