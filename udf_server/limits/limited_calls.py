"""Limited calls: all that is between a runner's call of a function and the author's code, from the inside out."""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence, Sized
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

from remote_udf.durations import format_seconds
from remote_udf.functions import Execution
from udf_server.base.call_scope import (
    AttemptTimeout,
    CallScope,
    EmptyResult,
    NotCalled,
    Spending,
    current_scope,
    leave_scope,
)
from udf_server.declaring.functions import Function
from udf_server.limits.breaker import TIMED_OUT, WORKED, CallOutcome, of_error, of_result
from udf_server.limits.guard_account import GuardAccount
from udf_server.limits.hedge import Hedge
from udf_server.limits.limiter import Limiter
from udf_server.limits.stream_budget import Bill, StreamBudget
from udf_server.limits.waiters import Steps, TaskWaiter, ThreadWaiter, Waiter, on_loop, on_thread

__all__ = ["limited"]

P = ParamSpec("P")
T = TypeVar("T")


def limited(
    function: Function, limiter: Limiter | None = None, *, budgets: Sequence[StreamBudget] = (),
    timeout: float = float("inf"), hedge: Hedge | None = None, attempt_timeout: float | None = None,
    retry_empty: bool = False,
) -> Function:  # fmt: skip
    """The function as one stream calls it. This is the only place that wraps calls.

    A second call of a hedge takes from the limiter and the budgets for itself. The time of an attempt begins when they
    have let the call pass.

    Args:
        function: The function, bound to the rows or segments of the stream.
        limiter: That of the function, which all its streams share; budgets need one.
        budgets: Those of the caller and of the job. A call takes of all of them or of none.
        timeout: The time of a row or segment, in seconds. Budgets do not wait for calls that exceed it.
        hedge: The second calls of the function, which must be `async def`.
        attempt_timeout: The time of an attempt in seconds; the function must be `async def`.
        retry_empty: Whether a call raises EmptyResult if its result is empty, which is no failure for the limiter.
    """
    if attempt_timeout is not None:
        function = replace(function, call=_in_time(function.call, attempt_timeout))
    if hedge is not None:
        function = hedge.counted(function)
    if limiter is not None:
        function = _within(function, _Taking(limiter, function, budgets, timeout))
    function = function if hedge is None else hedge.wrap(function)
    if retry_empty:
        never_empty = _never_empty_awaited if function.is_async else _never_empty
        function = replace(function, call=never_empty(function.call))
    return function


# A tuple without names, because there is one per call.
_Held = tuple[
    Sequence[float], float, GuardAccount, asyncio.AbstractEventLoop | None, CallScope, CallScope | None, Sequence[Bill]
]
"""Of a call: its costs, when it began, the account it has taken from, its loop, the scope of its caller, its own if
something counts what it spends, and what it has taken of budgets."""


