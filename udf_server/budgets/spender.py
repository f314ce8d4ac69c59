"""Spender knows what the calls of one function cost, by what they have spent so far."""

from collections.abc import Mapping, Sequence

from udf_server.budgets.terms import CALLS

__all__ = ["Spender"]

FAILED_CALLS = 10
"""If this number of calls have failed and none has spent anything, it is assumed that they cost nothing."""
LATEST = 100
"""Number of latest calls from which the cost of the next one is inferred."""
SURE_CALLS, CAUTION = 30, 4.0
"""Of fewer calls than that, more is held for a call than any has cost: by this number over that of the calls."""


class Spender:
    """The calls of one function for one job. The budget uses it with its lock held.

    A call reports what it spends while it runs. Until it has ended, the budget holds an estimate for it: the function's
    own (`cost`), else what earlier calls have cost. Until the first call has ended, no other one begins. If a call is
    the only one, the mean is held for it, and otherwise the most that one of the latest calls has cost: many calls that
    run at once could exceed the budget together. What is not spent is free again when the call ends.
    """

    def __init__(self, units: Sequence[str]) -> None:
        self._units = units
        self._mean = [0.0] * len(units)
        self._most, self._most_before = [0.0] * len(units), [0.0] * len(units)
        """The most that a call has cost: of the latest calls, and of as many calls before them."""
        self._known = 0
        """Number of calls in the mean."""
        self._failed = 0
        self.running = 0

    def costs(self, estimate: Mapping[str, float]) -> Sequence[float] | None:
        """What to hold for a call of each unit; None if that is unknown and the call has to wait.

        `estimate` is the function's own.
        """
        if not self._known and self.running and any(unit != CALLS and unit not in estimate for unit in self._units):
            return None
        return [
            1.0 if unit == CALLS else estimate[unit] if unit in estimate else self._inferred(index)
            for index, unit in enumerate(self._units)
        ]

    def _inferred(self, index: int) -> float:
        if not self.running:
            return self._mean[index]
        caution = 1.0 if self._known >= SURE_CALLS else 1.0 + CAUTION / self._known
        return max(self._most[index], self._most_before[index]) * caution

    def ended(self, spent: Mapping[str, float], *, good: bool) -> None:
        """Note what a call has spent. One that failed and has spent nothing says little about the others."""
        self.running -= 1
        amounts = [0.0 if unit == CALLS else spent.get(unit, 0.0) for unit in self._units]
        if not good and not any(amounts):
            self._failed += 1
            if self._known or self._failed < FAILED_CALLS:
                return
        if self._known % LATEST == 0:
            self._most, self._most_before = [0.0] * len(self._units), self._most
        self._known += 1
        weight = 1.0 / min(self._known, LATEST)
        for index, amount in enumerate(amounts):
            self._mean[index] += (amount - self._mean[index]) * weight
            self._most[index] = max(self._most[index], amount)
