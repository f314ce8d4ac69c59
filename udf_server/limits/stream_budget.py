"""StreamBudget is a budget for the calls of one function in one stream. A call takes of all its budgets or of none."""

from collections.abc import Callable, Mapping, Sequence

from remote_udf.errors import ErrorCode
from udf_server.base.call_scope import Spending, current_scope
from udf_server.base.fairness import Party
from udf_server.limits.budget import Budget, Payer
from udf_server.limits.budget_costs import RunningCall, Spender

__all__ = ["Bill", "StreamBudget", "take_all"]


class StreamBudget:
    """What the calls of one function for one job or caller may spend. Safe to use from any thread."""

    def __init__(self, current: Callable[[], Budget], function: str) -> None:
        """`current` returns the budget from which calls take that begin now."""
        self._current, self.function = current, function
        self._last = current(), current().spender(function)

    def spent(self, amounts: Mapping[str, float]) -> None:
        """Count what a call has reported, in the budget that holds it: at midnight that is no longer the current one.

        A thread that the function has started itself is not known to be a part of a call.
        """
        taken = (budget for owner, budget in current_scope.get().taken if owner is self)
        next(taken, self._current()).spent(amounts)

    def answered(self, rows: int, codes: Mapping[str, int]) -> None:
        """Count rows that have an outcome, with the number of failed ones by code."""
        refused = sum(codes.get(code, 0) for code in (ErrorCode.BUDGET_SPENT, ErrorCode.BUDGET_UNAVAILABLE))
        self._current().answered(rows - refused, sum(codes.values()) - refused)

    def now(self) -> tuple[Budget, Spender]:
        """The budget for a call that begins now, and its spender of the function."""
        budget = self._current()
        if self._last[0] is not budget:
            self._last = budget, budget.spender(self.function)
        return self._last


class Bill(RunningCall):
    """What one call takes of one budget."""

    __slots__ = ("budget", "owner")

    def __init__(
        self, owner: StreamBudget, estimate: Mapping[str, float], party: Party, timeout: float, spending: Spending
    ) -> None:
        super().__init__(estimate, party, timeout, spending)
        self.owner = owner
        self.budget: Budget | None = None
        """The budget that it has taken from, or has asked last."""

    def end(self, *, good: bool, called: bool = True) -> None:
        """Note that the call has ended, and whether it has a result. `called` is False if it was not made after all."""
        if self.budget is not None and self.spender is not None:
            spender, self.spender = self.spender, None
            self.budget.ended(self, spender, good=good, called=called)


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
            budget.take(bill, spender, cost)
        return None
    finally:
        for budget in locked:
            budget.lock.release()
