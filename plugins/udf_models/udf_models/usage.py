"""Functions with usage: the struct of a value and what the call has cost, such as `complete_with_usage_small`."""

import functools
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa

from remote_udf.ddl import parse_type
from udf_server import BatchContext, CallContext, Failure

__all__ = ["parts_of", "usage_type", "with_usage", "with_usage_of_texts"]

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
        return _row(value, counting.spent)

    return counted


def with_usage_of_texts(code: Callable[..., Awaitable[list[Any]]]) -> Callable[..., Awaitable[list[Any]]]:
    """As `with_usage`, for a function that sends many texts in one request.

    A service counts the request. Each text gets the share of its bytes, in whole tokens, so that the sum is the count.
    """

    @functools.wraps(code)
    async def counted(context: BatchContext, text: list[str]) -> list[Any]:
        counting = _Counting(context)
        values = await code(cast("BatchContext", counting), text)
        spent = parts_of(counting.spent, [max(len(each.encode(errors="replace")), 1) for each in text])
        return [
            value if isinstance(value, Failure) else _row(value, each)
            for value, each in zip(values, spent, strict=True)
        ]

    return counted


def _row(value: Any, spent: Mapping[str, float]) -> dict[str, Any]:
    tokens = {name: int(spent[name]) if name in spent else None for name in _TOKENS}
    return {"value": value, **tokens, "usd": spent.get("usd")}


def parts_of(spent: Mapping[str, float], weights: Sequence[int]) -> list[dict[str, float]]:
    """What each part of a request has spent, by its weight: whole tokens, and the money of its tokens."""
    ends = list(itertools.pairwise([0, *itertools.accumulate(weights)]))
    counts = {name: int(spent[name]) for name in _TOKENS if name in spent}
    parts: list[dict[str, float]] = [
        {name: count * end // ends[-1][1] - count * start // ends[-1][1] for name, count in counts.items()}
        for start, end in ends
    ]
    if "usd" in spent:
        total = sum(sum(part.values()) for part in parts)
        for part in parts:
            part["usd"] = spent["usd"] * sum(part.values()) / total if total else 0.0
    return parts


class _Counting:
    """The context of a call that also adds up what the call spends."""

    def __init__(self, context: CallContext | BatchContext) -> None:
        self._context = context
        self.spent: dict[str, float] = {}

    def spend(self, **amounts: float) -> None:
        self._context.spend(**amounts)
        for unit, amount in amounts.items():
            self.spent[unit] = self.spent.get(unit, 0.0) + amount

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)
