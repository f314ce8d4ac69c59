"""Rewrites every SELECT with remote aggregates, from the inside out, into one over a DataFrame."""

from pyspark.errors import AnalysisException
from sqlglot import exp

from spark_client.base.changelogs import kind_column
from spark_client.base.errors import PlanError
from spark_client.sql.groups.aggregates import GroupedSelect, with_groups
from spark_client.sql.groups.grouping import groups_windows, read_grouping, with_plain_grouping_id
from spark_client.sql.groups.windows_over import with_windows_over
from spark_client.sql.registry import is_table_function, put_in_from
from spark_client.sql.rows.calls import has_aggregate, has_remote, is_remote, remote_in, walk_query
from spark_client.sql.rows.scope import Rewrite, Scope
from spark_client.sql.rows.stream_times import carry, is_carried_out
from spark_client.sql.tables.window_functions import window_call_of
from spark_client.sql.tables.window_joins import join_windows
from spark_client.sql.tables.window_ranking import rank_windows
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at
from spark_client.windows.columns import WINDOW_START, zone_of
from spark_client.windows.emitting import is_only_updated

__all__ = ["with_remote_queries", "without_remote_aggregates"]

_PLANNED = (exp.Query, exp.Insert, exp.Create, exp.Set)
"""The statements that may have remote aggregates and table functions."""
_CLAUSE_NAMES = {
    "where": "WHERE; use HAVING, or a subquery",
    "joins": "a join",
    "laterals": "LATERAL VIEW",
    "from_": "FROM",
    "limit": "LIMIT",
    "offset": "OFFSET",
}


def without_remote_aggregates(scope: Scope, tree: Node) -> Node:
    """The statement with all its queries rewritten. Raises PlanError with the position in the text."""
    if not scope.is_planned:
        return tree
    if not isinstance(tree, _PLANNED) or (isinstance(tree, exp.Create) and tree.kind not in ("TABLE", "VIEW")):
        what = "INSERT of several tables" if isinstance(tree, exp.MultitableInserts) else tree.key.upper()
        raise PlanError(
            f"a statement {what} {getattr(tree, 'kind', '') or ''}".rstrip()
            + " cannot have remote aggregates or table functions: create a temporary view of the query first"
        )
    rewritten = with_remote_queries(scope, tree, outermost=True)
    for node in rewritten.walk():
        if is_remote(node, scope.functions):
            raise error_at(node, f"remote aggregate {node.name} cannot be used here")
    return rewritten


def with_remote_queries(scope: Scope, tree: Node, *, outermost: bool = False) -> Node:
    """The tree with all its queries rewritten."""
    holder = exp.Tuple(expressions=[tree.copy()])
    _inside(scope, holder, outermost=outermost)
    return holder.expressions[0]


def _inside(scope: Scope, tree: Node, *, outermost: bool = False) -> None:
    """Rewrite the queries directly inside a tree, in place."""
    found = [node for node in walk_query(tree) if isinstance(node, exp.Query) and node is not tree]
    for query in found:
        if any(
            is_remote(node, scope.functions) or _is_window(scope, node) or is_table_function(node)
            for node in query.walk()
        ):
            rewritten = _rewritten(scope, query, outermost)
            if isinstance(rewritten, exp.Select) and is_carried_out(query):
                rewritten = carry(scope, rewritten)
            query.replace(rewritten)


def _is_window(scope: Scope, node: Node) -> bool:
    """Whether a node is a call of a window function, or a column of one."""
    if window_call_of(node) is not None:
        return True
    return isinstance(node, exp.Column) and scope.identifiers.same(node.name, WINDOW_START)


