"""Finds the items of SELECTs, and the calls in them, whose values a query needs for every row that it computes."""

from collections.abc import Callable, Iterator, Mapping

from sqlglot import exp

from spark_client.sql.text.nodes import Node

__all__ = ["AROUND", "OPERATORS", "Needed", "needed_calls", "needed_items"]

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
