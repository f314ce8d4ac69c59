"""Makes one call for WHERE and SELECT: a call in several clauses of a SELECT becomes a hidden column below it.

Spark evaluates a condition and a projection separately, so `SELECT f(k) FROM t WHERE f(k) > 12 AND v > 1` calls `f`
twice for rows that pass. It becomes

    SELECT h AS `f(k)` FROM (SELECT *, f(k) AS h FROM t WHERE v > 1) AS t WHERE h > 12

with an `f` that is registered as nondeterministic, so that Spark neither copies nor moves it. Spark then moves no
condition below the call either, so the conditions without a call are written below it here. This requires a SELECT
over one relation: a SELECT with joins, or in a subquery that refers to outer columns, is not changed.
"""

from collections.abc import Collection, Iterator, Sequence

from pyspark.errors import PySparkException
from pyspark.sql.types import DataType
from sqlglot import exp

from spark_client.sql.rows.calls import has_aggregate, walk_query
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.sources import Source, alias_in, column, output_names
from spark_client.sql.rows.workspace import Workspace
from spark_client.sql.text.nodes import Node, conjuncts

__all__ = ["SingleCalls", "columns_of", "leave_out", "only_relation", "visible_ctes"]

_KNOWN = {
    "kind", "hint", "expressions", "distinct", "from_", "where", "group", "having", "qualify", "windows", "order",
    "sort", "cluster", "distribute", "limit", "offset", "with_", "operation_modifiers",
}  # fmt: skip
"""Parts of a SELECT that have the same meaning over its rows and over a subquery of them."""
_LATE = ("having", "qualify", "order", "sort", "cluster", "distribute")
"""Clauses in which a name refers to an item first, then to a column."""
_SORTED = ("order", "sort", "cluster", "distribute")
_NOT_OF_ONE_ROW = (exp.Query, exp.Window, exp.Lambda, exp.Star)


class SingleCalls:
    """Rewrites the SELECTs of one text."""

    def __init__(self, functions: SqlFunctions) -> None:
        self._functions = functions

    def __call__(self, workspace: Workspace, tree: Node, ctes: Sequence[Node]) -> Node:
        """The tree with every SELECT rewritten if possible; the same tree if there is none.

        `workspace` runs trees unchanged.
        """
        if not any(map(_has_clauses, tree.find_all(exp.Select))):
            return tree
        if not any(isinstance(node, exp.Anonymous) and self._is_remote(node) for node in tree.walk()):
            return tree
        holder, changed = exp.Tuple(expressions=[tree.copy()]), False
        for select in reversed(list(holder.find_all(exp.Select))):  # from the inside out
            if not _has_clauses(select):
                continue
            rewritten = self._select(workspace, select, [*ctes, *visible_ctes(select)])
            if rewritten is not None:
                select.replace(rewritten)
                changed = True
        return holder.expressions[0] if changed else tree

    def _select(self, workspace: Workspace, select: Node, ctes: Sequence[Node]) -> Node | None:
        """The SELECT over its calls; None if no call is repeated, or if it cannot be rewritten."""
        if any(value and part not in _KNOWN for part, value in select.args.items()):
            return None
        try:
            rewritten = select
            # A nested call needs a layer below the outer call: in f(g(k)), g(k) is evaluated first.
            while (layer := self._layer(workspace, rewritten, ctes)) is not None:
                rewritten = layer
            if rewritten is select or columns_of(workspace, rewritten, ctes) != columns_of(workspace, select, ctes):
                return None
        except PySparkException:
            return None  # it refers to outer columns, or Spark reports its error
        return rewritten

    def _layer(self, workspace: Workspace, select: Node, ctes: Sequence[Node]) -> Node | None:
        relation = only_relation(select)
        if relation is None:
            return None
        source = Source(workspace, select, ctes)
        repeated = self._repeated(source, select)
        if not repeated:
            return None
        names = {same: workspace.hidden("call") for same in repeated}
        outer = select.copy()
        for call in list(self._calls(source, outer)):
            if (same := source.same(call)) in names:
                call.replace(column(names[same]))
        group = select.args["group"].copy() if select.args.get("group") else None
        shown = output_names(source, select, lambda _: False, group)
        for item, name, written in zip(list(outer.expressions), shown, select.expressions, strict=True):
            if name is not None and item != written and not isinstance(item, exp.Alias):
                item.replace(exp.alias_(item.copy(), name, quoted=True))
        alias = relation.alias_or_name or workspace.hidden("rows")
        leave_out(source, outer, list(names.values()), alias)
        below, above = self._conditions(select, outer)
        made = [exp.alias_(self._made(repeated[same]), name, quoted=True) for same, name in names.items()]
        inner = exp.Select(expressions=[exp.Star(), *made], from_=exp.From(this=relation.copy()))
        inner.set("where", exp.Where(this=exp.and_(*below)) if below else None)
        outer.set("where", exp.Where(this=exp.and_(*above)) if above else None)
        quoted = exp.TableAlias(this=exp.to_identifier(alias, quoted=True))
        outer.set("from_", exp.From(this=exp.Subquery(this=inner, alias=quoted)))
        return outer

    def _repeated(self, source: Source, select: Node) -> dict[str, Node]:
        """Calls in several clauses that Spark evaluates separately; of nested calls the inner ones."""
        grouped = bool(select.args.get("group")) or has_aggregate(select, self._functions)
        clauses: dict[str, set[str]] = {}
        found: dict[str, Node] = {}
        for call in self._calls(source, select):
            clause = _clause(call, select)
            if (clause in _SORTED and grouped) or clause in ("group", "windows"):
                clause = "expressions"
            same = source.same(call)
            clauses.setdefault(same, set()).add("order" if clause in _SORTED else clause)
            found.setdefault(same, call)
        repeated = {same: call for same, call in found.items() if len(clauses[same]) > 1}
        return {
            same: call for same, call in repeated.items()
            if not any(source.same(inner) in repeated for inner in self._calls(source, call) if inner is not call)
        }  # fmt: skip

    def _calls(self, source: Source, tree: Node) -> Iterator[Node]:
        """Calls of remote functions on the columns of a row, without queries inside the tree."""
        aliases = _aliases(source, tree) if isinstance(tree, exp.Select) else set()
        for node in walk_query(tree):
            if not isinstance(node, exp.Anonymous) or isinstance(node.parent, exp.Dot) or not self._is_remote(node):
                continue
            nodes = list(node.walk())
            columns = [each for each in nodes if isinstance(each, exp.Column)]
            several = any(isinstance(each, _NOT_OF_ONE_ROW) for each in nodes) or has_aggregate(node, self._functions)
            inside = node.find_ancestor(exp.Lambda, exp.Select)
            if not columns or several or isinstance(inside, exp.Lambda):
                continue
            late = isinstance(tree, exp.Select) and _clause(node, tree) in _LATE
            if not (late and any(alias_in(each, aliases, source.key) for each in columns)):
                yield node

    def _is_remote(self, node: Node) -> bool:
        return self._functions.is_remote_scalar(node.name) and self._functions.once(node.name) is not None

    def _made(self, call: Node) -> Node:
        copy = call.copy()
        copy.set("this", exp.to_identifier(self._functions.once(call.name), quoted=True))
        return copy

    def _conditions(self, select: Node, outer: Node) -> tuple[list[Node], list[Node]]:
        """The conditions of a WHERE that need no call, unchanged, and the others, with hidden columns."""
        if select.args.get("where") is None:
            return [], []
        below: list[Node] = []
        above: list[Node] = []
        pairs = zip(conjuncts(select.args["where"].this), conjuncts(outer.args["where"].this), strict=True)
        for written, replaced in pairs:
            called = (node.name for node in written.walk() if isinstance(node, exp.Anonymous))
            if any(self._functions.is_remote_scalar(name) for name in called):
                above.append(replaced.copy())
            else:
                below.append(written.copy())
        return below, above