def _rewritten(around: Scope, query: Node, outermost: bool) -> Node:
    windowed = any(_is_window(around, node) for node in query.walk())
    scope, own = around, query.args.get("with_")
    recursive = own is not None and own.args.get("recursive")
    for cte in own.expressions if own is not None else ():
        if recursive and any(is_remote(node, scope.functions) for node in cte.walk()):
            raise error_at(cte, f"{cte.alias}: a recursive query cannot have remote aggregates")
        _inside(scope, cte)
        scope = scope.inside([cte])
    _inside(scope, query, outermost=outermost and not isinstance(query, exp.Select))
    # From the inside out: a window function may read the windows of another one.
    for node in reversed([node for node in walk_query(query) if is_table_function(node)]):
        put_in_from(scope, node)
    if not isinstance(query, exp.Select):
        return query
    calls = list(remote_in(query, scope.functions))
    select: Node = query
    try:
        for rewrite in (*_OF_WINDOWS, *_OF_AGGREGATES) if windowed else _OF_AGGREGATES:
            select = rewrite(scope, select)
    except AnalysisException as error:
        if outermost or not calls or "UNRESOLVED_COLUMN" not in str(error):
            raise
        hint = "a subquery with remote aggregates is computed separately, so it cannot refer to outer columns"
        raise error_at(calls[0], f"{hint}: {error}") from error
    return select


def _with_distinct_as_groups(scope: Scope, select: Node) -> Node:
    """`SELECT DISTINCT window_start, window_end, k` of a stream as GROUP BY; Spark would emit it only when complete."""
    distinct, items = select.args.get("distinct"), [item.unalias() for item in select.expressions]
    if distinct is None or distinct.args.get("on") or select.args.get("group") or select.is_star:
        return select
    if any(has_aggregate(item, scope.functions) or item.find(exp.Window) for item in items):
        return select
    source, keys = scope.source(select), [item for item in items if item.find(exp.Column)]
    if not source.frame.isStreaming or not groups_windows(source, keys):
        return select
    select = select.copy()
    select.set("distinct", None)
    select.set("group", exp.Group(expressions=[key.copy() for key in keys]))
    return select


def _with_window_groups(scope: Scope, select: Node) -> Node:
    """The SELECT ready for Spark's GROUP BY if its groups are windows, and Spark or the planner can compute them."""
    if not select.args.get("group") or has_remote(select, scope.functions):
        return select
    source = scope.source(select)
    grouping = read_grouping(source, select, lambda tree: has_aggregate(tree, scope.functions))
    if not groups_windows(source, grouping.keys):
        return select
    if grouping.sets is not None:
        select = with_plain_grouping_id(select, grouping.keys)
    # The planner of remote aggregates supports changelogs and CUMULATE with updates only, and its state says the
    # time zone of windows; Spark's GROUP BY does not.
    planned = bool(kind_column(source.frame) is not None or is_only_updated(source.frame) or zone_of(source.frame))
    if not source.frame.isStreaming and not planned:
        return select
    # Spark's streams do not support DISTINCT; the planner computes it with a set of the values.
    distinct = source.frame.isStreaming and any(
        isinstance(node.parent, exp.Func) for node in select.find_all(exp.Distinct)
    )
    return GroupedSelect(scope, select, planned=planned or distinct).rewritten()


def _with_aggregates_in_place(scope: Scope, select: Node) -> Node:
    """Return the SELECT. Raises PlanError, with the position, for an aggregate in a clause that cannot have one."""
    for part, name in _CLAUSE_NAMES.items():
        value = select.args.get(part)
        for tree in value if isinstance(value, list) else [value] if value is not None else []:
            for call in remote_in(tree, scope.functions):
                raise error_at(call, f"remote aggregate {call.name} cannot be used in {name}")
    return select


_OF_WINDOWS: tuple[Rewrite, ...] = (
    rank_windows,  # before joins: the ranked rows may be one side of a join
    join_windows,
    _with_distinct_as_groups,  # which the next pass computes
    _with_window_groups,  # what is left for Spark's own GROUP BY
)
"""The passes over a SELECT that has columns of windows: Spark supports none of this on streams."""
_OF_AGGREGATES: tuple[Rewrite, ...] = (
    _with_aggregates_in_place,
    with_groups,
    with_windows_over,  # over the groups
)
"""The passes over a SELECT that may have remote aggregates."""
