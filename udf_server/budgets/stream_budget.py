"""StreamBudget is a budget for the calls of one stream: it wraps the function that the stream calls."""

import asyncio
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from remote_udf.errors import ErrorCode
from udf_server.base.attempts import NotCalled, WaitCancelled, WaitTimeout
from udf_server.base.call_scope import current_scope
from udf_server.base.functions import Function
from udf_server.budgets.job_budget import JobBudget
from udf_server.budgets.running_call import RunningCall
from udf_server.budgets.spender import Spender
from udf_server.guards.waiting import TaskWaiter, ThreadWaiter

__all__ = ["StreamBudget"]

POLL_SECONDS = 0.05
"""How often a thread that waits checks whether its stream has ended."""


class StreamBudget:
    """What the calls of one function for one job or caller may spend. Safe to use from any thread."""

    def __init__(self, current: Callable[[], JobBudget], function: str, clock: Callable[[], float]) -> None:
        """`current` returns the budget from which calls take that begin now."""
        self._current, self._function, self._clock = current, function, clock
        self._last = current(), current().spender(function)

    @property
    def current(self) -> JobBudget:
        """The budget from which a call takes that begins now."""
        return self._current()

    def _now(self) -> tuple[JobBudget, Spender]:
        """The budget for a call that begins now, and its spender of the function."""
        budget = self._current()
        if self._last[0] is not budget:
            self._last = budget, budget.spender(self._function)
        return self._last

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
        wrapped = self._async(function, timeout) if function.is_async else self._plain(function, timeout)
        return replace(function, call=functools.wraps(function.call)(wrapped), guarded=True)

    def _async(self, function: Function, timeout: float) -> Callable[..., Any]:
        call = function.call

        async def budgeted(*arguments: Any, **keywords: Any) -> Any:
            estimate, costs = function.estimated(arguments), None
            while costs is None:
                budget, spender = self._now()
                taken = budget.take(spender, estimate, _task_waiter)
                costs = await self._wait(budget, spender, taken) if isinstance(taken, TaskWaiter) else taken
            with self._running(budget, RunningCall(spender, costs, current_scope.get().party, timeout)):
                return await call(*arguments, **keywords)

        return budgeted

    async def _wait(self, budget: JobBudget, spender: Spender, waiter: TaskWaiter) -> Sequence[float] | None:
        try:
            await waiter.future
        except asyncio.CancelledError:
            budget.forget(spender, waiter)
            raise WaitCancelled(unavailable=budget.unavailable) from None
        return budget.begun(waiter)

    def _plain(self, function: Function, timeout: float) -> Callable[..., Any]:
        call = function.call

        def budgeted(*arguments: Any, **keywords: Any) -> Any:
            estimate, costs = function.estimated(arguments), None
            while costs is None:
                budget, spender = self._now()
                taken = budget.take(spender, estimate, _thread_waiter)
                costs = self._wait_on_thread(budget, spender, taken) if isinstance(taken, ThreadWaiter) else taken
            with self._running(budget, RunningCall(spender, costs, current_scope.get().party, timeout)):
                return call(*arguments, **keywords)

        return budgeted

    def _wait_on_thread(self, budget: JobBudget, spender: Spender, waiter: ThreadWaiter) -> Sequence[float] | None:
        scope = current_scope.get()
        party, deadline = scope.party, scope.deadline
        while not waiter.event.wait(min(POLL_SECONDS, max(deadline - self._clock(), 0.0))):
            if self._clock() >= deadline or party.closed:
                budget.forget(spender, waiter)
                message = f"function {self._function}: the budget did not allow the call before its deadline"
                raise WaitTimeout(message, unavailable=budget.unavailable)
        return budget.begun(waiter)

    @contextmanager
    def _running(self, budget: JobBudget, running: RunningCall) -> Iterator[None]:
        good, called = False, True
        budget.runs(running)
        scope = current_scope.get()
        current_scope.set(replace(scope, spending=running.spending, taken=(*scope.taken, (self, budget))))
        try:
            yield
            good = True
        except NotCalled:
            called = False
            raise
        finally:
            current_scope.set(scope)
            budget.ended(running, good=good, called=called)


def _task_waiter() -> TaskWaiter:
    return TaskWaiter(())


def _thread_waiter() -> ThreadWaiter:
    return ThreadWaiter(())
