"""The Python values that an Arrow type without nested types accepts."""

import datetime
import decimal
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.types import spelled

__all__ = ["nearest_decimals", "python_types", "rounded"]

_TABLE: list[tuple[Callable[[pa.DataType], bool], tuple[type, ...], tuple[type, ...]]] = [
    (pa.types.is_boolean, (bool, np.bool_), ()),
    (pa.types.is_integer, (int, np.integer), (bool, np.timedelta64)),
    (pa.types.is_floating, (float, int, np.floating, np.integer), (bool, np.timedelta64)),
    (pa.types.is_decimal, (decimal.Decimal, int), (bool,)),
    (pa.types.is_string, (str,), ()),
    (pa.types.is_binary, (bytes, bytearray, memoryview), ()),
    (pa.types.is_date, (datetime.date,), (datetime.datetime,)),
    (pa.types.is_time, (datetime.time,), ()),
    (pa.types.is_timestamp, (datetime.datetime,), ()),
    (pa.types.is_duration, (datetime.timedelta,), ()),
]


def python_types(type_: pa.DataType) -> tuple[tuple[type, ...], tuple[type, ...]] | None:
    """Return the classes that a type accepts, and their subclasses that it does not accept; None for any other type."""
    return next(((taken, refused) for check, taken, refused in _TABLE if check(type_)), None)


def rounded(value: Any, type_: pa.DataType) -> float:
    """Return the nearest value of a floating point type to a float or decimal, and the equal one to an integer.

    Raises OverflowError if there is none: for an integer with too many digits, or a finite value beyond the largest.
    """
    wide = float(value)
    with np.errstate(over="ignore"):
        narrow = float(np.float32(wide)) if pa.types.is_float32(type_) else wide
    if isinstance(value, (int, np.integer)):
        kept = math.isfinite(narrow) and int(narrow) == int(value)
    else:
        infinite = value.is_infinite() if isinstance(value, decimal.Decimal) else math.isinf(value)
        kept = math.isinf(narrow) == infinite
    if not kept:
        raise OverflowError(f"{spelled(type_)} cannot hold {value!r}")
    return wide


def nearest_decimals(
    values: Sequence[decimal.Decimal | int | None], type_: pa.DataType
) -> list[decimal.Decimal | None]:
    """Return the nearest values of a decimal type; of two, the one further from zero, as Spark's CAST does.

    pyarrow must get no others: if a value has many more digits, it reads memory outside of its table of powers of ten.
    Raises OverflowError if a value has too many digits before the point, or is not a number.
    """
    context = decimal.Context(prec=type_.precision, rounding=decimal.ROUND_HALF_UP)
    unit = decimal.Decimal(1).scaleb(-type_.scale)
    nearest: list[decimal.Decimal | None] = []
    for value in values:
        try:
            nearest.append(None if value is None else context.quantize(value, unit))
        except decimal.InvalidOperation:
            assert value is not None
            raise OverflowError(f"{spelled(type_)} cannot hold {decimal.Decimal(value):.6g}") from None
    return nearest
