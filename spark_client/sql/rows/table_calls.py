"""Calls in FROM with table arguments, of process table functions and of window functions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.sql.rows.workspace import Workspace
from spark_client.sql.text.arguments import TableArgument
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.writers import canonical

__all__ = [
    "GivenTable", "by_name", "call_of_relation", "column_name", "described", "given_table", "plain_table",
    "put_in_place",
]  # fmt: skip


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


def put_in_place(workspace: Workspace, node: Node, frame: DataFrame, name: str) -> exp.Table:
    """Replace an item of FROM by a DataFrame, under the alias of the item, otherwise under `name`."""
    table = workspace.table(frame)
    alias = node.args.get("alias") or exp.TableAlias(this=exp.to_identifier(name, quoted=True))
    table.set("alias", alias.copy())
    for part in ("joins", "laterals", "pivots", "sample"):
        table.set(part, node.args.get(part))
    node.replace(table)
    return table


def given_table(value: Node) -> GivenTable | None:
    """Read a table argument; None for any other argument. Raises PlanError for an invalid column name."""
    if not isinstance(value, (TableArgument, exp.Query)):
        return None
    rows = (value.this if isinstance(value, TableArgument) else value).copy()
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


def column_name(node: Node) -> str:
    """Raises PlanError if the node is not an unqualified name."""
    if not isinstance(node, exp.Column) or node.table or node.is_star:
        raise PlanError(f"a name of a column is expected, not {canonical(node)!r}")
    return str(node.name)


def _order(ordered: exp.Ordered) -> str:
    """A sort expression in the form that `RemoteSession.process` takes."""
    direction = "DESC" if ordered.args.get("desc") else "ASC"
    return f"{column_name(ordered.this)} {direction} NULLS {'FIRST' if ordered.args.get('nulls_first') else 'LAST'}"
