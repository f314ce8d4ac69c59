"""Rewrites the rest of a SELECT with GROUP BY: keys and aggregates become columns.

`split_having` splits HAVING. Spark checks conditions on keys alone before it groups, so rows that fail them are not
aggregated. It cannot do so below an operator over whole rows, which a remote aggregate is, so these conditions are
written into WHERE. Otherwise a query would pay for groups that nobody sees, or fail because of them.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TypeGuard

from pyspark.errors import AnalysisException
from sqlglot import exp

from spark_client.sql.groups.hidden import keep_field_names
from spark_client.sql.rows.calls import aggregate_of, is_aggregate, is_qualified
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.sources import SelectSource, alias_in, is_column
from spark_client.sql.text.nodes import Node, alias_of, column, conjuncts
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.writers import canonical

__all__ = ["OverGroups", "split_having", "tables_of_keys"]

_MADE = ("window", "session_window")
"""Functions of Spark's that name their column in GROUP BY: SELECT window.start ... GROUP BY window(ts, ...)."""


class OverGroups:
    """`keys` has hidden columns by `SelectSource.same` of the key; `aggregate` returns the column of an aggregate."""

    def __init__(
        self, source: SelectSource, names: SqlFunctions, keys: Mapping[str, str], aggregate: Callable[[Node], Node]
    ) -> None:
        self._source = source
        self._names = names
        self._keys = keys
        self._made = {name: key for name in _MADE for same, key in keys.items() if same.startswith(f"{name.upper()}(")}
        self._aggregate = aggregate

    def item(self, tree: Node, aliases: Collection[str]) -> Node:
        """Rewrite an item of the SELECT. A name that is no column may be one of `aliases`, those of earlier items."""
        return self._rewritten(tree, {alias for alias in aliases if not self._source.has(alias)}, {}, False)

    def condition(self, tree: Node, written: Mapping[str, Node], *, aliases_first: bool = False) -> Node:
        """Rewrite HAVING. Aliases, by their keys in `written`, are replaced by the items that they name.

        A name refers to a key first, as in Spark; with grouping sets, to an alias first.
        """
        return self._rewritten(tree, set(), written, aliases_first)

    def clause(self, tree: Node, outputs: Collection[str]) -> Node:
        """Rewrite ORDER BY or a similar clause, in which a name refers to an output first, then to a key."""
        return self._rewritten(tree, set(outputs), {}, True)

    def _rewritten(self, tree: Node, known: set[str], written: Mapping[str, Node], outputs_first: bool) -> Node:
        def visit(node: Node) -> Node:
            if isinstance(node, exp.Identifier):
                return node
            if outputs_first and self._is_output(node, known):
                return node.copy()
            if outputs_first and self._is_output(node, set(written)):
                return self._item(node, written)
            # A name that refers to an output makes the expression differ from a key with the same text.
            named = outputs_first and any(self._is_output(each, known | set(written)) for each in node.walk())
            if not named and not isinstance(node, exp.Ordered):
                key = self._keys.get(self._source.same(node))
                if key is not None:
                    return column(key)
            if isinstance(node, exp.Query):
                return node.copy()  # a copy, so that the transformation does not descend into it
            if isinstance(node, exp.Window):
                return self._window(node, visit)
            if is_aggregate(aggregate_of(node), self._names):
                return self._aggregate(node)
            if isinstance(node, exp.Column):
                return self._column(node, known, written)
            keep_field_names(node)
            return node

        return tree.transform(visit)

    def _item(self, node: exp.Column, written: Mapping[str, Node]) -> Node:
        """The item of the SELECT that a name refers to, or a field of it."""
        first, *fields = node.parts
        item = self.condition(written[self._source.key(first.name)], {})
        return exp.Dot.build([exp.paren(item), *(each.copy() for each in fields)]) if fields else item

    def _window(self, window: Node, visit: Callable[[Node], Node]) -> Node:
        """Rewrite a window over groups: its arguments refer to keys and aggregates; its call stays."""
        copy = window.copy()
        call = aggregate_of(copy.this)
        around = copy.this
        inside = [*call.expressions, *(copy.args.get("partition_by") or ()), copy.args.get("order")]
        while around is not call:
            inside.append(around.args.get("expression"))
            around = around.this
        for part in inside:
            if part is not None:
                part.replace(part.transform(visit))
        return copy

    def _column(self, node: exp.Column, known: set[str], written: Mapping[str, Node]) -> Node:
        name = self._source.key(node.name)
        if is_column(node) and name in written:
            return self.condition(written[name], {})
        if self._is_alias(node, known):
            return node.copy()
        owner = self._keys.get(self._source.same(exp.column(node.table))) if node.table else None
        if owner is not None:  # a field of a key that is a struct
            return exp.Dot(this=column(owner), expression=exp.to_identifier(node.name, quoted=True))
        first, *rest = node.parts
        if (made := self._made.get(self._source.key(first.name))) is not None and not self._source.has(first.name):
            return exp.Dot.build([column(made), *(each.copy() for each in rest)]) if rest else column(made)
        if not self._source.has(first.name) and self._source.constant_name(node) is not None:
            return node.copy()
        raise error_at(node, f"{canonical(node)} is neither in GROUP BY nor in an aggregate{self._around(node)}")

    def _around(self, node: exp.Column) -> str:
        """Which function has the column as an argument: its name may be that of an aggregate, mistyped."""
        call = node.find_ancestor(exp.Anonymous)
        if call is None:
            return ""
        near = "" if self._names.remote(call.name) else f" {self._names.functions.near(call.name)}"
        return f"; {call.name} is not an aggregate{near}"

    def _is_output(self, node: Node, outputs: set[str]) -> TypeGuard[exp.Column]:
        return alias_in(node, outputs, self._source.key) and not self._source.shows(node)

    def _is_alias(self, node: Node, known: set[str]) -> bool:
        if not alias_in(node, known, self._source.key):
            return False
        return not self._source.is_of_relation(node) and not self._source.shows(node)


