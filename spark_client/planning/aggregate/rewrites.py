"""Rewrites a GROUP BY before it is planned: over panes of windows, or over signed or net rows of a changelog.

Window aggregates by panes: rows of overlapping windows are sent once, accumulators are merged per window. When a row is
sent, its window columns contain the bounds of its pane, and the function sees these in the key. Before the shuffle, the
accumulator of a pane is copied to each window that contains the pane. See spark_client.windows.panes.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField

from spark_client.base.changelogs import kind_code, sign_of
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, identifiers_of, texts_of
from spark_client.base.settings import reads_stream
from spark_client.functions.aggregate import AggregateExpression
from spark_client.functions.arguments import column_of
from spark_client.planning.aggregate.builtins import Builtin, known_builtin, over_signs
from spark_client.planning.aggregate.query import UPDATES, AggregateQuery, GroupBy, Strategy
from spark_client.windows.columns import (
    WINDOW_COLUMNS,
    WINDOW_END,
    WINDOW_START,
    WINDOW_TIME,
    last_millisecond,
    watermark_of,
    zone_of,
)
from spark_client.windows.emitting import update_times, updates
from spark_client.windows.netting import ARRIVAL, changes_of, net_changes
from spark_client.windows.panes import PANE, PANE_END, PANE_START, in_panes, later, windowed

__all__ = ["changelog_query", "pane_query", "with_updates", "with_window_time", "with_zone"]

_WHY = "on a changelog"


def with_window_time(group_by: GroupBy) -> GroupBy:
    """On a stream, add window_time to the keys if window_start and window_end are keys: it carries the watermark."""
    frame, keys = group_by.frame, group_by.keys
    if not reads_stream(frame) or not _of_windows(group_by) or WINDOW_TIME in _names(group_by):
        return group_by
    if not any(field.name == WINDOW_TIME and watermark_of(field) for field in frame.schema.fields):
        return group_by
    sets, end = group_by.sets, _names(group_by).index(WINDOW_END)
    if sets is not None:
        sets = [(*each, len(keys)) if end in each else tuple(each) for each in sets]
    return dataclasses.replace(group_by, keys=[*keys, WINDOW_TIME], sets=sets)


def with_zone(group_by: GroupBy) -> GroupBy:
    """Set `zone` if the keys of a stream are windows by the clock of a time zone."""
    if not _of_windows(group_by):
        return group_by
    return dataclasses.replace(group_by, zone=zone_of(group_by.frame))


def with_updates(group_by: GroupBy) -> GroupBy:
    """Set `updates` if CUMULATE emits only windows with new rows. Raises PlanError."""
    if not _of_windows(group_by):
        return group_by
    updating = updates(group_by.frame)
    return group_by if updating is None else dataclasses.replace(group_by, updates=updating)


def pane_query(group_by: GroupBy, expressions: Sequence[AggregateExpression | Column]) -> AggregateQuery | None:
    """The query over panes; None if its result would differ, or if panes save nothing."""
    known = windowed(group_by.frame)
    names = _names(group_by)
    if known is None or not known.windows.overlap or not _of_windows(group_by):
        return None
    windows = {index: name for index, name in enumerate(names) if name in WINDOW_COLUMNS}
    if group_by.sets is not None and any(not set(windows) <= set(each) for each in group_by.sets):
        return None
    time = group_by.frame.schema[WINDOW_TIME]
    rows = in_panes(known.rows, known.time_col, known.windows)
    pane = _bounds(F.col(PANE), later(F.col(PANE), known.windows.pane), time)
    keys = [pane[name].alias(name) if name in pane else group_by.keys[index] for index, name in enumerate(names)]

    def spread(partial: DataFrame, group_keys: Sequence[str]) -> DataFrame:
        start = next(group_keys[index] for index, name in windows.items() if name == WINDOW_START)
        spread = known.windows.windows(partial.withColumn(PANE, F.col(start)))
        bounds = _bounds(F.col(PANE_START), F.col(PANE_END), time)
        at = {group_keys[index]: name for index, name in windows.items()}
        columns = []
        for column in partial.columns:
            name = at.get(column)
            metadata = watermark_of(time) if name == WINDOW_TIME else None
            value = F.col(column) if name is None else bounds[name]
            columns.append(value.alias(column, metadata=metadata))
        if group_by.updates is not None:
            columns.append((F.col(PANE_END) == later(F.col(PANE), known.windows.pane)).alias(UPDATES))
        return spread.select(*columns)

    try:
        query = AggregateQuery(dataclasses.replace(group_by, frame=rows, keys=keys, spread=spread), expressions)
        # Spark Connect resolves names only when the schema is requested.
        conditions = [column.alias(name) for name, column in query.conditions.items()]
        given = rows.select("*", *conditions)
        _ = given.select(*(column_of(column).alias(name) for name, column in query.hidden.items())).schema
    except AnalysisException:
        # An argument, a condition or a key refers to a column of the windows.
        return None
    fits = not query.builtins and query.remotes
    return query if fits and all(remote.strategy is Strategy.PARTIAL for remote in query.remotes) else None


def changelog_query(group_by: GroupBy, expressions: Sequence[AggregateExpression | Column]) -> AggregateQuery | None:
    """The query in which Spark's own aggregates retract rows; None if it has none, or the frame is no changelog.

    A count or a sum retracts a row by adding its opposite. The minimum, the maximum and distinct values need each
    value, so equal rows are summed up first. On a stream this works for windows only, because they end.

    Raises PlanError if an aggregate cannot retract rows.
    """
    kind = changes_of(group_by.frame, group_by.changelog, "agg")
    if kind is None or all(isinstance(each, AggregateExpression) for each in expressions):
        return None
    known = [
        None if isinstance(each, AggregateExpression) else known_builtin(group_by.frame, each, _WHY)
        for each in expressions
    ]
    if any(each is not None and each.needs_values for each in known):
        if reads_stream(group_by.frame) and not _of_windows(group_by):
            raise PlanError(f"{_WHY} of a stream, min, max and DISTINCT are supported over windows only")
        # Net rows have other columns, so Spark would not resolve columns that belong to the original frame.
        frame = _needed(group_by, known, kind)
        group_by = dataclasses.replace(group_by, frame=net_changes(frame, kind).drop(ARRIVAL))
    sign = sign_of(kind_code(kind))
    signed = [
        each if builtin is None else over_signs(builtin, sign) for each, builtin in zip(expressions, known, strict=True)
    ]
    allowed: Mapping[int, Builtin] = MappingProxyType(
        {id(each): builtin for each, builtin in zip(signed, known, strict=True) if builtin is not None}
    )
    return AggregateQuery(group_by, signed, known=allowed)


def _needed(group_by: GroupBy, known: Sequence[Builtin | None], kind: str) -> DataFrame:
    """The frame without unused columns: they may differ between a row and its retraction."""
    if any(builtin is None for builtin in known) or not all(isinstance(key, str) for key in group_by.keys):
        return group_by.frame
    identifiers, columns = identifiers_of(group_by.frame), group_by.frame.columns
    named = {identifiers.key(text): name for name in columns for text in texts_of(name)}
    texts = identifiers.keys(map(str, group_by.keys))
    if not texts <= named.keys():
        return group_by.frame  # a key may be a field of a struct
    asked = {named[text] for text in texts} | {each.column for each in known if each is not None and each.column}
    keys = identifiers.keys([*asked, kind])
    if group_by.updates is not None:
        keys |= identifiers.keys(update_times(group_by.frame))
    if WINDOW_TIME in columns and reads_stream(group_by.frame):
        keys.add(WINDOW_TIME)
    names = [name for name in columns if identifiers.key(name) in keys]
    return group_by.frame.select(*map(column_named, names))


def _bounds(start: Column, end: Column, time: StructField) -> dict[str, Column]:
    """The columns of a window by name."""
    return dict(zip(WINDOW_COLUMNS, (start, end, last_millisecond(end, time.dataType)), strict=True))


def _names(group_by: GroupBy) -> list[str]:
    """The keys that are given by name, in the form in which Spark compares names; "" for others."""
    same = identifiers_of(group_by.frame).key
    return [same(key) if isinstance(key, str) else "" for key in group_by.keys]


def _of_windows(group_by: GroupBy) -> bool:
    return {WINDOW_START, WINDOW_END} <= set(_names(group_by))
