"""What calls cost: what a guard takes for a call, and what a budget holds for it by what earlier calls have spent."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remote_udf.functions import FunctionKind
from udf_server.base.call_scope import Spending
from udf_server.base.errors import InvalidConfig, InvalidCost
from udf_server.base.fairness import Party
from udf_server.declaring.functions import Function
from udf_server.limits.settings import CALLS, RateLimit

__all__ = ["GRACE_SECONDS", "CallCosts", "RunningCall", "Spender"]

log = logging.getLogger(__name__)


class CallCosts:
    """What calls of one function cost, in the units of its rates."""

    def __init__(self, key: str, rates: Sequence[RateLimit]) -> None:
        self._key, self._rates = key, rates
        self._units = {rate.unit for rate in rates} - {CALLS}
        self._compared = False
        """Whether the units of an estimate were compared with those of the rates."""

    def require(self, function: Function) -> None:
        """Raises InvalidConfig if it is not a scalar function, or if a rate has a unit that its calls do not cost."""
        if function.spec.kind is not FunctionKind.SCALAR:
            raise InvalidConfig(
                f"setting guards: {self._key} is an {function.spec.kind} function; guards are for scalar functions"
            )
        if self._units and function.cost is None:
            raise InvalidConfig(
                f"setting guards, function {self._key}: rate counts {', '.join(sorted(self._units))}, but the function "
                "is declared without `cost`, which says how much a call is going to cost"
            )

    @property
    def counts_units(self) -> bool:
        """Whether a rate counts another unit than calls."""
        return bool(self._units)

    def of(self, estimate: Mapping[str, float]) -> Sequence[float]:
        """What a call takes of each rate, of which this is expected. Raises InvalidCost if it never fits."""
        if not self._compared and estimate:
            self._compare(estimate)
        found = [1.0 if rate.unit == CALLS else estimate.get(rate.unit, 0.0) for rate in self._rates]
        for rate, amount in zip(self._rates, found, strict=True):
            if amount > rate.amount:
                raise InvalidCost(
                    f"function {self._key}: cost: a call of {amount:g} {rate.unit} never fits the rate {rate}"
                )
        return found

    def missed(self, costs: Sequence[float], spent: Mapping[str, float]) -> Sequence[float]:
        """What a call has spent beyond what it took of each rate; less than 0 if it has spent less."""
        return [spent.get(rate.unit, cost) - cost for rate, cost in zip(self._rates, costs, strict=True)]

    def _compare(self, estimate: Mapping[str, float]) -> None:
        """Warn if the first estimate lacks a unit of the rates: such a rate bounds nothing."""
        self._compared = True
        if missing := sorted(self._units - estimate.keys()):
            log.warning(
                "a rate counts a unit that `cost` of the function has not returned: use one name in both",
                extra={"function": self._key, "rate": ", ".join(missing), "cost": ", ".join(sorted(estimate))},
            )


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


GRACE_SECONDS = 1.0
"""How long a call may go on after its row has timed out, or its stream has ended, until nothing waits for it."""


@dataclass(slots=True, eq=False)
class RunningCall:
    """What one call takes of a budget, which uses it with its lock held.

    It may run forever, on a thread that its stream has written off.
    """

    estimate: Mapping[str, float]
    """What the function says that the call is going to cost."""
    party: Party
    """Its stream."""
    timeout: float
    """Seconds after which its row has an outcome without it."""
    spending: Spending
    """Where the call adds what it spends, for all of its budgets."""
    spender: Spender | None = None
    """That of the budget and the function, while it holds what it has taken."""
    costs: Sequence[float] = ()
    """What it has taken, by unit."""
    until: float = math.inf
    """When it is written off."""
    lost: Mapping[str, float] | None = None
    """What was counted as spent when it was written off, by unit."""
