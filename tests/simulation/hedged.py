"""Hedged looks at second calls of slow calls in one process: at most one for a call, and no more than their share."""

from collections import Counter
from typing import Any

from tests.simulation.oracles import Violation

__all__ = ["Hedged"]


class Hedged:
    """The calls of `slow` in one process. A call for a row that its stream calls already is a hedge."""

    def __init__(self, share: float, where: str) -> None:
        """`share` is the option `hedge-share`."""
        self._share, self._where = share, where
        self._running: Counter[Any] = Counter()
        self._first = self._hedges = 0

    def began(self, x: int, now: float, loop: Any, party: Any) -> None:
        """A call begins. Raises Violation if it is a hedge that should not have been sent."""
        running = self._running[x, party] = self._running[x, party] + 1
        if running == 1:
            self._first += 1
            return
        self._hedges += 1
        if running > 2:
            raise Violation(f"{self._where}: {running} calls of row {x} at once")
        if self._hedges > self._share * self._first:
            raise Violation(
                f"{self._where}: {self._hedges} hedges of {self._first} calls; hedge-share is {self._share}"
            )

    def ended(self, x: int, now: float, loop: Any, party: Any, went_well: bool | None) -> None:
        """A call has ended."""
        self._running[x, party] -= 1
