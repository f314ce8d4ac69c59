"""Computes Spark's own aggregates over a changelog: counts and sums use signed rows, the others use net rows.

A count or a sum retracts a row by adding its opposite. The minimum, the maximum and distinct values need each
value, so equal rows are summed up first. On a stream this works for windows only, because they end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from pyspark.sql import Column, DataFrame

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, identifiers_of, texts_of
from spark_client.functions.aggregate import AggregateExpression
from spark_client.planning.aggregate.builtins import Builtin, known_builtin, over_signs
from spark_client.planning.aggregate.query import AggregateQuery, GroupBy
from spark_client.windows.columns import WINDOW_END, WINDOW_START, WINDOW_TIME
from spark_client.windows.netting import ARRIVAL, changes_of, net_changes, sign_of
from spark_client.windows.updates import update_times

__all__ = ["changelog_query"]

_WHY = "on a changelog"


def changelog_query(group_by: GroupBy, expressions: Sequence[AggregateExpression | Column]) -> AggregateQuery | None:
    """The query in which Spark's own aggregates retract rows; None if it has none, or the frame is no changelog.

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
        names = [key if isinstance(key, str) else "" for key in group_by.keys]
        of_windows = {WINDOW_START, WINDOW_END} <= identifiers_of(group_by.frame).keys(names)
        if group_by.frame.isStreaming and not of_windows:
            raise PlanError(f"{_WHY} of a stream, min, max and DISTINCT are supported over windows only")
        # Net rows have other columns, so Spark would not resolve columns that belong to the original frame.
        frame = _needed(group_by, known, kind)
        group_by = replace(group_by, frame=net_changes(frame, kind).drop(ARRIVAL))
    sign = sign_of(kind)
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
    if WINDOW_TIME in columns and group_by.frame.isStreaming:
        keys.add(WINDOW_TIME)
    names = [name for name in columns if identifiers.key(name) in keys]
    return group_by.frame.select(*map(column_named, names))
