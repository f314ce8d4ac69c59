"""The constant arguments of models: texts and JSON in WITH, and the columns that they become."""

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from remote_udf.types import spelled
from spark_client.base.errors import PlanError
from spark_client.base.types import spark_type

__all__ = ["constant", "literal"]


def constant(name: str, text: str, type_: pa.DataType) -> object:
    """The value of a text: itself for a parameter of type string, otherwise the text is JSON. Raises PlanError."""
    try:
        value = text if pa.types.is_string(type_) else json.loads(text)
        literal(value, type_)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        raise PlanError(
            f"parameter '{name}' has type {spelled(type_)}, and its value is not JSON of this type: structs and maps "
            "are objects, dates and timestamps are texts in the form of ISO 8601"
        ) from None
    return value


def literal(value: object, type_: pa.DataType) -> Column:
    """A column with a value of JSON, in the type of the parameter.

    Raises ValueError, TypeError, ArithmeticError or ArrowException if the value is not of the type.
    """
    if pa.types.is_union(type_):  # the parameter takes one of several types
        pa.scalar(value)
        return F.lit(value)
    column = F.lit(None) if value is None else _present(value, type_)
    return column.cast(spark_type(type_))


def _present(value: Any, type_: pa.DataType) -> Column:
    types = pa.types
    if isinstance(value, bool) and not types.is_boolean(type_):
        raise TypeError("true and false are no numbers")
    if types.is_list(type_):
        return F.array(*[literal(each, type_.value_type) for each in _of(list, value)])
    if types.is_struct(type_):
        parts = {field.name: field.type for field in type_}
        if unknown := _of(dict, value).keys() - parts.keys():
            raise ValueError(f"unknown fields {unknown}")
        return F.struct(*[literal(value.get(name), part).alias(name) for name, part in parts.items()])
    if types.is_map(type_):
        pairs = _of(dict, value).items()
        return F.create_map(*[each for k, v in pairs for each in (_key(k, type_), literal(v, type_.item_type))])
    if types.is_date(type_):
        return F.lit(dt.date.fromisoformat(_of(str, value)).isoformat())
    if types.is_timestamp(type_):
        time = dt.datetime.fromisoformat(_of(str, value))
        if (time.tzinfo is None) != (type_.tz is None):
            raise ValueError("a timestamp has a zone, a timestamp_ntz has none")
        return F.lit(time.isoformat())
    if types.is_decimal(type_):
        return F.lit(str(pa.scalar(Decimal(str(value)), type_).as_py()))
    if types.is_boolean(type_) or types.is_integer(type_) or types.is_floating(type_) or types.is_string(type_):
        # Arrow would make 1 of 1.5.
        return F.lit(pa.scalar(_of(int, value) if types.is_integer(type_) else value, type_).as_py())
    raise TypeError(f"JSON has no {type_}")


def _key(text: str, type_: pa.MapType) -> Column:
    """A key of a map, which is a text in JSON whatever its type."""
    number = pa.types.is_integer(type_.key_type) or pa.types.is_floating(type_.key_type)
    return literal(json.loads(text) if number else text, type_.key_type)


def _of(expected: type, value: Any) -> Any:
    if not isinstance(value, expected):
        raise TypeError(f"a {expected.__name__} is expected")
    return value