def _has_clauses(select: Node) -> bool:
    """Whether Spark evaluates more than the items of a SELECT."""
    return any(select.args.get(part) for part in ("where", *_LATE))


def visible_ctes(select: Node) -> list[Node]:
    """The common table expressions that are visible to a SELECT inside a tree, without its own."""
    found: list[Node] = []
    node = select
    while node.parent is not None:
        holder, arg = node.parent, node.arg_key
        if isinstance(holder, exp.With):
            before = holder.expressions if holder.args.get("recursive") else holder.expressions[: node.index]
            found = [*before, *found]
        elif arg != "with_" and holder.args.get("with_") is not None:
            found = [*holder.args["with_"].expressions, *found]
        node = holder
    return found


def only_relation(select: Node) -> Node | None:
    """The single table or subquery that a SELECT reads; None for joins and for LATERAL VIEW."""
    source = select.args.get("from_")
    relation = source.this if source is not None else None
    if not isinstance(relation, (exp.Table, exp.Subquery)):
        return None
    several = any(relation.args.get(part) for part in ("joins", "laterals", "pivots"))
    return None if several else relation


def columns_of(workspace: Workspace, select: Node, ctes: Sequence[Node]) -> list[tuple[str, DataType]]:
    """The names and types of the columns of a SELECT."""
    return [(field.name, field.dataType) for field in workspace.run(select, ctes).schema.fields]


def _aliases(source: Source, select: Node) -> set[str]:
    """The keys of items that are not columns of their name; `s.k AS k` is a field of the column `s`."""

    def is_own(item: Node) -> bool:
        tree = item.this
        whole = isinstance(tree, exp.Column) and (not tree.table or source.names_relation(tree.table))
        return whole and source.key(tree.name) == source.key(item.alias)

    return {source.key(item.alias) for item in select.expressions if isinstance(item, exp.Alias) and not is_own(item)}


def _clause(node: Node, select: Node) -> str:
    """The part of a SELECT that contains a node."""
    while (parent := node.parent) is not None and parent is not select:
        node = parent
    return str(node.arg_key)


def leave_out(source: Source, select: Node, hidden: Collection[str], alias: str) -> None:
    """Exclude hidden columns from every star except that of `count(*)`, which counts rows."""
    for star in [node for node in walk_query(select) if isinstance(node, exp.Star)]:
        holder = star.parent
        if isinstance(holder, exp.Anonymous) and holder.name.lower() == "count":
            continue
        if isinstance(holder, exp.Column) and [source.key(each.name) for each in holder.parts[:-1]] != [
            source.key(alias)
        ]:
            continue  # all fields of a struct
        star.set("except_", [*(star.args.get("except_") or ()), *(column(name) for name in hidden)])
