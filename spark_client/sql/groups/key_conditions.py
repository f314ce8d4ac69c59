"""Splits HAVING: Spark checks conditions on keys alone before it groups, so rows that fail them are not aggregated.

It does so for its own aggregates. It cannot do so below an operator over whole rows, which a remote aggregate is, so
these conditions are written into WHERE here. Otherwise a query would pay for groups that nobody sees, or fail because
of them.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from sqlglot import exp

from spark_client.sql.rows.names import FunctionNames
from spark_client.sql.text.nodes import Node, conjuncts

__all__ = ["split_having"]

_OF_SEVERAL_ROWS = (exp.Query, exp.Window)
_OF_SPARKS_WINDOWS = ("window", "session_window", "window_time")
"""Functions of Spark's that it evaluates nowhere but in GROUP BY."""


def split_having(
    condition: Node, keys: Mapping[str, Node], others: Collection[str], items: Iterable[Node], names: FunctionNames
) -> tuple[list[Node], list[Node]]:
    """The parts of HAVING that hold for all rows of a group or for none, over the rows, and the others as they are.

    Args:
        condition: The condition over the columns of the groups.
        keys: The keys that every grouping set has, by the names of their columns.
        others: The names of the other columns of the groups.
        items: The items of the SELECT. If one may differ at each evaluation, Spark moves no condition.
        names: The meaning of functions.

    """
    below: list[Node] = []
    above: list[Node] = []
    movable = all(known is not False for tree in items for known in _determinism(tree, names))
    for part in conjuncts(condition):
        over_rows = _over_rows(part, keys, others) if movable else None
        if over_rows is None or not _is_checked_by_spark(over_rows, names):
            above.append(part)
        else:
            below.append(over_rows)
    return below, above


def _over_rows(part: Node, keys: Mapping[str, Node], others: Collection[str]) -> Node | None:
    """The condition with the keys in place of their columns.

    None if it does not depend on keys alone, or if a lambda has a parameter that is a name in a key: in the lambda, the
    key would be that parameter.
    """
    read = {column.name for column in part.find_all(exp.Column)}
    if not read & keys.keys() or read & set(others):
        return None
    hidden = {parameter.name.lower() for each in part.find_all(exp.Lambda) for parameter in each.expressions}
    if hidden and any(
        name.name.lower() in hidden for key in read & keys.keys() for name in keys[key].find_all(exp.Identifier)
    ):
        return None

    def written(node: Node) -> Node:
        key = keys.get(node.name) if isinstance(node, exp.Column) else None
        if key is None:
            return node
        return key.copy() if isinstance(key, exp.Column) else exp.paren(key.copy(), copy=False)

    return exp.paren(part.copy(), copy=False).transform(written)


def _is_checked_by_spark(tree: Node, names: FunctionNames) -> bool:
    """Whether Spark alone can evaluate a condition on a row."""
    calls = [node.name.lower() for node in tree.walk() if isinstance(node, exp.Anonymous)]
    if any(isinstance(node, _OF_SEVERAL_ROWS) for node in tree.walk()) or not set(calls).isdisjoint(_OF_SPARKS_WINDOWS):
        return False
    return not any(map(names.is_remote_scalar, calls)) and all(_determinism(tree, names))


def _determinism(tree: Node, names: FunctionNames) -> Iterator[bool | None]:
    """Whether each call in a tree is deterministic; None if that is unknown, as for functions with a qualified name."""
    for node in tree.find_all(exp.Anonymous):
        qualified = isinstance(node.parent, exp.Dot) and node.arg_key == "expression"
        yield None if qualified else names.is_deterministic(node.name)
