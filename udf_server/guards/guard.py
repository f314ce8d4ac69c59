"""Guard limits the calls of an author's scalar function, if the operator has configured it."""

import asyncio
import functools
import time
from collections.abc import Callable, Sequence, Sized
from dataclasses import replace
from typing import Any

from remote_udf.functions import Execution, FunctionKind
from udf_server.base.call_scope import CallScope, current_scope
from udf_server.base.errors import InvalidConfig
from udf_server.base.functions import Function
from udf_server.base.spending import Spending
from udf_server.guards.call_costs import CallCosts
from udf_server.guards.gate import Gate
from udf_server.guards.guard_metrics import GuardMetrics
from udf_server.guards.outcomes import TIMED_OUT, WORKED, CallOutcome, of_error, of_result
from udf_server.guards.settings import GuardSettings

__all__ = ["Guard"]


class Guard:
    """The guards of one function. Waiting counts towards the row's deadline, and ends when the deadline passes.

    A guard counts a call as failed if it raises RetryableError, a retryable Failure, TimeoutError or OSError, or if its
    deadline cancels it. Any other exception concerns the row only. A call for many rows may name those that have
    failed: see `outcomes.py`. A call that is cancelled because its client is gone, or because the other one of two
    calls (`hedge-after`) has given the outcome, does not count.
    """

    def __init__(
        self,
        key: str,
        settings: GuardSettings,
        metrics: GuardMetrics,
        clock: Callable[[], float] = time.monotonic,
        *,
        shared: bool = False,
    ) -> None:
        """If `shared` is set, nothing is allowed before a Coordinator has joined `sharing` to a ledger."""
        self.key, self._clock = key, clock
        self._costs = CallCosts(key, settings.rate)
        self.gate = Gate(key, settings, metrics, clock, shared=shared)
        self.sharing = self.gate.sharing
        """The limits that processes share; None if the limits are those of this process."""

    def wrap(self, function: Function) -> Function:
        """The function with guarded calls.

        Raises InvalidConfig if it is not a scalar function, or if a rate has a unit that its calls do not cost.
        """
        if function.spec.kind is not FunctionKind.SCALAR:
            raise InvalidConfig(
                f"setting guards: {self.key} is an {function.spec.kind} function; guards are for scalar functions"
            )
        self._costs.require(function)
        wrapped = self._async(function) if asyncio.iscoroutinefunction(function.call) else self._plain(function)
        return replace(function, call=functools.wraps(function.call)(wrapped), guarded=True)

    def _async(self, function: Function) -> Callable[..., Any]:
        call, gate, clock, costs_of = function.call, self.gate, self._clock, self._costs.of(function)
        many = function.spec.execution in (Execution.VECTORIZED, Execution.BATCHED)

        async def guarded(*arguments: Any, **keywords: Any) -> Any:
            costs = costs_of(arguments) if costs_of else gate.one_call
            loop = asyncio.get_running_loop()
            began, source = clock(), gate.limits
            if not gate.takes_at_once(costs, began, loop):
                began, source = await gate.enter(costs, began, loop)
            scope = current_scope.get()
            spending = _counted(scope) if costs_of else None
            outcome: CallOutcome | None = WORKED
            try:
                result = await call(*arguments, **keywords)
                if many:
                    outcome = of_result(result)
                return result
            except asyncio.CancelledError:
                outcome = None if _is_needless(scope) else TIMED_OUT
                raise
            except Exception as error:
                outcome = of_error(error, _rows(arguments) if many else 1)
                raise
            finally:
                if spending is not None:
                    current_scope.set(scope)
                gate.leave(outcome, began, costs, source, spending, loop)

        return guarded

    def _plain(self, function: Function) -> Callable[..., Any]:
        call, gate, clock, costs_of = function.call, self.gate, self._clock, self._costs.of(function)
        many = function.spec.execution in (Execution.VECTORIZED, Execution.BATCHED)

        def guarded(*arguments: Any, **keywords: Any) -> Any:
            costs = costs_of(arguments) if costs_of else gate.one_call
            began, source = clock(), gate.limits
            if not gate.takes_at_once(costs, began, None):
                began, source = gate.enter_on_thread(costs, began)
            scope = current_scope.get()
            spending = _counted(scope) if costs_of else None
            outcome = WORKED
            try:
                result = call(*arguments, **keywords)
                if many:
                    outcome = of_result(result)
                return result
            except Exception as error:
                outcome = of_error(error, _rows(arguments) if many else 1)
                raise
            finally:
                if spending is not None:
                    current_scope.set(scope)
                gate.leave(outcome, began, costs, source, spending, None)

        return guarded


def _counted(scope: CallScope) -> Spending:
    """Where the call adds what it spends from now on: where its budgets count it, if it has any."""
    if scope.spending is not None:
        return scope.spending
    spending = Spending()
    current_scope.set(scope.counting(spending))
    return spending


def _is_needless(scope: CallScope) -> bool:
    """Whether the call was cancelled for another reason than its deadline, which is no failure of the service."""
    return scope.party.closed or (scope.race is not None and scope.race.decided)


def _rows(arguments: Sequence[Any]) -> int:
    """The number of rows of a call for many rows."""
    return next((len(each) for each in arguments if isinstance(each, Sized)), 1)
