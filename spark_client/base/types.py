"""Spark's types as Arrow types, by the public classes of pyspark.sql.types, or as Spark passes columns to Python."""

from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import types as T

from remote_udf.errors import UnsupportedType
from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ, normalized
from spark_client.base.identifiers import column_named

__all__ = ["arrow_type", "map_in_arrow", "passed_type", "spark_type"]

_PAIRS: list[tuple[pa.DataType, type[T.DataType]]] = [
    (pa.null(), T.NullType),
    (pa.bool_(), T.BooleanType),
    (pa.int8(), T.ByteType),
    (pa.int16(), T.ShortType),
    (pa.int32(), T.IntegerType),
    (pa.int64(), T.LongType),
    (pa.float32(), T.FloatType),
    (pa.float64(), T.DoubleType),
    (pa.string(), T.StringType),
    (pa.string(), T.CharType),
    (pa.string(), T.VarcharType),
    (pa.binary(), T.BinaryType),
    (pa.date32(), T.DateType),
    (TIMESTAMP, T.TimestampType),
    (TIMESTAMP_NTZ, T.TimestampNTZType),
    (pa.duration("us"), T.DayTimeIntervalType),
]
if hasattr(T, "TimeType"):
    _PAIRS.append((pa.time64("ns"), T.TimeType))
_SPARK = dict(reversed(_PAIRS))
_MONTH = T.YearMonthIntervalType(T.YearMonthIntervalType.MONTH, T.YearMonthIntervalType.MONTH)


def spark_type(type_: pa.DataType) -> T.DataType:
    """The Spark type of a supported Arrow type; all fields and elements are nullable. Raises UnsupportedType."""
    type_ = normalized(type_)
    if type_ in _SPARK:
        return _SPARK[type_]()
    if pa.types.is_decimal(type_):
        return T.DecimalType(type_.precision, type_.scale)
    if pa.types.is_list(type_):
        return T.ArrayType(spark_type(type_.value_type))
    if pa.types.is_map(type_):
        return T.MapType(spark_type(type_.key_type), spark_type(type_.item_type))
    if pa.types.is_struct(type_):
        return T.StructType([T.StructField(field.name, spark_type(field.type)) for field in type_])
    raise UnsupportedType(f"Arrow type {type_} does not exist in Spark")


def arrow_type(type_: T.DataType, where: str) -> pa.DataType:
    """The Arrow type that Spark uses for a column of this type. Raises UnsupportedType, which names `where`."""
    kind = type(type_)
    for arrow, spark_kind in _PAIRS:
        if kind is spark_kind:
            return arrow
    if isinstance(type_, T.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, T.ArrayType):
        return pa.list_(pa.field("element", arrow_type(type_.elementType, where)))
    if isinstance(type_, T.MapType) and not isinstance(type_.keyType, T.NullType):
        key = pa.field("key", arrow_type(type_.keyType, where), nullable=False)
        return pa.map_(key, pa.field("value", arrow_type(type_.valueType, where)))
    if isinstance(type_, T.StructType):
        if len({field.name for field in type_}) < len(type_.fields):
            raise UnsupportedType(f"{where}: {type_.simpleString()} has two fields with the same name")
        return pa.struct([pa.field(field.name, arrow_type(field.dataType, where)) for field in type_])
    raise UnsupportedType(f"{where}: type {type_.simpleString()} cannot be sent to a remote function")


def map_in_arrow(
    frame: DataFrame,
    operate: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: T.StructType | str,
) -> DataFrame:
    """Like `frame.mapInArrow(operate, schema)`, but `operate` receives and returns year-month intervals as int.

    Spark does not pass such intervals to Python. They are converted to a number of months and back.
    A schema given as a string must not contain year-month intervals.
    """
    fields = frame.schema.fields
    if isinstance(schema, str) or not any(_has_months(field.dataType) for field in [*fields, *schema]):
        return frame.mapInArrow(operate, schema)
    given = frame.select(*(_cast(field, T.IntegerType()) for field in fields))
    sent = [T.StructField(f.name, _replaced(f.dataType, T.IntegerType()), f.nullable, f.metadata) for f in schema]
    return given.mapInArrow(operate, T.StructType(sent)).select(*(_cast(field, None) for field in schema))


def passed_type(type_: T.DataType) -> T.DataType:
    """The type in which Spark passes a column to Python."""
    return _replaced(type_, T.IntegerType())


def _cast(field: T.StructField, to: T.DataType | None) -> Column:
    """The column with its intervals cast to `to` via months: Spark casts numbers only to intervals of one unit."""
    column = column_named(field.name)
    if not _has_months(field.dataType):
        return column
    last = field.dataType if to is None else _replaced(field.dataType, to)
    return column.cast(_replaced(field.dataType, _MONTH)).cast(last).alias(field.name, metadata=field.metadata)


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
