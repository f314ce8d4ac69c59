"""Spender knows what the calls of one function cost, by what they have spent so far."""

from collections.abc import Mapping, Sequence

from udf_server.budgets.terms import CALLS

__all__ = ["Spender"]

FAILED_CALLS = 10
"""This number of calls that have failed and spent nothing says as much as one good call that has spent nothing."""
LATEST = 100
"""Number of latest calls from which the cost of the next one is inferred."""
SURE_CALLS, CAUTION = 30, 4.0
"""Of fewer calls than that, more is held for a call than any has cost: by this number over that of the calls."""


class Spender:
    """The calls of one function for one job. The budget uses it with its lock held.

    A call reports what it spends while it runs. Until it has ended, the budget holds an estimate for it: the function's
    own (`cost`), else what earlier calls have cost. A call that spends nothing of a unit does not tell what others
    spend. So until one has reported the unit, at most as many calls run at once as have ended before, and one more: the
    first one is alone. After that, if a call is the only one, the mean is held for it, and otherwise the most that one
    of the latest calls has cost: many calls that run at once could exceed the budget together. What is not spent is
    free again when the call ends.
    """

    def __init__(self, units: Sequence[str]) -> None:
        self._units = units
        self._mean = [0.0] * len(units)
        self._most, self._most_before = [0.0] * len(units), [0.0] * len(units)
        """The most that a call has cost: of the latest calls that have spent the unit, and of as many before them."""
        self._known = [0] * len(units)
        """By unit: number of calls that have spent it."""
        self._good = self._failed = 0
        """Number of calls that have ended: those that were good or have spent anything, and the others."""
        self.running = 0
        """Number of calls that run and may end. The budget counts them."""

    def costs(self, estimate: Mapping[str, float]) -> Sequence[float] | None:
        """What to hold for a call of each unit; None if that is unknown and the call has to wait.

        `estimate` is the function's own.
        """
        if self.running > self._good + self._failed // FAILED_CALLS and any(
            unit != CALLS and unit not in estimate and not known
            for unit, known in zip(self._units, self._known, strict=True)
        ):
            return None
        return [
            1.0 if unit == CALLS else estimate[unit] if unit in estimate else self._inferred(index)
            for index, unit in enumerate(self._units)
        ]

    def _inferred(self, index: int) -> float:
        known = self._known[index]
        if not self.running or not known:
            return self._mean[index]
        caution = 1.0 if known >= SURE_CALLS else 1.0 + CAUTION / known
        return max(self._most[index], self._most_before[index]) * caution

    def ended(self, spent: Mapping[str, float], *, good: bool) -> None:
        """Note what a call has spent. One that failed and has spent nothing says little about the others."""
        if good or any(spent.values()):
            self._good += 1
        else:
            self._failed += 1
        for index, unit in enumerate(self._units):
            amount = spent.get(unit, 0.0)
            if unit == CALLS or not amount:
                continue
            if self._known[index] % LATEST == 0:
                self._most[index], self._most_before[index] = 0.0, self._most[index]
            self._known[index] += 1
            self._mean[index] += (amount - self._mean[index]) / min(self._known[index], LATEST)
            self._most[index] = max(self._most[index], amount)
