"""The Python values that an Arrow type without nested types accepts."""

import datetime
import decimal
from collections.abc import Callable

import numpy as np
import pyarrow as pa

__all__ = ["python_types"]

_TABLE: list[tuple[Callable[[pa.DataType], bool], tuple[type, ...], tuple[type, ...]]] = [
    (pa.types.is_boolean, (bool, np.bool_), ()),
    (pa.types.is_integer, (int, np.integer), (bool,)),
    (pa.types.is_floating, (float, int, np.floating, np.integer), (bool,)),
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
