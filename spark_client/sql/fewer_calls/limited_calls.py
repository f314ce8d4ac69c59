"""Makes the calls in the items of a SELECT after its ORDER BY and LIMIT, for the rows that are left.

Spark sorts and limits the items of a SELECT, so `SELECT f(k) FROM t ORDER BY v LIMIT 10` calls `f` for all rows. It
becomes

    SELECT h AS `f(k)`
    FROM (SELECT *, f(k) AS h FROM (SELECT * FROM t ORDER BY v LIMIT 10) AS t) AS t SORT BY v

with an `f` that is registered as nondeterministic, because Spark would move any other below the LIMIT again. A LIMIT
without ORDER BY around a whole query stays as written: if its rows are collected, Spark reads only as many partitions
as it needs. This requires a SELECT over one relation that only selects rows and columns.
"""

from collections.abc import Iterator, Sequence

from pyspark.errors import PySparkException
from sqlglot import exp

from spark_client.sql.fewer_calls.fused_calls import has_steps, is_of_row
from spark_client.sql.fewer_calls.single_calls import hide_calls, read_below, with_columns
from spark_client.sql.rows.calls import has_aggregate, is_scalar, walk_query
from spark_client.sql.rows.scope import Scope, each_select
from spark_client.sql.rows.sources import SelectSource, aliased, only_relation
from spark_client.sql.text.nodes import Node, subquery

__all__ = ["with_limited_calls"]

MOST_ROWS = 10_000
"""The largest LIMIT: its rows are in one partition, so calls after it run in one task."""
_KNOWN = {"kind", "hint", "expressions", "from_", "where", "order", "limit", "offset", "with_", "operation_modifiers"}
"""Parts of a SELECT that have the same meaning over its limited rows."""


def with_limited_calls(scope: Scope, tree: Node) -> Node:
    """The tree with every SELECT rewritten if possible; the same tree if there is none."""
    return each_select(scope, tree, _rewritten)


def _rewritten(scope: Scope, select: exp.Select) -> Node | None:
    if isinstance(select.parent, exp.Tuple) and select.parent.parent is None and not select.args.get("order"):
        return None
    rows = _limit(select)
    if rows is None or any(value and part not in _KNOWN for part, value in select.args.items()):
        return None
    relation = only_relation(select)
    calls = list(_calls(scope, select))
    if relation is None or not calls or has_aggregate(select, scope.functions):
        return None
    if any(call.find_ancestor(exp.Where, exp.Order) for call in calls):
        return None
    if any(map(has_steps, select.expressions)):
        return None
    try:
        source = scope.source(select)
        order = _order(source, select)
        if order is None:
            return None
        rewritten = _over(scope, source, select, relation, order)
        same = scope.columns(rewritten) == scope.columns(select)
    except PySparkException:
        return None  # it refers to outer columns, or Spark reports its error
    if not same:
        return None
    names = ", ".join(dict.fromkeys(call.name for call in calls))
    sorted_ = "ORDER BY and " if order else ""
    scope.stages.append(f"LIMIT: {names} called after {sorted_}LIMIT, for {rows:,} rows at most, in one task")
    return rewritten


def _calls(scope: Scope, select: Node) -> Iterator[Node]:
    return (node for node in walk_query(select) if is_scalar(node, scope.functions))


def _order(source: SelectSource, select: Node) -> list[Node] | None:
    """The expressions of ORDER BY over columns of the rows; None if one is an item that is not of the row alone."""
    order = select.args.get("order")
    aliases = aliased(source, select)
    found = []
    for each in [] if order is None else order.expressions:
        key = each.this if isinstance(each, exp.Ordered) else each
        if isinstance(key, exp.Literal):
            return None  # the position of an item
        if isinstance(key, exp.Column) and not key.table and source.key(key.name) in aliases:
            item = aliases[source.key(key.name)]
            if not is_of_row(item):
                return None
            each = each.copy()
            (each.this if isinstance(each, exp.Ordered) else each).replace(exp.paren(item.copy()))
        elif any(source.key(node.name) in aliases for node in key.find_all(exp.Column)):
            return None  # an expression of items
        found.append(each)
    return found


def _over(scope: Scope, source: SelectSource, select: Node, relation: Node, order: Sequence[Node]) -> Node:
    """The SELECT over its limited rows, to which each layer adds the values of calls."""
    outer, rows = select.copy(), select.copy()
    rows.set("expressions", [exp.Star()])
    rows.set("with_", None)
    for part in ("where", "order", "limit", "offset", "hint"):
        outer.set(part, None)
    if order:
        rows.set("order", exp.Order(expressions=[each.copy() for each in order]))
        # The limited rows are one partition. ORDER BY would distribute them again, and call for a sample first.
        outer.set("sort", exp.Sort(expressions=[each.copy() for each in order]))
    alias = relation.alias_or_name or scope.hidden("rows")
    hidden: list[str] = []
    while calls := [call for call in _calls(scope, outer) if not _has_call_inside(scope, call)]:
        made = hide_calls(scope, source, calls)
        rows = with_columns(subquery(rows, alias), made)
        hidden += made
    read_below(source, select, outer, subquery(rows, alias), hidden)
    return outer


def _has_call_inside(scope: Scope, call: Node) -> bool:
    return any(node is not call for node in _calls(scope, call))


def _limit(select: Node) -> int | None:
    """The number of rows that a SELECT returns at most, if calls may run in one task for them."""
    limit = select.args.get("limit")
    number = limit.expression if isinstance(limit, exp.Limit) else None
    if not isinstance(number, exp.Literal) or number.is_string or not number.name.isdecimal():
        return None
    return rows if (rows := int(number.name)) <= MOST_ROWS else None
