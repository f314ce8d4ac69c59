"""Bills are what one call takes of its budgets: of all of them, or of none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from udf_server.base.fairness import Party
from udf_server.base.spending import Spending
from udf_server.limits.budget import Budget, Payer
from udf_server.limits.costs import RunningCall, Spender

__all__ = ["Bill", "Owner", "take_all"]


class Owner(Protocol):
    """The part that a stream has of a budget, or of that of each day."""

    def now(self) -> tuple[Budget, Spender]:
        """The budget from which a call takes that begins now, and its spender of the function."""


@dataclass(slots=True, eq=False)
class Bill:
    """What one call takes of one budget."""

    owner: Owner
    estimate: Mapping[str, float]
    """What the function says that the call is going to cost."""
    party: Party
    timeout: float
    spending: Spending
    """Where the call adds what it spends, for all of its budgets."""
    running: RunningCall | None = None
    """What it has taken, once it has."""
    budget: Budget | None = None
    """The budget that it has taken from, or has asked last."""

    def end(self, *, good: bool, called: bool = True) -> None:
        """Note that the call has ended, and whether it has a result. `called` is False if it was not made after all."""
        if self.running is not None and self.budget is not None:
            running, self.running = self.running, None
            self.budget.ended(running, good=good, called=called)


def take_all(bills: Sequence[Bill], payer: Payer) -> Budget | None:
    """Take what a call costs of all its budgets. If one has too little now, take nothing, and return that one.

    It tells the payer to look again. Raises BudgetSpent if one is spent. Call `tell_if_over` of the budgets afterwards,
    without the lock of the payer.
    """
    found = [(bill, *bill.owner.now()) for bill in bills]
    locked = sorted((budget for _, budget, _ in found), key=lambda budget: budget.order)
    for budget in locked:
        budget.lock.acquire()
    try:
        costs = []
        for bill, budget, spender in found:
            bill.budget = budget
            budget.expect(payer)
            if (cost := budget.fits(spender, bill.estimate)) is None:
                budget.wait_for_more(payer)
                return budget
            costs.append(cost)
        for (bill, budget, spender), cost in zip(found, costs, strict=True):
            bill.running = budget.take(RunningCall(spender, cost, bill.party, bill.timeout, bill.spending))
        return None
    finally:
        for budget in locked:
            budget.lock.release()
