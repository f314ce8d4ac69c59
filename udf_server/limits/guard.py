"""Guard limits the calls of an author's scalar function, if the operator has configured it."""

import asyncio
import time
from collections.abc import Callable, Sequence, Sized
from typing import Any

from remote_udf.functions import Execution, FunctionKind
from udf_server.base.call_scope import CallScope, current_scope
from udf_server.base.errors import InvalidConfig
from udf_server.base.functions import Function
from udf_server.base.spending import Spending
from udf_server.limits.breaker import TIMED_OUT, WORKED, CallOutcome, of_error, of_result
from udf_server.limits.call_limit import CallLimit, within
from udf_server.limits.costs import CallCosts
from udf_server.limits.gate import Gate
from udf_server.limits.guard_metrics import GuardMetrics
from udf_server.limits.local_limits import Limits
from udf_server.limits.queue import NewWaiter, Steps
from udf_server.limits.settings import GuardSettings

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
        return within(function, _GuardedCalls(self, function, self._costs, self._clock))


# A tuple without names, because there is one per call.
_Held = tuple[Sequence[float], float, Limits, asyncio.AbstractEventLoop | None, CallScope, Spending | None]
"""Of a guarded call: its costs, when it began, the limits it has taken from, its loop, its scope, what it spends."""


class _GuardedCalls(CallLimit[_Held]):
    """What calls of one function take of its guard."""

    def __init__(self, guard: Guard, function: Function, costs: CallCosts, clock: Callable[[], float]) -> None:
        self.what, self.clock = f"function {guard.key}: the guard", clock
        self._gate, self._costs_of = guard.gate, costs.of(function)
        self._many = function.spec.execution in (Execution.VECTORIZED, Execution.BATCHED)
        self._is_async = function.is_async

    def take_at_once(self, arguments: Sequence[Any]) -> _Held | None:
        gate, costs_of = self._gate, self._costs_of
        costs = gate.one_call if costs_of is None else costs_of(arguments)
        loop = asyncio.get_running_loop() if self._is_async else None
        began, source = self.clock(), gate.limits
        if not gate.takes_at_once(costs, began, loop):
            return None
        scope = current_scope.get()
        return costs, began, source, loop, scope, None if costs_of is None else _counted(scope)

    def take(self, arguments: Sequence[Any], make: NewWaiter) -> Steps[_Held]:
        gate, costs_of = self._gate, self._costs_of
        costs = gate.one_call if costs_of is None else costs_of(arguments)
        loop = asyncio.get_running_loop() if self._is_async else None
        began, source = yield from gate.enter(costs, self.clock(), loop, make)
        scope = current_scope.get()
        return costs, began, source, loop, scope, None if costs_of is None else _counted(scope)

    def worked(self, held: _Held, result: Any) -> None:
        self._leave(held, of_result(result) if self._many else WORKED)

    def failed(self, held: _Held, error: BaseException, arguments: Sequence[Any]) -> None:
        outcome: CallOutcome | None = WORKED
        if isinstance(error, asyncio.CancelledError):
            outcome = None if _is_needless(held[4]) else TIMED_OUT
        elif isinstance(error, Exception):
            outcome = of_error(error, _rows(arguments) if self._many else 1)
        self._leave(held, outcome)

    def _leave(self, held: _Held, outcome: CallOutcome | None) -> None:
        costs, began, source, loop, scope, spending = held
        if spending is not None:
            current_scope.set(scope)
        self._gate.leave(outcome, began, costs, source, spending, loop)


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
