"""Limited calls: all that is between a runner's call of a function and the author's code, from the inside out."""

from collections.abc import Sequence

from udf_server.base.attempts import with_attempt_timeout
from udf_server.base.functions import Function
from udf_server.limits.guard import Guard
from udf_server.limits.hedge import Hedge
from udf_server.limits.stream_budget import StreamBudget

__all__ = ["limited"]


def limited(
    function: Function, *, timeout: float, guard: Guard | None = None, budgets: Sequence[StreamBudget] = (),
    hedge: Hedge | None = None, attempt_timeout: float | None = None,
) -> Function:  # fmt: skip
    """The function as one stream calls it. This is the only place that wraps calls.

    A second call of a hedge takes from the guard and the budgets for itself. The time of an attempt begins when they
    have let the call pass.

    Args:
        function: The function, bound to the rows or segments of the stream.
        timeout: The time of a row or segment, in seconds. Budgets do not wait for calls that exceed it.
        guard: The guard of the function, which all its streams share.
        budgets: Those of the caller and of the job, in this order: a call that its job refuses takes nothing of others.
        hedge: The second calls of the function, which must be `async def`.
        attempt_timeout: The time of an attempt in seconds; the function must be `async def`.
    """
    if attempt_timeout is not None:
        function = with_attempt_timeout(function, attempt_timeout)
    if hedge is not None:
        function = hedge.counted(function)
    if guard is not None:
        function = guard.wrap(function)
    for budget in budgets:
        function = budget.wrap(function, timeout)
    return function if hedge is None else hedge.wrap(function)
