"""Spark DDL types ("struct<lat:double,lon:double>") to Arrow types. The parser is sqlglot's."""

import pyarrow as pa
from sqlglot import ErrorLevel, exp
from sqlglot.errors import SqlglotError

from remote_udf.errors import UnsupportedType
from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ, require_supported

__all__ = ["parse_type"]

_SIMPLE: dict[exp.DType, pa.DataType] = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.CHAR: pa.string(),
    exp.DType.VARCHAR: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIME: pa.time64("ns"),
    exp.DType.TIMESTAMPTZ: TIMESTAMP,
    exp.DType.TIMESTAMPLTZ: TIMESTAMP,
    exp.DType.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}


def parse_type(text: str) -> pa.DataType:
    """The Arrow type of a Spark DDL type. Raises UnsupportedType, naming the text, if it is none.

    DECIMAL alone is DECIMAL(10,0), as in Spark (Spark SQL reference, "Data Types").
    """
    try:
        # The parser forgives a bracket that is never closed; a type with one is a typing error.
        if text.count("<") != text.count(">") or text.count("(") != text.count(")"):
            raise UnsupportedType(f"{text!r} is not a Spark type: brackets do not match")
        parsed = exp.DataType.build(text, dialect="spark", error_level=ErrorLevel.RAISE)
        return require_supported(_arrow(parsed), repr(text))
    except SqlglotError:
        raise UnsupportedType(f"{text!r} is not a Spark type") from None


def _arrow(parsed: exp.DataType) -> pa.DataType:
    kind, inner = parsed.this, parsed.expressions
    if isinstance(kind, exp.DType) and kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind == exp.DType.DECIMAL:
        precision, scale = [*(int(part.name) for part in inner), *(10, 0)[len(inner) :]][:2]
        return pa.decimal128(precision, scale)
    if kind == exp.DType.ARRAY and len(inner) == 1:
        return pa.list_(_arrow(inner[0]))
    if kind == exp.DType.MAP and len(inner) == 2:
        return pa.map_(_arrow(inner[0]), _arrow(inner[1]))
    if kind == exp.DType.STRUCT and all(isinstance(field, exp.ColumnDef) for field in inner):
        return pa.struct([pa.field(field.name, _arrow(field.args["kind"])) for field in inner])
    if isinstance(kind, exp.Interval):
        unit = kind.args["unit"]
        parts = {part.name.upper() for part in (unit.find_all(exp.Var) if unit else ())}
        if parts and parts <= {"DAY", "HOUR", "MINUTE", "SECOND"}:
            return pa.duration("us")
    raise UnsupportedType(f"type {parsed.sql('spark')} cannot be sent to a remote function")
