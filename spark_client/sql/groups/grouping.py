"""Reads GROUP BY: the keys of a SELECT and its grouping sets; and the windows among the keys (FLIP-145).

On a stream, the time of a window with the watermark becomes a key, so that Spark emits a window once and drops its
state. If the windows are created in the same SELECT, rows of overlapping windows are grouped by panes.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from sqlglot import exp

from spark_client.sql.rows.calls import CLAUSES
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.sources import SelectSource, alias_in, is_column
from spark_client.sql.rows.stream_times import time_name
from spark_client.sql.text.nodes import Node, column
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.writers import canonical
from spark_client.windows.columns import WINDOW_COLUMNS, WINDOW_END, WINDOW_START
from spark_client.windows.panes import assign, windowed

__all__ = [
    "Grouping", "groups_windows", "key_names", "names_window", "over_panes", "read_grouping", "with_plain_grouping_id",
    "with_time",
]  # fmt: skip

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
    return _Reader(source, select, is_aggregate).read(group)


def _keys_of_all(source: SelectSource, select: Node, is_aggregate: Callable[[Node], bool]) -> list[Node]:
    """The items without an aggregate. An item that names an item with an aggregate counts as having one."""
    keys: list[Node] = []
    aliases: set[str] = set()
    for item in select.expressions:
        named = any(alias_in(node, aliases, source.key) and not source.has(node.parts[0].name) for node in item.walk())
        if named or is_aggregate(item):
            aliases.add(source.key(item.alias))
        else:
            keys.append(item.unalias())
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
        return self._without_aggregate(item.unalias(), ordinal)

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


def groups_windows(source: SelectSource, keys: Sequence[Node]) -> bool:
    """Whether the keys contain the bounds of a window."""
    return {WINDOW_START, WINDOW_END} <= {_window_column(source, key) for key in keys}


def key_names(scope: Scope, source: SelectSource, keys: Sequence[Node]) -> dict[str, str]:
    """The columns of keys, by `SelectSource.same`; they are hidden, except the columns of windows."""
    names: dict[str, str] = {}
    for key in keys:
        own = _window_column(source, key)
        names[source.same(key)] = own if own and own not in names.values() else scope.hidden("key")
    return names


def with_time(source: SelectSource, grouping: Grouping) -> Grouping:
    """If this is a window aggregate of a stream, add its time as a key to every set that has the end of the window."""
    if not groups_windows(source, grouping.keys) or not source.frame.isStreaming:
        return grouping
    name = time_name(source.frame)
    if name is None or source.same(column(name)) in map(source.same, grouping.keys):
        return grouping
    end = next(place for place, key in enumerate(grouping.keys) if _window_column(source, key) == WINDOW_END)
    time = len(grouping.keys)
    sets = grouping.sets
    if sets is not None:
        sets = [(*chosen, time) if end in chosen else chosen for chosen in sets]
    return Grouping([*grouping.keys, column(name)], sets)


def over_panes(scope: Scope, source: SelectSource, items: Mapping[str, Node]) -> DataFrame | None:
    """`source.base(items)` with panes that the planner knows; None if the windows do not share panes.

    Everything except the columns of the window is computed before rows are assigned to windows, so it must not depend
    on windows.
    """
    frame = scope.frame_of(source.only_table)
    known = windowed(frame) if frame is not None else None
    if known is None or not known.windows.overlap:
        return None
    own = {name for name, tree in items.items() if name in WINDOW_COLUMNS and _window_column(source, tree) == name}
    rest = {name: tree for name, tree in items.items() if name not in own}
    if any(names_window(source, tree) for tree in [*rest.values(), source.condition] if tree is not None):
        return None
    scope.stages.append(f"{known.windows.name}: rows are sent once per pane, not once per window")
    time = scope.hidden("time")
    rows = source.over(scope.table(known.rows)).base({**rest, time: column(known.time_col)})
    return assign(rows, time, known.windows)


def with_plain_grouping_id(select: Node, keys: Sequence[Node]) -> Node:
    """The SELECT with `grouping` in place of `grouping_id` of some of the keys, which Spark does not support."""

    def plain(node: Node) -> Node:
        if not isinstance(node, exp.Anonymous) or node.name.lower() != "grouping_id" or not node.expressions:
            return node
        if len(node.expressions) == len(keys):
            return node
        bits = [
            exp.Anonymous(this="shiftleft", expressions=[_grouping(each), exp.Literal.number(shift)])
            for shift, each in enumerate(reversed(node.expressions))
        ]
        total: Node = bits[0]
        for each in bits[1:]:
            total = exp.Add(this=total, expression=each)
        return exp.cast(total, "bigint", dialect="spark")

    items = [
        exp.alias_(item.transform(plain), f"grouping_id({', '.join(e.name for e in item.expressions)})", quoted=True)
        if isinstance(item, exp.Anonymous) and item.name.lower() == "grouping_id" and item.expressions
        else item.transform(plain)
        for item in select.expressions
    ]
    select = select.copy()
    select.set("expressions", items)
    for part in CLAUSES:
        if select.args.get(part) is not None:
            select.set(part, select.args[part].transform(plain))
    return select


def _grouping(tree: Node) -> Node:
    return exp.cast(exp.Anonymous(this="grouping", expressions=[tree.copy()]), "bigint", dialect="spark")


def _window_column(source: SelectSource, tree: Node) -> str:
    """The name of a column of windows; "" for any other tree."""
    name = source.key(tree.name) if isinstance(tree, exp.Column) else ""
    return name if name in WINDOW_COLUMNS else ""


def names_window(source: SelectSource, tree: Node) -> bool:
    """Whether a tree may depend on the window of a row."""
    return any(bool(_window_column(source, node)) or isinstance(node, (exp.Star, exp.Query)) for node in tree.walk())
