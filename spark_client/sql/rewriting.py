"""Rewrites every SELECT with remote aggregates, from the inside out, into one over a DataFrame."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from pyspark.errors import AnalysisException
from sqlglot import exp

from spark_client.base.changelogs import kind_column
from spark_client.sql.groups.aggregates import GroupedSelect
from spark_client.sql.groups.grouping import read_grouping
from spark_client.sql.groups.window_groups import groups_windows, with_plain_grouping_id
from spark_client.sql.groups.windows_over import WindowedSelect
from spark_client.sql.models.predictions import put_prediction
from spark_client.sql.models.vector_search import put_search
from spark_client.sql.rows.calls import has_aggregate, is_remote, is_remote_window, remote_in, walk_query
from spark_client.sql.rows.sources import Source
from spark_client.sql.rows.stream_times import carry, is_carried_out
from spark_client.sql.rows.table_calls import call_of_relation
from spark_client.sql.rows.workspace import Workspace
from spark_client.sql.tables.window_functions import is_window_call, put_windows, window_call_of
from spark_client.sql.tables.window_joins import join_windows
from spark_client.sql.tables.window_ranking import rank_windows
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at
from spark_client.windows.columns import WINDOW_START, zone_of
from spark_client.windows.updates import is_only_updated

__all__ = ["MODEL_CALLS", "Rewriting"]


class Rewriting:
    """Rewrites one statement."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._functions = workspace.functions

    def statement(self, tree: Node) -> Node:
        """The statement with all its queries rewritten. Raises PlanError with the position in the text."""
        holder = exp.Tuple(expressions=[tree.copy()])
        self._inside(holder, [], outermost=True)
        rewritten = holder.expressions[0]
        for node in rewritten.walk():
            if is_remote(node, self._functions):
                raise error_at(node, f"remote aggregate {node.name} cannot be used here")
        return rewritten

    def table(self, tree: Node, ctes: Sequence[Node]) -> Node:
        """Rewrite the query of a table argument."""
        holder = exp.Tuple(expressions=[tree.copy()])
        self._inside(holder, ctes)
        return holder.expressions[0]

    def _inside(self, tree: Node, ctes: Sequence[Node], *, outermost: bool = False) -> None:
        """Rewrite the queries directly inside a tree, in place."""
        found = [node for node in walk_query(tree) if isinstance(node, exp.Query) and node is not tree]
        for query in found:
            if any(
                is_remote(node, self._functions) or self._is_window(node) or _put_of(node) is not None
                for node in query.walk()
            ):
                rewritten = self._query(query, ctes, outermost)
                if isinstance(rewritten, exp.Select) and is_carried_out(query):
                    rewritten = carry(self._workspace, rewritten, ctes)
                query.replace(rewritten)

    def _is_window(self, node: Node) -> bool:
        """Whether a node is a call of a window function, or a column of one."""
        if window_call_of(node) is not None:
            return True
        return isinstance(node, exp.Column) and self._workspace.identifiers.same(node.name, WINDOW_START)

    def _query(self, query: Node, ctes: Sequence[Node], outermost: bool) -> Node:
        windowed = any(self._is_window(node) for node in query.walk())
        visible = list(ctes)
        own = query.args.get("with_")
        recursive = own is not None and own.args.get("recursive")
        for cte in own.expressions if own is not None else ():
            if recursive and any(is_remote(node, self._functions) for node in cte.walk()):
                raise error_at(cte, f"{cte.alias}: a recursive query cannot have remote aggregates")
            self._inside(cte, visible)
            visible.append(cte)
        self._inside(query, visible, outermost=outermost and not isinstance(query, exp.Select))
        # From the inside out: a window function may read the windows of another one.
        for node, put in reversed([(node, put) for node in walk_query(query) if (put := _put_of(node)) is not None]):
            put(self._workspace, node, visible)
        if not isinstance(query, exp.Select):
            return query
        calls = list(self._calls(query))
        try:
            return self._select(self._over_windows(query, visible) if windowed else query, visible)
        except AnalysisException as error:
            if outermost or not calls or "UNRESOLVED_COLUMN" not in str(error):
                raise
            hint = "a subquery with remote aggregates is computed separately, so it cannot refer to outer columns"
            raise error_at(calls[0], f"{hint}: {error}") from error

    def _over_windows(self, select: Node, ctes: Sequence[Node]) -> Node:
        """Replace window joins, top-N and deduplication of streams; the rest is ready for Spark's GROUP BY."""
        select = join_windows(self._workspace, rank_windows(self._workspace, select, ctes), ctes)
        if not select.args.get("group") or any(self._calls(select)):
            return select
        source = Source(self._workspace, select, ctes)
        grouping = read_grouping(source, select, lambda tree: has_aggregate(tree, self._functions))
        if not groups_windows(source, grouping.keys):
            return select
        if grouping.sets is not None:
            select = with_plain_grouping_id(select, grouping.keys)
        # The planner of remote aggregates supports changelogs and CUMULATE with updates only, and its state says the
        # time zone of windows; Spark's GROUP BY does not.
        planned = kind_column(source.frame) is not None or is_only_updated(source.frame) or zone_of(source.frame)
        if not source.frame.isStreaming and not planned:
            return select
        source = Source(self._workspace, select, ctes)
        # Spark's streams do not support DISTINCT; the planner computes it with a set of the values.
        distinct = source.frame.isStreaming and any(
            isinstance(node.parent, exp.Func) for node in select.find_all(exp.Distinct)
        )
        return GroupedSelect(self._workspace, select, source, planned=bool(planned) or distinct).rewritten()

    def _calls(self, select: Node) -> Iterator[Node]:
        """The remote aggregates of a SELECT, without those of queries inside it."""
        return remote_in(select, self._functions)

    def _select(self, select: Node, ctes: Sequence[Node]) -> Node:
        names = self._functions
        if not any(self._calls(select)):
            return select
        for part in ("where", "joins", "laterals", "from_", "limit", "offset"):
            value = select.args.get(part)
            for tree in value if isinstance(value, list) else [value] if value is not None else []:
                for call in remote_in(tree, names):
                    raise error_at(call, f"remote aggregate {call.name} cannot be used in {_CLAUSE_NAMES[part]}")
        if select.args.get("group") or has_aggregate(select, names):
            source = Source(self._workspace, select, ctes)
            select = GroupedSelect(self._workspace, select, source).rewritten()
        if any(is_remote_window(node, names) for node in walk_query(select)):
            source = Source(self._workspace, select, ctes)
            select = WindowedSelect(self._workspace, select, source).rewritten()
        return select


def _put_of(node: Node) -> Callable[[Workspace, Node, Sequence[Node]], None] | None:
    """What replaces an item of FROM that is a table function of SQL; None for any other node."""
    call = call_of_relation(node)
    if call is None:
        return None
    return put_windows if is_window_call(call) else MODEL_CALLS.get(call.name.upper())


MODEL_CALLS: Mapping[str, Callable[[Workspace, Node, Sequence[Node]], None]] = {
    "ML_PREDICT": put_prediction,
    "VECTOR_SEARCH": put_search,
}
"""What replaces the calls of these functions."""
_CLAUSE_NAMES = {
    "where": "WHERE; use HAVING, or a subquery",
    "joins": "a join",
    "laterals": "LATERAL VIEW",
    "from_": "FROM",
    "limit": "LIMIT",
    "offset": "OFFSET",
}
