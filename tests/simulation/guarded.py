"""Guarded looks at a function with a guard: the calls at once, the calls per time, the breaker, and fair shares."""

from collections import deque
from typing import Any

from tests.simulation.circuit import Circuit
from tests.simulation.oracles import Violation
from tests.simulation.pace import Pace
from tests.simulation.shares import Shares
from udf_server.limits.breaker import ADAPTIVE_MOST
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import CALLS, GuardSettings

__all__ = ["Guarded"]


class Guarded:
    """The calls of one guarded function in one process."""

    def __init__(self, settings: GuardSettings, guard: Limiter, where: str, process: Any) -> None:
        self.guard, self._process = guard, process
        self._settings, self._where = settings, where
        self._most = settings.max_concurrency or (ADAPTIVE_MOST if settings.adaptive else None)
        self._loop: Any = None
        self._running = 0
        """Calls on this loop. A guard does not count those on a loop that was replaced."""
        self._rates = [rate for rate in settings.rate if rate.unit == CALLS]
        self._pace = Pace(self._rates)
        self._begun = [deque[float](maxlen=int(rate.amount)) for rate in self._rates]
        """The latest calls, for each rate as many as it allows in its time."""
        self._circuit = Circuit(settings, where)
        self.shares = Shares()

    def began(self, x: int, now: float, loop: Any, party: Any) -> None:
        """A call begins. Raises Violation if the guard should not have allowed it."""
        self._running = self._running + 1 if loop is self._loop else 1
        self._loop = loop
        self.shares.began(x, now, loop, party)
        if self._most is not None and self._running > self._most:
            self._fail(f"{self._running} calls at once", f"max-concurrency {self._most}")
        for rate, begun in zip(self._rates, self._begun, strict=True):
            if len(begun) == begun.maxlen and now < begun[0] + rate.seconds:
                self._fail(f"{len(begun) + 1} calls in {now - begun[0]:g} s", str(rate))
            begun.append(now)
        self._pace.began(now, self._where, late=self._process.was_frozen or self._process.slow != 1.0)
        self._circuit.began(now)

    def ended(self, x: int, now: float, loop: Any, party: Any, went_well: bool | None) -> None:
        """A call has ended; None if it was cancelled because its client is gone, or answered elsewhere."""
        if loop is not self._loop:
            return
        self._running -= 1
        self._circuit.ended(now, went_well)

    def look(self) -> None:
        """After an iteration of the loop. Raises Violation."""
        self._circuit.look(self.guard.learned.closed)
        if self._most is not None or self._settings.rate:
            coming = 0 if self._most else max(self.guard.in_use - self._running, 0)
            self.shares.look(self.guard.waiting.queue, 2 * (self._most or 1) + 4, self._where, coming)

    def check_left(self) -> None:
        """After the last call. Raises Violation."""
        guard = self.guard
        waiting = len(guard.waiting)
        if guard.in_use or waiting:
            raise Violation(f"{self._where}: {guard.in_use} places are taken and {waiting} calls wait at the end")

    def _fail(self, found: str, allowed: str) -> None:
        raise Violation(f"{self._where}: {found}, but the guard has {allowed}")
