"""ManualClock: time that only a test moves, for functions whose calls have rows of several streams."""

import asyncio
import heapq
import itertools
from collections.abc import Callable

__all__ = ["ManualClock"]

SETTLING = 20
"""Iterations of the event loop after each step, so that what a timer starts has begun."""


class _ManualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock for `FunctionEnvironment`. Calling it returns the seconds that it was advanced.

    It moves the delays of merged calls and of their retries, and deadlines. A function that sleeps really sleeps.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _ManualTimer]] = []

    def __call__(self) -> float:
        return self._now

    def later(self, seconds: float, callback: Callable[[], object]) -> _ManualTimer:
        """Call back once the clock has been advanced by this time. Returns an object with `cancel`."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._now + seconds, next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Move the clock, and make all calls that are due meanwhile, in order."""
        await self._settle()
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
                await self._settle()
        self._now = until

    async def _settle(self) -> None:
        for _ in range(SETTLING):
            await asyncio.sleep(0)
