"""Finds the items of SELECTs that a query needs for every row that it computes, and omits those that nothing reads.

Spark does the second itself, except below an operator over whole rows, which has all its columns. A job with such an
operator would pay for calls of which nobody sees the result, or fail because of them.
"""

from collections.abc import Callable, Iterator, Mapping

from sqlglot import exp

from spark_client.sql.rows.calls import has_aggregate
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.sources import makes_rows
from spark_client.sql.text.nodes import Node, query_in

__all__ = ["AROUND", "OPERATORS", "Needed", "needed_calls", "needed_items", "without_unused_columns"]

AROUND = (exp.Alias, exp.Paren, exp.Neg, exp.Cast)
OPERATORS = (
    exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.DPipe, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE,
)  # fmt: skip
"""Operators that need the values of both operands."""

Needed = Mapping[int, frozenset[str] | None]
"""By `id` of a SELECT, the keys of the names of items that are needed; None for all items."""

_CHANGES_ROWS = ("where", "having", "qualify", "joins", "laterals", "windows")
"""Clauses with which Spark may compute items for some rows only, or more than once."""
_OF_RELATION = ("joins", "laterals", "pivots", "sample")
_READS = (exp.Alias, exp.Paren, exp.Cast)
_FUNCTIONS = frozenset({
    "avg", "bigint", "boolean", "count", "date", "double", "float", "int", "max", "min", "string", "sum", "timestamp",
})  # fmt: skip
"""Functions of Spark's that need the value of their argument, whatever it is."""


def needed_items(query: Node, key: Callable[[str], str], is_remote: Callable[[str], bool]) -> Needed:
    """The SELECTs of a query with items that are needed if the whole result is.

    Args:
        query: The query.
        key: Returns the text by which names are compared.
        is_remote: Returns whether a function is remote: Spark cannot know its value.

    """
    found: dict[int, frozenset[str] | None] = {}

    def visit(tree: Node) -> None:
        if isinstance(tree, exp.Union):
            visit(tree.this)
            visit(tree.expression)
        elif isinstance(tree, exp.Subquery) and isinstance(tree.this, exp.Query):
            visit(tree.this)
        elif isinstance(tree, exp.Select):
            found[id(tree)] = None
            below(tree, None)

    def below(select: exp.Select, needed: frozenset[str] | None) -> None:
        """Visit the query that a SELECT reads, if that is all it reads."""
        relation = select.args["from_"].this if select.args.get("from_") else None
        if not isinstance(relation, exp.Subquery) or not isinstance(inner := relation.this, exp.Select):
            return
        if any(map(select.args.get, _CHANGES_ROWS)) or any(map(relation.args.get, _OF_RELATION)):
            return
        items = [item for item in select.expressions if needed is None or key(item.alias_or_name) in needed]
        read = frozenset(
            key(node.name) for item in items for node in item.find_all(exp.Column)
            if key(node.table) in ("", key(relation.alias_or_name)) and is_certain(node, select)
        )  # fmt: skip
        found[id(inner)] = read
        below(inner, read)

    def is_certain(node: Node, select: Node) -> bool:
        """Whether an item needs the value of a column."""
        while (parent := node.parent) is not select:
            called = isinstance(parent, exp.Anonymous) and (parent.name.lower() in _FUNCTIONS or is_remote(parent.name))
            if parent is None or not (called or isinstance(parent, _READS)):
                return False
            node = parent
        return True

    visit(query)
    return found


def needed_calls(tree: Node, is_call: Callable[[Node], bool]) -> Iterator[Node]:
    """The calls whose values an expression always needs, without those in their arguments."""
    if is_call(tree):
        yield tree
    elif isinstance(tree, AROUND) or _is_part(tree):
        yield from needed_calls(tree.this, is_call)
    elif isinstance(tree, OPERATORS):
        sides = [list(needed_calls(side, is_call)) for side in (tree.left, tree.right) if not _is_value(side)]
        # Spark may reduce an operator over a column to a constant.
        if all(sides):
            yield from (call for side in sides for call in side)


def _is_part(tree: Node) -> bool:
    """Whether a tree is a field or an element of what it contains."""
    if isinstance(tree, exp.Bracket):
        return all(isinstance(index, exp.Literal) for index in tree.expressions)
    return isinstance(tree, exp.Dot) and isinstance(tree.expression, exp.Identifier)


def _is_value(tree: Node) -> bool:
    """Whether a tree is a constant that is not null. A string may become null if Spark casts it to a number."""
    if isinstance(tree, exp.Neg):
        return _is_value(tree.this)
    return isinstance(tree, exp.Boolean) or (isinstance(tree, exp.Literal) and not tree.is_string)


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


def _shortened(tree: Node, functions: SqlFunctions) -> Node:
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


def _shorten(tree: Node, select: exp.Select, functions: SqlFunctions) -> bool:
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


def _is_simple(select: exp.Select, functions: SqlFunctions) -> bool:
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
