"""Makes one call for WHERE and SELECT: a call in several clauses of a SELECT becomes a hidden column below it.

Spark evaluates a condition and a projection separately, so `SELECT f(k) FROM t WHERE f(k) > 12 AND v > 1` calls `f`
twice for rows that pass. It becomes

    SELECT h AS `f(k)` FROM (SELECT *, f(k) AS h FROM t WHERE v > 1) AS t WHERE h > 12

with an `f` that is registered as nondeterministic, so that Spark neither copies nor moves it. Spark then moves no
condition below the call either, so the conditions without a call are written below it here. This requires a SELECT
over one relation: a SELECT with joins, or in a subquery that refers to outer columns, is not changed.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from pyspark.errors import PySparkException
from sqlglot import exp

from spark_client.sql.rows.calls import CLAUSES, SORTING, has_aggregate, is_scalar, walk_query
from spark_client.sql.rows.scope import Scope, each_select
from spark_client.sql.rows.sources import SelectSource, alias_in, keep_names, only_relation
from spark_client.sql.text.nodes import Node, column, conditions_of, set_conditions, subquery

__all__ = ["hide_calls", "read_below", "with_columns", "with_single_calls"]

_KNOWN = {
    "kind", "hint", "expressions", "distinct", "from_", "where", "group", "having", "qualify", "windows", "order",
    "sort", "cluster", "distribute", "limit", "offset", "with_", "operation_modifiers",
}  # fmt: skip
"""Parts of a SELECT that have the same meaning over its rows and over a subquery of them."""
_NOT_OF_ONE_ROW = (exp.Query, exp.Window, exp.Lambda, exp.Star)


def with_single_calls(scope: Scope, tree: Node) -> Node:
    """The tree with every SELECT rewritten if possible; the same tree if there is none."""
    if not any(map(_has_clauses, tree.find_all(exp.Select))):
        return tree
    calls = Counter(node.name.casefold() for node in tree.walk() if isinstance(node, exp.Anonymous))
    if not any(count > 1 and scope.functions.is_remote_scalar(name) for name, count in calls.items()):
        return tree
    return each_select(scope, tree, _rewritten)


def _rewritten(scope: Scope, select: Node) -> Node | None:
    """The SELECT over its calls; None if no call is repeated, or if it cannot be rewritten."""
    if not _has_clauses(select) or any(value and part not in _KNOWN for part, value in select.args.items()):
        return None
    try:
        rewritten = select
        # A nested call needs a layer below the outer call: in f(g(k)), g(k) is evaluated first.
        while (layer := _layer(scope, rewritten)) is not None:
            rewritten = layer
        if rewritten is select or scope.columns(rewritten) != scope.columns(select):
            return None
    except PySparkException:
        return None  # it refers to outer columns, or Spark reports its error
    return rewritten


def _layer(scope: Scope, select: Node) -> Node | None:
    relation = only_relation(select)
    if relation is None:
        return None
    source = scope.source(select)
    repeated = _repeated(scope, select)
    if not repeated:
        return None
    outer = select.copy()
    calls = [call for call in _calls(scope, source, outer) if source.same(call) in repeated]
    made = hide_calls(scope, source, calls)
    below, above = _conditions(scope, select, outer)
    inner = with_columns(relation.copy(), made)
    set_conditions(inner, below)
    read_below(source, select, outer, subquery(inner, relation.alias_or_name or scope.hidden("rows")), made)
    set_conditions(outer, above)
    return outer


def _repeated(scope: Scope, select: Node) -> dict[str, Node]:
    """Calls in several clauses that Spark evaluates separately; of nested calls the inner ones."""
    source = scope.source(select)
    grouped = bool(select.args.get("group")) or has_aggregate(select, scope.functions)
    clauses: dict[str, set[str]] = {}
    found: dict[str, Node] = {}
    for call in _calls(scope, source, select):
        clause = _clause(call, select)
        if (clause in SORTING and grouped) or clause in ("group", "windows"):
            clause = "expressions"
        same = source.same(call)
        clauses.setdefault(same, set()).add("order" if clause in SORTING else clause)
        found.setdefault(same, call)
    repeated = {same: call for same, call in found.items() if len(clauses[same]) > 1}
    return {
        same: call for same, call in repeated.items()
        if not any(source.same(inner) in repeated for inner in _calls(scope, source, call) if inner is not call)
    }  # fmt: skip


def _calls(scope: Scope, source: SelectSource, tree: Node) -> Iterator[Node]:
    """Calls of remote functions on the columns of a row, without queries inside the tree."""
    aliases = _aliases(source, tree) if isinstance(tree, exp.Select) else set()
    for node in walk_query(tree):
        if not is_scalar(node, scope.functions) or scope.functions.once(node.name) is None:
            continue
        nodes = list(node.walk())
        columns = [each for each in nodes if isinstance(each, exp.Column)]
        several = any(isinstance(each, _NOT_OF_ONE_ROW) for each in nodes) or has_aggregate(node, scope.functions)
        inside = node.find_ancestor(exp.Lambda, exp.Select)
        if not columns or several or isinstance(inside, exp.Lambda):
            continue
        # In these a name refers to an item first, then to a column.
        late = isinstance(tree, exp.Select) and _clause(node, tree) in CLAUSES
        if not (late and any(alias_in(each, aliases, source.key) for each in columns)):
            yield node


def hide_calls(scope: Scope, source: SelectSource, calls: Iterable[Node]) -> dict[str, Node]:
    """Replace calls by hidden columns. Returns the call of each column, once for equal calls.

    The calls are registered as nondeterministic, so that Spark makes them where they are written.
    """
    names: dict[str, str] = {}
    made: dict[str, Node] = {}
    for call in calls:
        name = names.setdefault(source.same(call), scope.hidden("call"))
        if name not in made:
            made[name] = call.copy()
            made[name].set("this", exp.to_identifier(scope.functions.once(call.name) or call.name, quoted=True))
        call.replace(column(name))
    return made


def with_columns(rows: Node, calls: Mapping[str, Node]) -> exp.Select:
    """The rows of a table or subquery with the values of calls as further columns."""
    values = [exp.alias_(call, name, quoted=True) for name, call in calls.items()]
    return exp.Select(expressions=[exp.Star(), *values], from_=exp.From(this=rows))


def read_below(source: SelectSource, select: Node, outer: Node, below: exp.Subquery, hidden: Collection[str]) -> None:
    """Have a changed SELECT read the query below it. The items keep their names, and no star has hidden columns."""
    keep_names(source, select, outer, select.args["group"].copy() if select.args.get("group") else None)
    _leave_out(source, outer, hidden, below.alias)
    outer.set("from_", exp.From(this=below))


def _conditions(scope: Scope, select: Node, outer: Node) -> tuple[list[Node], list[Node]]:
    """The conditions of a WHERE that need no call, unchanged, and the others, with hidden columns."""
    below: list[Node] = []
    above: list[Node] = []
    for written, replaced in zip(conditions_of(select), conditions_of(outer), strict=True):
        if any(is_scalar(node, scope.functions) for node in written.walk()):
            above.append(replaced)
        else:
            below.append(written)
    return below, above


def _has_clauses(select: Node) -> bool:
    """Whether Spark evaluates more than the items of a SELECT."""
    return any(select.args.get(part) for part in ("where", *CLAUSES))


def _aliases(source: SelectSource, select: Node) -> set[str]:
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


def _leave_out(source: SelectSource, select: Node, hidden: Collection[str], alias: str) -> None:
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