class _Taking:
    """What the calls of one function in one stream take, and return."""

    def __init__(self, limiter: Limiter, function: Function, budgets: Sequence[StreamBudget], timeout: float) -> None:
        self.limiter, self._function, self._budgets, self._timeout = limiter, function, budgets, timeout
        self._counts = function.cost is not None and limiter.costs.counts_units
        self._many = function.spec.execution in (Execution.VECTORIZED, Execution.BATCHED)
        self._is_async = function.is_async

    def take_at_once(self, arguments: Sequence[Any]) -> _Held | None:
        """Take what a call needs, if it need not wait. Nearly every call can, so it must be cheap."""
        if self._budgets:
            return None
        limiter = self.limiter
        costs = limiter.costs.of(self._function.estimated(arguments)) if self._counts else limiter.one_call
        loop = asyncio.get_running_loop() if self._is_async else None
        began, source = limiter.clock(), limiter.account
        if not limiter.takes_at_once(costs, began, loop):
            return None
        scope = current_scope.get()
        counted = self._counted(scope, ()) if self._counts else None
        return costs, began, source, loop, scope, counted, ()

    def take(self, arguments: Sequence[Any], make: Callable[[Sequence[float], Sequence[Bill]], Waiter]) -> Steps[_Held]:
        """The steps of a call that may have to wait. They raise a refusal, or what is thrown in."""
        limiter, scope = self.limiter, current_scope.get()
        estimate = self._function.estimated(arguments) if self._counts or self._budgets else {}
        costs = limiter.costs.of(estimate) if self._counts else limiter.one_call
        spending = scope.spending or Spending()
        bills = [Bill(owner, estimate, scope.party, self._timeout, spending) for owner in self._budgets]
        waiter = make(costs, bills)
        yield from limiter.enter(waiter)
        counted = self._counted(scope, bills, spending) if self._counts or bills else None
        return costs, waiter.began, waiter.source, waiter.loop, scope, counted, bills

    def worked(self, held: _Held, result: Any) -> None:
        """Return what a call held that has returned."""
        self._leave(held, of_result(result) if self._many else WORKED)
        for bill in held[6]:
            bill.end(good=True)

    def failed(self, held: _Held, error: BaseException, arguments: Sequence[Any]) -> None:
        """Return what a call held that has raised an exception."""
        outcome: CallOutcome | None = WORKED
        if isinstance(error, asyncio.CancelledError):
            outcome = None if _is_needless(held[4]) else TIMED_OUT
        elif isinstance(error, Exception):
            outcome = of_error(error, _rows(arguments) if self._many else 1)
        self._leave(held, outcome)
        for bill in held[6]:
            bill.end(good=False, called=not isinstance(error, NotCalled))

    def _leave(self, held: _Held, outcome: CallOutcome | None) -> None:
        costs, began, source, loop, scope, counted, _ = held
        spending = None
        if counted is not None:
            leave_scope(counted, scope)
            spending = counted.spending
        self.limiter.leave(outcome, began, costs, source, spending, loop)

    def _counted(self, scope: CallScope, bills: Sequence[Bill], spending: Spending | None = None) -> CallScope:
        """Enter the scope in which the call adds what it spends."""
        spending = spending or scope.spending or Spending()
        taken = (*scope.taken, *((bill.owner, bill.budget) for bill in bills)) if bills else scope.taken
        current_scope.set(counted := CallScope(scope.party, scope.deadline, spending, scope.race, taken))
        return counted


def _within(function: Function, taking: _Taking) -> Function:
    """The function whose calls take what they need first, on tasks and on threads alike."""
    call, take_at_once, take, worked, failed = (
        function.call, taking.take_at_once, taking.take, taking.worked, taking.failed
    )  # fmt: skip
    clock, what = taking.limiter.clock, f"function {taking.limiter.key}: its limits"

    async def on_task(*arguments: Any, **keywords: Any) -> Any:
        if (held := take_at_once(arguments)) is None:
            held = await on_loop(take(arguments, TaskWaiter))
        try:
            result = await call(*arguments, **keywords)
        except BaseException as error:
            failed(held, error, arguments)
            raise
        worked(held, result)
        return result

    def blocking(*arguments: Any, **keywords: Any) -> Any:
        if (held := take_at_once(arguments)) is None:
            held = on_thread(take(arguments, ThreadWaiter), clock, what)
        try:
            result = call(*arguments, **keywords)
        except BaseException as error:
            failed(held, error, arguments)
            raise
        worked(held, result)
        return result

    wrapped = on_task if function.is_async else blocking
    return replace(function, call=functools.wraps(call)(wrapped), guarded=True)


def _is_needless(scope: CallScope) -> bool:
    """Whether the call was cancelled for another reason than its deadline, which is no failure of the service."""
    return scope.party.closed or (scope.race is not None and scope.race.decided)


def _rows(arguments: Sequence[Any]) -> int:
    """The number of rows of a call for many rows."""
    return next((len(each) for each in arguments if isinstance(each, Sized)), 1)


def _in_time(call: Callable[P, Awaitable[T]], seconds: float) -> Callable[P, Awaitable[T]]:
    """The call of a function that is `async def`, which raises AttemptTimeout after this time."""

    @functools.wraps(call)
    async def limited(*arguments: P.args, **keywords: P.kwargs) -> T:
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                return await call(*arguments, **keywords)
        except TimeoutError:
            if not limit.expired():
                raise  # the function's own, with its own text
            raise AttemptTimeout(f"the attempt had no result within {format_seconds(seconds)}") from None

    return limited


def _never_empty(call: Callable[P, T]) -> Callable[P, T]:
    """The call of a function that is called row by row; it raises EmptyResult in place of an empty result."""

    @functools.wraps(call)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> T:
        return _not_empty(call(*arguments, **keywords))

    return checked


def _never_empty_awaited(call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    @functools.wraps(call)
    async def checked(*arguments: P.args, **keywords: P.kwargs) -> T:
        return _not_empty(await call(*arguments, **keywords))

    return checked


def _not_empty(value: T) -> T:
    if value is None or (isinstance(value, list) and all(each is None for each in value)):
        raise EmptyResult(value)
    return value
