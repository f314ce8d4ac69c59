"""StreamBudget is a budget for the calls of one stream: it wraps the function that the stream calls."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from remote_udf.errors import ErrorCode
from udf_server.base.attempts import NotCalled
from udf_server.base.call_scope import CallScope, current_scope
from udf_server.base.functions import Function
from udf_server.limits.call_limit import CallLimit, within
from udf_server.limits.costs import RunningCall, Spender
from udf_server.limits.job_budget import JobBudget
from udf_server.limits.queue import NewWaiter, Steps, Waiter

__all__ = ["StreamBudget"]


class StreamBudget:
    """What the calls of one function for one job or caller may spend. Safe to use from any thread."""

    def __init__(self, current: Callable[[], JobBudget], function: str, clock: Callable[[], float]) -> None:
        """`current` returns the budget from which calls take that begin now."""
        self._current, self.function, self._clock = current, function, clock
        self._last = current(), current().spender(function)

    @property
    def current(self) -> JobBudget:
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

    def wrap(self, function: Function, timeout: float) -> Function:
        """The function whose calls take what they cost from the budget, or raise BudgetSpent.

        `timeout` is the time of a row or segment. The budget does not wait for calls that exceed it.
        """
        return within(function, _BudgetedCalls(self, function, timeout, self._clock))

    def now(self) -> tuple[JobBudget, Spender]:
        """The budget for a call that begins now, and its spender of the function."""
        budget = self._current()
        if self._last[0] is not budget:
            self._last = budget, budget.spender(self.function)
        return self._last


class _Held(NamedTuple):
    """What a budgeted call has taken."""

    budget: JobBudget
    running: RunningCall
    scope: CallScope


class _BudgetedCalls(CallLimit[_Held]):
    """What calls of one stream take of a budget."""

    def __init__(self, owner: StreamBudget, function: Function, timeout: float, clock: Callable[[], float]) -> None:
        self.what, self.clock = f"function {owner.function}: the budget", clock
        self._owner, self._function, self._timeout = owner, function, timeout

    def take_at_once(self, arguments: Sequence[Any]) -> _Held | None:
        return None

    def take(self, arguments: Sequence[Any], make: NewWaiter) -> Steps[_Held]:
        estimate, costs = self._function.estimated(arguments), None
        while costs is None:
            budget, spender = self._owner.now()
            taken = budget.take(spender, estimate, lambda: make(()))
            if not isinstance(taken, Waiter):
                costs = taken
                break
            try:
                yield taken
            except NotCalled as late:
                late.unavailable = budget.unavailable
                budget.forget(spender, taken)
                raise
            costs = budget.begun(taken)
        scope = current_scope.get()
        running = RunningCall(spender, costs, scope.party, self._timeout)
        budget.runs(running)
        current_scope.set(replace(scope, spending=running.spending, taken=(*scope.taken, (self._owner, budget))))
        return _Held(budget, running, scope)

    def worked(self, held: _Held, result: Any) -> None:
        current_scope.set(held.scope)
        held.budget.ended(held.running, good=True)

    def failed(self, held: _Held, error: BaseException, arguments: Sequence[Any]) -> None:
        current_scope.set(held.scope)
        held.budget.ended(held.running, good=False, called=not isinstance(error, NotCalled))
