"""Omits what nothing reads: items of subqueries in a statement with remote aggregates.

Spark does so itself, except below an operator over whole rows, which has all its columns. Without it, a job would pay
for calls of which nobody sees the result, or fail because of them.
"""

from collections.abc import Iterator

from sqlglot import exp

from spark_client.sql.rows.calls import has_aggregate
from spark_client.sql.rows.names import FunctionNames
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.sources import makes_rows
from spark_client.sql.text.nodes import Node, query_in

__all__ = ["without_unused_columns"]


def without_unused_columns(scope: Scope, tree: Node) -> Node:
    """The statement without the items of subqueries and common table expressions that nothing reads.

    If it is not certain that nothing reads an item, it stays. Returns `tree` itself if all items stay.
    """
    if scope.reads_all or not scope.is_planned or query_in(tree) is None:
        return tree
    used = _shortened(tree, scope.functions)
    if used is not tree:
        # An error in what nothing reads is an error, too.
        checked = scope.unexplained()
        query = query_in(checked.rewritten(tree))
        assert query is not None
        checked.around(query).run(query).schema  # noqa: B018
    return used


def _shortened(tree: Node, functions: FunctionNames) -> Node:
    if tree.find(exp.Subquery, exp.CTE) is None:
        return tree
    changed = tree.copy()
    if not sum(_shorten(changed, select, functions) for select in list(_below(changed))):
        return tree
    # Fewer columns are read now, perhaps of further subqueries.
    return _shortened(changed, functions)


def _below(tree: Node) -> Iterator[exp.Select]:
    """The queries in FROM and WITH whose columns are known by the names of their items."""
    for node in tree.find_all(exp.Subquery, exp.CTE):
        alias = node.args.get("alias")
        named = isinstance(alias, exp.TableAlias) and not alias.columns
        placed = isinstance(node, exp.CTE) or isinstance(node.parent, (exp.From, exp.Join))
        if isinstance(node.this, exp.Select) and placed and (named or alias is None):
            yield node.this


def _shorten(tree: Node, select: exp.Select, functions: FunctionNames) -> bool:
    """Remove the items of one query that nothing reads. Returns whether there were any."""
    if _may_read_all(tree, select):
        return False
    # Spark refuses QUALIFY without a window.
    windows = select.args.get("qualify") is not None
    unused = [
        item for item in select.expressions
        if _name(item) and not _is_read(tree, item) and not (windows and item.find(exp.Window))
    ]  # fmt: skip
    if not unused or not _is_simple(select, functions):
        return False
    if len(unused) == len(select.expressions):
        unused = unused[1:]
    for item in unused:
        item.pop()
    return len(unused) > 0


def _is_simple(select: exp.Select, functions: FunctionNames) -> bool:
    """Whether removing items changes neither rows nor the meaning of a clause."""
    if select.args.get("distinct"):
        return False
    group = select.args.get("group")
    whole = any(has_aggregate(item, functions) for item in select.expressions) or select.args.get("having")
    if group is None and whole:
        return False
    clauses = [select.args[part] for part in ("group", "order", "sort") if select.args.get(part) is not None]
    return not any(_may_count_items(clause) for clause in clauses)


def _may_count_items(clause: Node) -> bool:
    """Whether a clause may refer to items by their positions, or to all of them."""
    numbers = any(not literal.is_string for literal in clause.find_all(exp.Literal))
    names = {identifier.name.casefold() for identifier in clause.find_all(exp.Identifier, exp.Var)}
    return numbers or bool(clause.args.get("all")) or "all" in names


def _may_read_all(tree: Node, select: exp.Select) -> bool:
    """Whether something outside of the query may read columns that it does not name."""
    joins, clauses = tree.find_all(exp.Join), tree.find_all(exp.With)
    if tree.find(exp.Pivot) or any(join.args.get("method") for join in joins):
        return True
    if any(clause.args.get("recursive") for clause in clauses):
        return True
    inside = {id(node) for node in select.walk()}
    stars = (node for node in tree.find_all(exp.Star) if id(node) not in inside)
    return any(not _counts(star.parent) for star in stars)


def _counts(call: Node | None) -> bool:
    return isinstance(call, exp.Count) or (isinstance(call, exp.Anonymous) and call.name.casefold() == "count")


def _is_read(tree: Node, item: Node) -> bool:
    """Whether a name like that of the item stands anywhere but in the item, or as the alias of another one."""
    own, wanted = {id(node) for node in item.walk()}, _name(item)
    return any(
        identifier.name.casefold() == wanted
        and id(identifier) not in own
        and not isinstance(identifier.parent, (exp.Alias, exp.TableAlias))
        for identifier in tree.find_all(exp.Identifier)
    )


def _name(item: Node) -> str:
    """The name by which an item is read; empty if it has none, or if it makes rows."""
    if not isinstance(item, (exp.Alias, exp.Column)) or any(makes_rows(node) for node in item.walk()):
        return ""
    return "" if item.is_star else item.alias_or_name.casefold()
