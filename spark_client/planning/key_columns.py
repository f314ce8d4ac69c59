"""Columns of keys and orders, which compare as Spark compares them."""

import re

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.errors import PlanError

__all__ = ["has_floats", "is_direction", "micros_without_zone", "normalized", "require_sorting", "sorts"]

_DIRECTION = re.compile(r" (ASC|DESC) NULLS (FIRST|LAST)$")


def normalized(column: Column, type_: T.DataType) -> Column:
    """The column with -0.0 as 0.0 and with a single NaN, as in Spark's GROUP BY and windows.

    So values that Spark considers equal are equal byte for byte.
    """
    if isinstance(type_, (T.FloatType, T.DoubleType)):
        return F.when(F.isnan(column), F.lit(float("nan"))).otherwise(column + F.lit(0.0)).cast(type_)
    if isinstance(type_, T.StructType) and has_floats(type_):
        parts = [normalized(column[field.name], field.dataType).alias(field.name) for field in type_.fields]
        return F.when(column.isNotNull(), F.struct(*parts))
    if isinstance(type_, T.ArrayType) and has_floats(type_):
        return F.transform(column, lambda each: normalized(each, type_.elementType))
    return column


def micros_without_zone(column: Column) -> Column:
    """A TIMESTAMP_NTZ as microseconds since 1970 in UTC. Spark's casts would use the time zone of the session."""
    seconds = F.hour(column) * 3600 + F.minute(column) * 60
    second = (F.date_part(F.lit("SECOND"), column) * 1_000_000).cast("bigint")
    return F.unix_date(F.to_date(column)).cast("bigint") * 86_400_000_000 + seconds.cast("bigint") * 1_000_000 + second


def sorts(type_: T.DataType, *, collated: bool = False) -> bool:
    """Whether Spark sorts and partitions by this type such that adjacent equal values are equal byte for byte.

    False for maps, and unless `collated` for strings with a collation, by which different strings may be equal.
    """
    if isinstance(type_, T.MapType) or (isinstance(type_, T.StringType) and not (collated or _is_binary(type_))):
        return False
    return all(sorts(part, collated=collated) for part in _parts(type_))


def require_sorting(type_: T.DataType, where: str, *, collated: bool = False) -> None:
    """Raises PlanError for a type by which rows can be neither sorted nor deduplicated."""
    if not sorts(type_, collated=collated):
        raise PlanError(
            f"{where}: type {type_.simpleString()} is not supported where rows are compared: use a text without "
            "collation, or the entries of a map as an array"
        )


def _is_binary(type_: T.StringType) -> bool:
    return str(getattr(type_, "collation", "UTF8_BINARY")) == "UTF8_BINARY"


def has_floats(type_: T.DataType) -> bool:
    """Whether `normalized` changes columns of this type."""
    return isinstance(type_, (T.FloatType, T.DoubleType)) or any(has_floats(part) for part in _parts(type_))


def _parts(type_: T.DataType) -> list[T.DataType]:
    if isinstance(type_, T.StructType):
        return [field.dataType for field in type_.fields]
    return [type_.elementType] if isinstance(type_, T.ArrayType) else []


def is_direction(frame: DataFrame, column: Column | str) -> bool:
    """Whether the column can be used for sorting only, and not be selected.

    Spark has no public way to ask. If a direction is selected, classic Spark analyzes it as a column named
    "x DESC NULLS LAST" and fails at run time; Spark Connect rejects it at once.
    """
    if isinstance(column, str):
        return False
    try:
        return _DIRECTION.search(frame.select(column).columns[0]) is not None
    except PySparkException:
        return True
