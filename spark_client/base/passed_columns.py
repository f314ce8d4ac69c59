"""Runs mapInArrow over frames whose columns have types that it does not support.

Spark does not pass year-month intervals to Python. They are converted to a number of months and back.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from spark_client.base.identifiers import column_named

__all__ = ["map_in_arrow", "passed_type"]

_MONTH = T.YearMonthIntervalType(T.YearMonthIntervalType.MONTH, T.YearMonthIntervalType.MONTH)


def map_in_arrow(
    frame: DataFrame,
    operate: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: T.StructType | str,
) -> DataFrame:
    """Like `frame.mapInArrow(operate, schema)`, but `operate` receives and returns year-month intervals as int.

    A schema given as a string must not contain year-month intervals.
    """
    fields = frame.schema.fields
    if isinstance(schema, str) or not any(_has_months(field.dataType) for field in [*fields, *schema]):
        return frame.mapInArrow(operate, schema)
    given = frame.select(*(_cast(field, _MONTH, T.IntegerType()) for field in fields))
    sent = [T.StructField(f.name, _replaced(f.dataType, T.IntegerType()), f.nullable, f.metadata) for f in schema]
    return given.mapInArrow(operate, T.StructType(sent)).select(*(_cast(field, _MONTH, None) for field in schema))


def passed_type(type_: T.DataType) -> T.DataType:
    """The type in which Spark passes a column to Python."""
    return _replaced(type_, T.IntegerType())


def _cast(field: T.StructField, between: T.DataType, to: T.DataType | None) -> Column:
    """The column with its intervals cast to `to` via `between`: Spark casts numbers only to intervals of one unit."""
    column = column_named(field.name)
    if not _has_months(field.dataType):
        return column
    last = field.dataType if to is None else _replaced(field.dataType, to)
    return column.cast(_replaced(field.dataType, between)).cast(last).alias(field.name, metadata=field.metadata)


def _replaced(type_: T.DataType, by: T.DataType) -> T.DataType:
    """The type in which `by` replaces every year-month interval."""
    if isinstance(type_, T.YearMonthIntervalType):
        return by
    if isinstance(type_, T.ArrayType):
        return T.ArrayType(_replaced(type_.elementType, by), type_.containsNull)
    if isinstance(type_, T.MapType):
        return T.MapType(_replaced(type_.keyType, by), _replaced(type_.valueType, by), type_.valueContainsNull)
    if isinstance(type_, T.StructType):
        return T.StructType([T.StructField(f.name, _replaced(f.dataType, by), f.nullable, f.metadata) for f in type_])
    return type_


def _has_months(type_: T.DataType) -> bool:
    return _replaced(type_, T.NullType()) != type_
