"""An estimating function returns what calls of a function would cost, and does not call it."""

from dataclasses import replace
from typing import Any

import pyarrow as pa

from remote_udf.amounts import AMOUNTS
from remote_udf.functions import Execution
from udf_server.base.errors import InvalidCost
from udf_server.base.functions import Function
from udf_server.base.values import codec_for_type

__all__ = ["estimating"]


def estimating(function: Function) -> Function:
    """The function whose values are the estimates by its `cost`, `map<string, double>` by unit.

    If a call is for many rows, each of them gets an equal part. Guards, retries and context of the function do not
    apply: nothing is called.
    """
    spec = replace(function.spec, result=AMOUNTS)
    alone = replace(
        function, spec=spec, result=codec_for_type(AMOUNTS), context_parameter=None, context_position=None,
        takes_batch_context=False, guarded=False,
    )  # fmt: skip
    many = spec.execution in (Execution.VECTORIZED, Execution.BATCHED)

    def shares(arguments: tuple[Any, ...]) -> Any:
        found = alone.estimated(arguments)
        if not many:
            return found
        if not arguments:
            raise InvalidCost(f"function {spec.key}: calls without arguments have no estimate by row")
        rows = len(arguments[0])
        each = {unit: amount / rows for unit, amount in found.items()}
        return [each] * rows if spec.execution is Execution.BATCHED else pa.array([list(each.items())] * rows, AMOUNTS)

    async def estimate(*arguments: Any) -> Any:
        return shares(arguments)

    def estimate_on_thread(*arguments: Any) -> Any:
        return shares(arguments)

    return replace(alone, call=estimate if function.is_async else estimate_on_thread)
