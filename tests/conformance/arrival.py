"""The order in which rows arrive, which the language of the cases preserves and Spark does not.

LAST_VALUE(v) GROUP BY k is the value that arrived last, and rows of equal time follow each other in a ROWS
frame in order of arrival. Here the tables of such a query get a column with the position of a row.
"""

from typing import Any

from sqlglot import exp
from sqlglot.errors import SqlglotError

from tests.conformance.spark_sql import parse

__all__ = ["in_arrival_order", "is_averaged"]

ARRIVAL = "arrival_position__"
_BY_ARRIVAL = {exp.LastValue: "max_by", exp.Last: "max_by", exp.FirstValue: "min_by", exp.First: "min_by"}


def in_arrival_order(tree: Any) -> Any:
    """Returns a copy of the query with an explicit order of arrival."""
    tree = tree.copy()
    for select in list(tree.find_all(exp.Select)):
        _selects(select)
    return tree


def _selects(select: Any) -> None:
    source = select.args.get("from_") or select.args.get("from")
    if source is None or not isinstance(source.this, exp.Table) or select.args.get("joins") or select.is_star:
        return
    own = list(select.walk(prune=lambda node: isinstance(node, exp.Query) and node is not select))
    firsts = [node for node in own if type(node) in _BY_ARRIVAL and not isinstance(node.parent, exp.Window)]
    windows = [node for node in own if isinstance(node, exp.Window) and _by_rows(node)]
    if not firsts and not windows:
        return
    for node in firsts:
        call = exp.Anonymous(this=_BY_ARRIVAL[type(node)], expressions=[node.this, exp.column(ARRIVAL)])
        node.replace(call)
    for window in windows:
        window.args["order"].append("expressions", exp.Ordered(this=exp.column(ARRIVAL)))
    table = source.this
    position = exp.alias_(exp.Anonymous(this="monotonically_increasing_id"), ARRIVAL)
    inner = exp.Select(expressions=[exp.Star(), position]).from_(exp.Table(this=table.this.copy()))
    source.set("this", exp.Subquery(this=inner, alias=exp.TableAlias(this=exp.to_identifier(table.alias_or_name))))


def _by_rows(window: Any) -> bool:
    spec = window.args.get("spec")
    return bool(window.args.get("order")) and spec is not None and str(spec.args.get("kind")).upper() == "ROWS"


def is_averaged(query: str) -> bool:
    """Whether the query has an AVG, whose result the language of the cases truncates."""
    try:
        return any(call.key == "avg" for call in parse(query).walk())
    except SqlglotError:
        return "AVG(" in query.upper()
