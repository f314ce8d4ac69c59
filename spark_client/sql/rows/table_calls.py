"""Calls in FROM, of process table functions and of window functions: their tables, descriptors and constants."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.types import YearMonthIntervalType
from sqlglot import exp

from remote_udf.types import spelled
from spark_client.base.errors import PlanError
from spark_client.sql.rows.scope import Scope
from spark_client.sql.text.arguments import CalledTable
from spark_client.sql.text.nodes import Node, alias_of
from spark_client.sql.text.writers import canonical

__all__ = [
    "GivenTable", "by_name", "call_of_relation", "column_name", "described", "evaluated", "given_table", "one_column",
    "plain_table", "put_in_place",
]  # fmt: skip

_NOT_CONSTANT = (exp.Star, exp.Distinct)
_INTEGER = re.compile(r"[0-9]{1,18}")
_TEXT = re.compile(r"[^\\'\"]*")
"""Texts without escapes, whose rules are left to Spark."""


@dataclass(frozen=True)
class GivenTable:
    """A table argument: the query of its rows, and the columns after PARTITION BY and ORDER BY."""

    query: exp.Select
    partition_by: list[str]
    order_by: list[str]


def call_of_relation(node: Node) -> exp.Anonymous | None:
    """The call in an item of FROM: `f(...)`, `TABLE(f(...))` or `LATERAL f(...)`; here LATERAL has no effect."""
    plain = isinstance(node, exp.Table) and not node.db
    call = node.this if plain or (isinstance(node, exp.Lateral) and not node.args.get("view")) else None
    if isinstance(call, exp.Anonymous) and call.name.upper() == "TABLE" and len(call.expressions) == 1:
        (call,) = call.expressions
    return call if isinstance(call, exp.Anonymous) else None


def by_name(call: exp.Anonymous, names: Sequence[str], optional: Collection[str] = ()) -> dict[str, Node]:
    """The arguments of a call by the upper-case names of its parameters, which are given in order of position.

    Raises PlanError for an argument that the function does not have, or that is missing.
    """
    function, shown = call.name.upper(), ", ".join(names)
    arguments: dict[str, Node] = {}
    for position, part in enumerate(call.expressions):
        named = isinstance(part, exp.Kwarg)
        name = part.this.name.upper() if named else names[position] if position < len(names) else ""
        if name not in names or name in arguments:
            raise PlanError(f"{function} takes {shown}; argument {position + 1} is not one of these, or is given twice")
        arguments[name] = part.expression if named else part
    missing = [name for name in names if name not in arguments and name not in optional]
    if missing:
        raise PlanError(f"{function} lacks the argument {missing[0]}; it takes {shown}")
    return arguments


def put_in_place(scope: Scope, node: Node, frame: DataFrame, name: str) -> exp.Table:
    """Replace an item of FROM by a DataFrame, under the alias of the item, otherwise under `name`."""
    table = scope.table(frame)
    alias = node.args.get("alias") or alias_of(name)
    table.set("alias", alias.copy())
    for part in ("joins", "laterals", "pivots", "sample"):
        table.set(part, node.args.get(part))
    node.replace(table)
    return table


def given_table(value: Node) -> GivenTable | None:
    """Read a table argument; None for any other argument. Raises PlanError for an invalid column name."""
    if not isinstance(value, (CalledTable, exp.Query)):
        return None
    rows = (value.this if isinstance(value, CalledTable) else value).copy()
    if isinstance(rows, exp.Anonymous):
        rows = exp.Table(this=rows)
    elif isinstance(rows, (exp.Select, exp.SetOperation)):
        rows = exp.Subquery(this=rows)
    return GivenTable(
        exp.Select(expressions=[exp.Star()], from_=exp.From(this=rows)),
        [column_name(each) for each in value.args.get("partition_by") or ()],
        [_order(each) for each in value.args.get("order_by") or ()],
    )


def plain_table(call: exp.Anonymous, name: str, arguments: Mapping[str, Node]) -> exp.Select:
    """The query of a table argument of a call. Raises PlanError if it is no table, or has keys."""
    table = given_table(arguments[name])
    if table is None or table.partition_by or table.order_by:
        shown = f"{call.name.upper()}: {name}"
        raise PlanError(f"{shown} is TABLE name or TABLE (query), without PARTITION BY and ORDER BY")
    return table.query


def described(value: Node) -> list[str] | None:
    """The columns of a DESCRIPTOR; None for any other argument. Raises PlanError for an invalid column name."""
    if not isinstance(value, exp.Anonymous) or value.name.upper() != "DESCRIPTOR":
        return None
    return [column_name(each) for each in value.expressions]


def one_column(function: str, argument: str, value: Node) -> str:
    """The column of a DESCRIPTOR with one column. Raises PlanError for any other argument."""
    columns = described(value)
    if columns is None or len(columns) != 1:
        count = "" if columns is None else f", which has {len(columns)}"
        raise PlanError(
            f"{function}: {argument} must be DESCRIPTOR(column) with 1 column, found {canonical(value)}{count}"
        )
    return columns[0]


def column_name(node: Node) -> str:
    """Raises PlanError if the node is not an unqualified name."""
    if not isinstance(node, exp.Column) or node.table or node.is_star:
        raise PlanError(f"a name of a column is expected, not {canonical(node)!r}")
    return str(node.name)


def _order(ordered: exp.Ordered) -> str:
    """A sort expression in the form that `RemoteSession.process` takes."""
    direction = "DESC" if ordered.args.get("desc") else "ASC"
    return f"{column_name(ordered.this)} {direction} NULLS {'FIRST' if ordered.args.get('nulls_first') else 'LAST'}"


def evaluated(scope: Scope, value: Node, type_: pa.DataType) -> object:
    """The value of a constant expression for a parameter of the type. Raises PlanError if it is not constant."""
    if any(isinstance(node, _NOT_CONSTANT) for node in value.walk()):
        raise PlanError(f"a scalar argument must be a constant, not {canonical(value)}")
    literal = _literal(value)
    if literal is not None:
        return literal
    tree = exp.select(exp.alias_(value.copy(), "value"))
    try:
        return _plain(_in_arrow(scope.outside().run(tree), value, type_), type_)
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
