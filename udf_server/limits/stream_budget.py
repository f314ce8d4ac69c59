"""StreamBudget is a budget for the calls of one function in one stream."""

from collections.abc import Callable, Mapping

from remote_udf.errors import ErrorCode
from udf_server.base.call_scope import current_scope
from udf_server.limits.budget import Budget
from udf_server.limits.costs import Spender

__all__ = ["StreamBudget"]


class StreamBudget:
    """What the calls of one function for one job or caller may spend. Safe to use from any thread."""

    def __init__(self, current: Callable[[], Budget], function: str) -> None:
        """`current` returns the budget from which calls take that begin now."""
        self._current, self.function = current, function
        self._last = current(), current().spender(function)

    @property
    def current(self) -> Budget:
        """The budget from which a call takes that begins now."""
        return self._current()

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
