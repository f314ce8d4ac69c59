"""Functions with usage: the struct of a value and what the call has cost, such as `complete_with_usage_small`."""

import functools
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pyarrow as pa

from remote_udf.ddl import parse_type
from udf_server import CallContext

__all__ = ["usage_type", "with_usage"]

_TOKENS = ("tokens_in", "tokens_out")


def usage_type(value: pa.DataType | str) -> pa.DataType:
    """The type of the struct, given that of the value."""
    value = parse_type(value) if isinstance(value, str) else value
    counts = [(name, pa.int64()) for name in _TOKENS]
    return pa.struct([("value", value), *counts, ("usd", pa.float64())])


def with_usage(code: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return a function like `code`, whose first parameter is its context, that returns such a struct.

    All requests of a call count, also one whose answer had to be repaired. What the service does not say is null.
    """

    @functools.wraps(code)
    async def counted(context: CallContext, *arguments: Any, **named: Any) -> dict[str, Any]:
        counting = _Counting(context)
        value = await code(cast("CallContext", counting), *arguments, **named)
        spent = counting.spent
        tokens = {name: int(spent[name]) if name in spent else None for name in _TOKENS}
        return {"value": value, **tokens, "usd": spent.get("usd")}

    return counted


class _Counting:
    """The context of a call that also adds up what the call spends."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self.spent: dict[str, float] = {}

    def spend(self, **amounts: float) -> None:
        self._context.spend(**amounts)
        for unit, amount in amounts.items():
            self.spent[unit] = self.spent.get(unit, 0.0) + amount

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
