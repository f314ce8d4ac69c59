"""Converts Spark DDL types ("struct<lat:double,lon:double>") to Arrow types, with sqlglot's parser."""

import functools
import re

import pyarrow as pa
import sqlglot
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


@functools.lru_cache(maxsize=256)  # the parser takes a millisecond, and functions share types
def parse_type(text: str) -> pa.DataType:
    """Return the Arrow type of a Spark DDL type.

    DECIMAL alone is DECIMAL(10,0), as in Spark (Spark SQL reference, "Data Types").

    Raises:
        UnsupportedType: The text is not a type that can be sent. The message has the text.
    """
    try:
        return require_supported(_arrow(_parsed(text)), repr(text))
    # Extreme nesting exceeds the parser's recursion limit.
    except (SqlglotError, RecursionError):
        raise UnsupportedType(f"{text!r} is not a Spark type") from None
    except UnsupportedType as error:
        raise UnsupportedType(f"{text!r}: {error}") from None


def _parsed(text: str) -> exp.DataType:
    """Parse the whole text as a type, in a CAST: the parser for types alone ignores text that follows a type."""
    text = re.sub(r"(?i)\bstruct\s*<>", "struct< >", text)  # "<>" is an operator otherwise
    statements = sqlglot.parse(f"CAST(NULL AS {text}\n)", dialect="spark", error_level=ErrorLevel.RAISE)
    cast = statements[0]
    if (
        len(statements) != 1
        or not isinstance(cast, exp.Cast)
        or any(cast.args[name] for name in cast.args if name not in ("this", "to"))
    ):
        raise SqlglotError("more than a type")
    return cast.to


def _arrow(parsed: exp.DataType) -> pa.DataType:
    kind, inner = parsed.this, parsed.expressions
    if isinstance(kind, exp.DType) and kind in _SIMPLE:
        return _SIMPLE[kind]
    if kind == exp.DType.DECIMAL:
        return _decimal([part.name for part in inner])
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


def _decimal(parts: list[str]) -> pa.DataType:
    precision, scale = [*parts, *("10", "0")[len(parts) :]][:2]
    if not (precision.isdecimal() and scale.isdecimal() and 1 <= int(precision) <= 38 and int(scale) <= int(precision)):
        raise UnsupportedType("expected a decimal with a precision from 1 to 38 and a scale up to the precision")
    return pa.decimal128(int(precision), int(scale))