def tables_of_keys(source: SelectSource, select: Node, keys: Mapping[str, Node]) -> list[Node]:
    """A join for each table of the SELECT, with a table of one row that has its name and those of its `keys`.

    It gives the keys their names again for subqueries that refer to them, as in HAVING EXISTS (... = t.k). They are not
    rewritten, because only Spark knows which of their names refer to the SELECT around them. `select` is the rewritten
    SELECT: if it has no subqueries, there are no joins. `keys` contains the keys by the names of their columns, which
    are hidden, except those of windows.
    """
    rest = select.copy()
    rest.set("with_", None)
    if not any(isinstance(node, exp.Query) for node in rest.walk() if node is not rest):
        return []
    found: dict[str, list[Node]] = {}
    for name, key in keys.items():
        relation = _relation_of(source, key) if isinstance(key, exp.Column) else None
        if relation is not None and source.key(name) != source.key(key.name):
            found.setdefault(relation, []).append(exp.alias_(column(name), key.name, quoted=True))
    return [
        exp.Join(
            this=exp.Lateral(
                this=exp.Subquery(this=exp.Select(expressions=items)),
                alias=alias_of(relation),
            )
        )
        for relation, items in found.items()
    ]


def _relation_of(source: SelectSource, key: exp.Column) -> str | None:
    """The table of a key; None if the key is a field, or its name has more parts than a table and a column."""
    if len(key.parts) > 2 or (key.table and not source.names_relation(key.table)):
        return None
    if key.table:
        return source.key(key.table)
    if len(source.relations) == 1:
        return min(source.relations)
    return next((each for each in sorted(source.relations) if _has_column(source, each, key.name)), None)


def _has_column(source: SelectSource, relation: str, name: str) -> bool:
    try:
        source.run(source.selecting([column(name, relation)]))
    except AnalysisException:
        return False
    return True


_OF_SEVERAL_ROWS = (exp.Query, exp.Window)
_OF_SPARKS_WINDOWS = ("window", "session_window", "window_time")
"""Functions of Spark's that it evaluates nowhere but in GROUP BY."""


def split_having(
    condition: Node, keys: Mapping[str, Node], others: Collection[str], items: Iterable[Node], names: SqlFunctions
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


def _is_checked_by_spark(tree: Node, names: SqlFunctions) -> bool:
    """Whether Spark alone can evaluate a condition on a row."""
    calls = [node.name.lower() for node in tree.walk() if isinstance(node, exp.Anonymous)]
    if any(isinstance(node, _OF_SEVERAL_ROWS) for node in tree.walk()) or not set(calls).isdisjoint(_OF_SPARKS_WINDOWS):
        return False
    return not any(map(names.is_remote_scalar, calls)) and all(_determinism(tree, names))


def _determinism(tree: Node, names: SqlFunctions) -> Iterator[bool | None]:
    """Whether each call in a tree is deterministic; None if that is unknown, as for functions with a qualified name."""
    for node in tree.find_all(exp.Anonymous):
        yield None if is_qualified(node) else names.is_deterministic(node.name)
