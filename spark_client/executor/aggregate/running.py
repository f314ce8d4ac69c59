"""Spark's own aggregates as running values, for windows that fire early or late: rows are added and retracted.

The state is Arrow: sum and count of the non-null values, or the values with their counts. A sum of floating-point
numbers is that of the finite ones, beside which NaN and infinities are counted: no sum that has them can retract them.
"""

import decimal
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = ["Running"]

_WIDE = decimal.Context(prec=76)
"""Decimals of Spark have up to 38 digits. Those of Python are rounded to 28, also when 0 is added or a sign changes."""
_NAN = float("nan")
"""The object that represents every NaN, because a dictionary finds a NaN only by its identity."""


@dataclass(frozen=True)
class Running:
    """An aggregate: `function` is count, sum, avg, min or max of the column at `column`; None counts rows.

    `keeps_all` tells that rows may be retracted, so min and max keep all values.
    """

    function: str
    column: int | None
    distinct: bool
    argument: pa.DataType | None
    result: pa.DataType
    keeps_all: bool

    @property
    def has_values(self) -> bool:
        """Whether the state contains values instead of a sum."""
        return self.distinct or self.function in ("min", "max")

    @property
    def state(self) -> pa.DataType:
        """The type of the state."""
        if self.has_values:
            return self._values
        others = [("others", self._values)] if self._has_others else []
        return pa.struct([("sum", self._sum), ("count", pa.int64()), *others])

    @property
    def _values(self) -> pa.DataType:
        return pa.list_(pa.struct([("value", self.argument), ("count", pa.int64())]))

    @property
    def _has_others(self) -> bool:
        """Whether NaN and infinities are counted beside the sum."""
        return self.function in ("sum", "avg") and pa.types.is_floating(self.argument)

    @property
    def _sum(self) -> pa.DataType:
        type_ = self.argument or pa.int64()
        if pa.types.is_decimal(type_):
            return pa.decimal128(38, type_.scale)
        return pa.float64() if pa.types.is_floating(type_) else pa.decimal128(38, 0)

    def added(self, state: Any, values: Sequence[Any], signs: Sequence[int]) -> Any:
        """The state after these values are added (1) or retracted (-1); values are ignored for count(*)."""
        if self.has_values:
            return self._with_values(state, values, signs)
        counted = [(value, sign) for value, sign in zip(values, signs, strict=True)
                   if self.column is None or value is not None]  # fmt: skip
        total = 0 if state is None else state["sum"]
        others = []
        if self.function in ("sum", "avg"):
            for value, sign in counted:
                if self._has_others and not math.isfinite(value):
                    others.append((value, sign))
                else:
                    total = _plus(total, value) if sign > 0 else _minus(total, value)
        count = (0 if state is None else state["count"]) + sum(sign for _, sign in counted)
        found = {"sum": total, "count": count}
        return found | {"others": _counted(_others(state), others)} if self._has_others else found

    def _with_values(self, state: Any, values: Sequence[Any], signs: Sequence[int]) -> Any:
        found = _counted(state, zip(values, signs, strict=True))
        if self.function in ("min", "max") and not self.keeps_all and found:
            return [{"value": self._best(each["value"] for each in found), "count": 1}]
        return found

    def value(self, state: Any) -> Any:
        """The current value of the aggregate; without values it is null, except for count."""
        if not self.has_values:
            if self.function == "count":
                return state["count"]
            others = sum(each["value"] * each["count"] for each in _others(state))
            return self._total(state["sum"] + others if self._has_others else state["sum"], state["count"])
        present = [each["value"] for each in state if each["count"] > 0]
        if self.function == "count":
            return len(present)
        if self.function in ("sum", "avg"):
            total: Any = 0
            for each in present:
                total = _plus(total, each)
            return self._total(total, len(present))
        return self._best(present) if present else None

    def _best(self, values: Iterable[Any]) -> Any:
        """The minimum or the maximum; NaN is the largest value, as for Spark."""
        return (min if self.function == "min" else max)(values, key=lambda value: (_is_nan(value), value))

    def _total(self, total: Any, count: int) -> Any:
        if not count:
            return None
        if self.function == "avg":
            total = _WIDE.divide(total, decimal.Decimal(count)) if _exact(total) else total / count
        if pa.types.is_decimal(self.result):
            unit = decimal.Decimal(1).scaleb(-self.result.scale)
            return decimal.Decimal(total).quantize(unit, decimal.ROUND_HALF_UP, _WIDE)
        return float(total) if pa.types.is_floating(self.result) else int(total)


def _others(state: Any) -> Any:
    """What is counted beside a sum; a state that an earlier version wrote has them in its sum."""
    return (state or {}).get("others") or ()


def _counted(before: Any, changes: Iterable[tuple[Any, int]]) -> list[dict[str, Any]]:
    """The values with their counts after these are added (1) or retracted (-1), without nulls and counts of zero."""
    counts: dict[Any, int] = {_one_nan(each["value"]): each["count"] for each in before or ()}
    for value, sign in changes:
        if value is not None:
            counts[_one_nan(value)] = counts.get(_one_nan(value), 0) + sign
    return [{"value": value, "count": count} for value, count in counts.items() if count]


def _is_nan(value: Any) -> bool:
    return bool(value != value)  # noqa: PLR0124 - NaN


def _one_nan(value: Any) -> Any:
    return _NAN if _is_nan(value) else value


def _exact(value: object) -> bool:
    return isinstance(value, decimal.Decimal)


def _plus(total: Any, value: Any) -> Any:
    return _WIDE.add(total, value) if _exact(total) or _exact(value) else total + value


def _minus(total: Any, value: Any) -> Any:
    return _WIDE.subtract(total, value) if _exact(total) or _exact(value) else total - value
