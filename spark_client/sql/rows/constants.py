"""Constant arguments of calls, as Python values."""

import re

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.types import YearMonthIntervalType
from sqlglot import exp

from remote_udf.types import spelled
from spark_client.base.errors import PlanError
from spark_client.sql.rows.workspace import Workspace
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.writers import canonical

__all__ = ["evaluated"]

_NOT_CONSTANT = (exp.Star, exp.Distinct)
_INTEGER = re.compile(r"[0-9]{1,18}")
_TEXT = re.compile(r"[^\\'\"]*")
"""Texts without escapes, whose rules are left to Spark."""


def evaluated(workspace: Workspace, value: Node, type_: pa.DataType) -> object:
    """The value of a constant expression for a parameter of the type. Raises PlanError if it is not constant."""
    if any(isinstance(node, _NOT_CONSTANT) for node in value.walk()):
        raise PlanError(f"a scalar argument must be a constant, not {canonical(value)}")
    literal = _literal(value)
    if literal is not None:
        return literal
    tree = exp.select(exp.alias_(value.copy(), "value"))
    try:
        return _plain(_in_arrow(workspace.run(tree), value, type_), type_)
    except AnalysisException as error:
        # Not every name is a column: CURRENT_DATE and variables of the session are values.
        condition, said = error.getCondition() or "", error.getMessageParameters() or {}
        if condition.startswith("UNRESOLVED_COLUMN"):
            why = f"{said.get('objectName')} is a column"
        elif condition == "PARSE_SYNTAX_ERROR":
            why = f"Spark cannot parse {said.get('error')}"
        else:
            raise
        raise PlanError(f"a scalar argument must be a constant, not {canonical(value)}: {why}") from None


def _in_arrow(frame: DataFrame, value: Node, type_: pa.DataType) -> pa.Scalar:
    """The only value of the frame. In Arrow, times have a time zone; `collect` would return naive times."""
    found = frame.schema["value"].dataType
    if isinstance(found, YearMonthIntervalType) and pa.types.is_integer(type_):
        frame = frame.selectExpr("CAST(CAST(value AS INTERVAL MONTH) AS INT) AS value")
    try:
        return frame.toArrow().column(0)[0]
    except PySparkTypeError as error:
        months = "; declare the argument as an integer to get the number of months"
        hint = months if isinstance(found, YearMonthIntervalType) else ""
        raise PlanError(
            f"{canonical(value)} is of type {found.simpleString()}, which cannot be an argument{hint}"
        ) from error
    except ValueError:
        if not pa.types.is_nested(type_):
            raise
    # Arrow has no map without types, as MAP() is in Spark.
    return frame.selectExpr(f"CAST(value AS {spelled(type_)}) AS value").toArrow().column(0)[0]


def _literal(value: Node) -> object:
    """The value of an integer, boolean or text, for which Spark need not run a job; None for any other constant."""
    if isinstance(value, exp.Boolean):
        return bool(value.this)
    negative = isinstance(value, exp.Neg)
    literal = value.this if negative else value
    if not isinstance(literal, exp.Literal):
        return None
    if literal.is_string:
        return literal.this if not negative and _TEXT.fullmatch(literal.this) else None
    if not _INTEGER.fullmatch(literal.this):
        return None
    return -int(literal.this) if negative else int(literal.this)


def _plain(value: pa.Scalar, type_: pa.DataType) -> object:
    """The Python value; a struct as a dictionary with the field names of the argument, by position."""
    if not value.is_valid:
        return None
    if pa.types.is_struct(value.type) and pa.types.is_struct(type_) and value.type.num_fields == type_.num_fields:
        return {part.name: _plain(value[index], part.type) for index, part in enumerate(type_)}
    if pa.types.is_list(value.type) and pa.types.is_list(type_):
        return [_plain(each, type_.value_type) for each in value.values]
    if pa.types.is_map(value.type) and pa.types.is_map(type_):
        pairs = value.values
        return [
            (_plain(key, type_.key_type), _plain(item, type_.item_type))
            for key, item in zip(pairs.field(0), pairs.field(1), strict=True)
        ]
    return value.as_py()
