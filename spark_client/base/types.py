"""Conversion of Arrow types to Spark types and back, with the public classes of pyspark.sql.types."""

import pyarrow as pa
from pyspark.sql import types as spark

from remote_udf.errors import UnsupportedType
from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ, normalized

__all__ = ["arrow_type", "spark_type"]

_PAIRS: list[tuple[pa.DataType, type[spark.DataType]]] = [
    (pa.null(), spark.NullType),
    (pa.bool_(), spark.BooleanType),
    (pa.int8(), spark.ByteType),
    (pa.int16(), spark.ShortType),
    (pa.int32(), spark.IntegerType),
    (pa.int64(), spark.LongType),
    (pa.float32(), spark.FloatType),
    (pa.float64(), spark.DoubleType),
    (pa.string(), spark.StringType),
    (pa.string(), spark.CharType),
    (pa.string(), spark.VarcharType),
    (pa.binary(), spark.BinaryType),
    (pa.date32(), spark.DateType),
    (TIMESTAMP, spark.TimestampType),
    (TIMESTAMP_NTZ, spark.TimestampNTZType),
    (pa.duration("us"), spark.DayTimeIntervalType),
]
if hasattr(spark, "TimeType"):
    _PAIRS.append((pa.time64("ns"), spark.TimeType))
_SPARK = dict(reversed(_PAIRS))


def spark_type(type_: pa.DataType) -> spark.DataType:
    """The Spark type of a supported Arrow type; all fields and elements are nullable. Raises UnsupportedType."""
    type_ = normalized(type_)
    if type_ in _SPARK:
        return _SPARK[type_]()
    if pa.types.is_decimal(type_):
        return spark.DecimalType(type_.precision, type_.scale)
    if pa.types.is_list(type_):
        return spark.ArrayType(spark_type(type_.value_type))
    if pa.types.is_map(type_):
        return spark.MapType(spark_type(type_.key_type), spark_type(type_.item_type))
    if pa.types.is_struct(type_):
        return spark.StructType([spark.StructField(field.name, spark_type(field.type)) for field in type_])
    raise UnsupportedType(f"Arrow type {type_} does not exist in Spark")


def arrow_type(type_: spark.DataType, where: str) -> pa.DataType:
    """The Arrow type that Spark uses for a column of this type. Raises UnsupportedType, which names `where`."""
    kind = type(type_)
    for arrow, spark_kind in _PAIRS:
        if kind is spark_kind:
            return arrow
    if isinstance(type_, spark.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, spark.ArrayType):
        return pa.list_(pa.field("element", arrow_type(type_.elementType, where)))
    if isinstance(type_, spark.MapType) and not isinstance(type_.keyType, spark.NullType):
        key = pa.field("key", arrow_type(type_.keyType, where), nullable=False)
        return pa.map_(key, pa.field("value", arrow_type(type_.valueType, where)))
    if isinstance(type_, spark.StructType):
        if len({field.name for field in type_}) < len(type_.fields):
            raise UnsupportedType(f"{where}: {type_.simpleString()} has two fields with the same name")
        return pa.struct([pa.field(field.name, arrow_type(field.dataType, where)) for field in type_])
    raise UnsupportedType(f"{where}: type {type_.simpleString()} cannot be sent to a remote function")
