"""Reads GROUP BY: the keys of a SELECT and its grouping sets."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from sqlglot import exp

from spark_client.sql.rows.sources import SelectSource, alias_in, is_column
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.writers import canonical

__all__ = ["Grouping", "read_grouping"]

_Set = tuple[Node, ...]


@dataclass(frozen=True)
class Grouping:
    """The keys without repetitions, and the grouping sets as positions of keys; None without grouping sets."""

    keys: list[Node]
    sets: list[tuple[int, ...]] | None = None


def read_grouping(source: SelectSource, select: Node, is_aggregate: Callable[[Node], bool]) -> Grouping:
    """Read the keys. Ordinals and aliases refer to items of the SELECT; a column precedes an alias, as in Spark.

    Raises PlanError, with the position, for an invalid ordinal.
    """
    group = select.args.get("group")
    if group is None:
        return Grouping([])
    if group.args.get("all"):
        return Grouping(_keys_of_all(source, select, is_aggregate))
    reader = _Reader(source, select, is_aggregate)
    return reader.read(group)


def _keys_of_all(source: SelectSource, select: Node, is_aggregate: Callable[[Node], bool]) -> list[Node]:
    """The items without an aggregate. An item that names an item with an aggregate counts as having one."""
    keys: list[Node] = []
    aliases: set[str] = set()
    for item in select.expressions:
        named = any(alias_in(node, aliases, source.key) and not source.has(node.parts[0].name) for node in item.walk())
        if named or is_aggregate(item):
            aliases.add(source.key(item.alias))
        else:
            keys.append(_unaliased(item))
    return keys


class _Reader:
    def __init__(self, source: SelectSource, select: Node, is_aggregate: Callable[[Node], bool]) -> None:
        self._source = source
        self._items = select.expressions
        self._is_aggregate = is_aggregate

    def read(self, group: Node) -> Grouping:
        plain = list(group.expressions)
        behind = [each for part in ("grouping_sets", "cube", "rollup") for each in group.args.get(part) or ()]
        if behind and plain and not any(isinstance(each, _SETS) for each in plain):
            # Hive's syntax: GROUP BY a, b WITH ROLLUP, GROUP BY a, b GROUPING SETS (...).
            first = [self._resolved(each) for each in plain]
            if not behind[0].expressions:
                behind = [type(behind[0])(expressions=[each.copy() for each in plain])]
            return self._grouping(first, self._sets(behind[0]))
        elements = [*plain, *behind]
        if not any(isinstance(each, _SETS) for each in elements):
            return self._grouping([self._resolved(each) for each in _flat(elements)], None)
        products = itertools.product(*(self._sets(each) for each in elements))
        return self._grouping([], [tuple(itertools.chain(*parts)) for parts in products])

    def _sets(self, element: Node) -> list[_Set]:
        """The grouping sets that an element of GROUP BY represents."""
        if isinstance(element, exp.Rollup):
            units = [self._unit(each) for each in element.expressions]
            return [tuple(itertools.chain(*units[:count])) for count in range(len(units), -1, -1)]
        if isinstance(element, exp.Cube):
            units = [self._unit(each) for each in element.expressions]
            chosen = itertools.product((True, False), repeat=len(units))
            return [tuple(itertools.chain(*itertools.compress(units, mask))) for mask in chosen]
        if isinstance(element, exp.GroupingSets):
            return [found for each in element.expressions for found in self._sets(each)]
        return [self._unit(element)]

    def _unit(self, element: Node) -> _Set:
        return tuple(self._resolved(each) for each in _flat([element]))

    def _resolved(self, key: Node) -> Node:
        if isinstance(key, exp.Literal) and not key.is_string and key.is_int:
            return self._item(key)
        if is_column(key) and not self._source.has(key.name):
            same = self._source.key
            named = [i for i in self._items if isinstance(i, exp.Alias) and same(i.alias) == same(key.name)]
            if named:
                return self._without_aggregate(named[0].this, key)
        return key

    def _item(self, ordinal: Node) -> Node:
        position = int(ordinal.this)
        if not 1 <= position <= len(self._items):
            raise error_at(ordinal, f"GROUP BY {position}: there are {len(self._items)} columns in the SELECT")
        item = self._items[position - 1]
        if item.is_star:
            raise error_at(item, f"GROUP BY {position}: that is a *; name the column")
        return self._without_aggregate(_unaliased(item), ordinal)

    def _without_aggregate(self, item: Node, key: Node) -> Node:
        if self._is_aggregate(item):
            raise error_at(item, f"GROUP BY {canonical(key)}: that is an aggregate")
        return item

    def _grouping(self, first: list[Node], sets: list[_Set] | None) -> Grouping:
        keys: dict[str, Node] = {}
        for key in itertools.chain(first, *(sets or ())):
            keys.setdefault(self._source.same(key), key)
        if sets is None:
            return Grouping(list(keys.values()))
        place = {same: position for position, same in enumerate(keys)}
        return Grouping(
            list(keys.values()),
            [tuple(sorted({place[self._source.same(key)] for key in chosen})) for chosen in sets],
        )


_SETS = (exp.Rollup, exp.Cube, exp.GroupingSets)


def _flat(elements: list[Node]) -> list[Node]:
    """The expressions inside of nested parentheses."""
    flat = []
    for element in elements:
        if isinstance(element, exp.Tuple):
            flat += _flat(element.expressions)
        else:
            flat.append(element.this if isinstance(element, exp.Paren) else element)
    return flat


def _unaliased(item: Node) -> Node:
    return item.this if isinstance(item, exp.Alias) else item
