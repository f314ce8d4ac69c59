"""Python values of Arrow types: the classes that a type accepts, and scalar arguments of a call as Arrow values.

If the declared type of a scalar argument cannot hold a value unchanged, the value is refused: pyarrow alone would
convert 1.99 to 1, a datetime to a date, a datetime without a zone to UTC, and would drop fields that a struct does not
have.
"""

import dataclasses
import datetime
import decimal
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.types import TIMESTAMP, spelled

__all__ = ["nearest_decimals", "python_types", "rounded", "scalar_array"]

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
    """Return the classes that a type accepts, and their subclasses that it does not accept; None for a nested type."""
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


def scalar_array(value: Any, type_: pa.DataType) -> pa.Array:
    """Convert a value to an array of one row. None is null.

    A float or a decimal for a floating point type is rounded to the nearest value of the type, as in Spark; nothing
    else changes. A struct is a dictionary or a dataclass with exactly its fields, or a tuple by position; a map is a
    dictionary or a list of pairs.

    Raises:
        TypeError, ValueError, OverflowError or pa.ArrowException: the value is not of the type, or the type cannot
            hold it.

    """
    return pa.array([_checked(value, type_)], type_)


def _checked(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_list(type_):
        return [_checked(each, type_.value_type) for each in _required(value, (list, tuple, np.ndarray), type_)]
    if pa.types.is_map(type_):
        pairs = value.items() if isinstance(value, Mapping) else _required(value, (list, tuple), type_)
        return [(_key(key, type_), _checked(item, type_.item_type)) for key, item in pairs]
    if pa.types.is_struct(type_):
        return _fields(value, type_)
    accepted, refused = python_types(type_) or ((object,), ())
    if pa.types.is_floating(type_):
        accepted = (*accepted, decimal.Decimal)
    if isinstance(value, refused):
        raise _other_type(value, type_)
    return _exact(_required(value, accepted, type_), type_)


def _required(value: Any, accepted: tuple[type, ...], type_: pa.DataType) -> Any:
    if not isinstance(value, accepted):
        raise _other_type(value, type_)
    return value


def _other_type(value: Any, type_: pa.DataType) -> TypeError:
    return TypeError(f"{value!r} is of type {type(value).__name__}, not {spelled(type_)}")


def _key(key: Any, type_: pa.DataType) -> Any:
    if key is None:
        raise ValueError("a key of a map cannot be None")
    return _checked(key, type_.key_type)


def _fields(value: Any, type_: pa.DataType) -> dict[str, Any]:
    names = [field.name for field in type_]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        if value.keys() != set(names):
            raise ValueError(f"expected the fields {', '.join(names)}, got {', '.join(map(str, value)) or 'none'}")
        values = [value[name] for name in names]
    else:
        values = list(_required(value, (tuple,), type_))
        if len(values) != len(names):
            raise ValueError(f"expected {len(names)} fields ({', '.join(names)}), got {len(values)}")
    return {field.name: _checked(each, field.type) for field, each in zip(type_, values, strict=True)}


def _exact(value: Any, type_: pa.DataType) -> Any:
    """The value as pyarrow takes it. Raises ValueError if pyarrow would change it without an error."""
    if pa.types.is_floating(type_):
        return rounded(value, type_)
    if pa.types.is_decimal(type_):
        [nearest] = nearest_decimals([value], type_)
        if nearest != value:
            raise ValueError(f"{spelled(type_)} cannot hold {value} unchanged")
        return nearest
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise ValueError(f"{value!r} has nanoseconds")
    if pa.types.is_timestamp(type_):
        aware = type_ == TIMESTAMP
        if (value.utcoffset() is not None) != aware:
            raise ValueError(f"a {spelled(type_)} is a datetime {'with' if aware else 'without'} a time zone")
    if pa.types.is_time(type_) and value.tzinfo is not None:
        raise ValueError(f"a {spelled(type_)} is without a time zone")
    return value
