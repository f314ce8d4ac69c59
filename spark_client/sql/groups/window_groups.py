"""Handles GROUP BY over windows, whose keys are window_start and window_end (FLIP-145).

On a stream, the time with the watermark becomes a key, so that Spark emits a window once and drops its state. If the
windows are created in the same SELECT, rows of overlapping windows are grouped by panes.
"""

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame
from sqlglot import exp

from spark_client.sql.groups.grouping import Grouping
from spark_client.sql.rows.calls import CLAUSES
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.sources import SelectSource
from spark_client.sql.rows.stream_times import time_name
from spark_client.sql.text.nodes import Node, column
from spark_client.windows.columns import WINDOW_COLUMNS, WINDOW_END, WINDOW_START
from spark_client.windows.panes import assign, remember, windowed

__all__ = ["groups_windows", "key_names", "names_window", "over_panes", "with_plain_grouping_id", "with_time"]


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
    return remember(assign(rows, time, known.windows), rows, time, known.windows)


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
