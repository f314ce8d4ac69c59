"""Window join: rows of two frames that are in the same window (FLIP-145)."""

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_client.base.changelogs import kind_column, require_no_fires
from spark_client.base.errors import PlanError
from spark_client.base.grouped import described_rows
from spark_client.base.identifiers import column_named, identifiers_of
from spark_client.windows.columns import (
    WATERMARK,
    WINDOW_COLUMNS,
    WINDOW_TIME,
    field_named,
    hidden,
    in_zone,
    watermark_of,
)
from spark_client.windows.netting import ARRIVAL, changes_of, settled

__all__ = ["each_once", "window_join", "with_row_ids", "without_repeats"]

_MATCHED = hidden("matched")
_ROW = hidden("row")
_STATE = {side: hidden(f"{side}_state") for side in ("left", "right")}
_KINDS = {
    "inner": "inner", "left": "left", "leftouter": "left", "right": "right", "rightouter": "right",
    "full": "full", "outer": "full", "fullouter": "full", "semi": "left_semi", "leftsemi": "left_semi",
    "anti": "left_anti", "leftanti": "left_anti",
}  # fmt: skip


def window_join(
    left: DataFrame, right: DataFrame, on: Sequence[str] | str = (), how: str = "inner", *,
    condition: Column | None = None, null_safe: bool = False, changelog: bool | None = None,
) -> DataFrame:  # fmt: skip
    """Join the rows of two windowed frames that are in the same window.

    The result has the window's columns and those of `on` once, then the other columns of the left frame and, unless
    the join is semi or anti, of the right frame. On streams both frames must have window_time with a watermark: Spark
    removes a window when the watermark has passed it, and only then emits the unmatched rows of outer and anti joins.
    Of a changelog, the rows that remain of each window are joined, without the column of their kinds.

    Args:
        left: A frame that a window function returned.
        right: The other frame.
        on: Names of columns that must be equal, in addition to window_start and window_end.
        how: inner, left, right, full, semi or anti.
        condition: A further condition, over columns whose names only one frame has.
        null_safe: Null keys are equal to each other.
        changelog: False treats frames with `row_kind` or `_change_type` as plain tables, True requires a changelog.

    Raises:
        PlanError: A frame cannot be joined like this; the message has the reason.
    """
    kind = _KINDS.get(how.lower().replace("_", "").replace(" ", ""))
    if kind is None:
        raise PlanError(f"window_join: how {how!r} is not one of inner, left, right, full, semi, anti")
    if changelog and all(kind_column(frame) is None for frame in (left, right)):
        raise PlanError("window_join: no column 'row_kind' or '_change_type' makes one of the frames a changelog")
    for side, frame in (("left", left), ("right", right)):
        require_no_fires(frame, f"window_join: {side} frame")
    left, right = _settled(left, changelog, "left"), _settled(right, changelog, "right")
    names = [on] if isinstance(on, str) else list(on)
    identifiers = identifiers_of(left)
    both = [left, right]
    windows = [name for name in WINDOW_COLUMNS if name != WINDOW_TIME or all(WINDOW_TIME in f.columns for f in both)]
    keys = [*windows, *(name for name in names if identifiers.key(name) not in WINDOW_COLUMNS)]
    fields = [[field_named(frame, key, f"window_join: {side} frame") for key in keys]
              for side, frame in zip(("left", "right"), both, strict=True)]  # fmt: skip
    _check_streams(left, right, kind)
    hide = {field.name: hidden(f"right_{index}") for index, field in enumerate(fields[1])}
    renamed = right.withColumnsRenamed(hide)
    pairs = [(column_named(field.name), F.col(hidden(f"right_{index}"))) for index, field in enumerate(fields[0])]
    equal = []
    for index, (one, other) in enumerate(pairs):
        equal.append(one.eqNullSafe(other) if null_safe and index >= len(windows) else one == other)
        if kind == "full" and not null_safe:
            # In the state of a stream Spark treats null keys as equal; in other joins it removes them first.
            equal.append(one.isNotNull())
    if condition is not None:
        equal.append(condition)
    if left.isStreaming and renamed.isStreaming:
        left, renamed = _with_description(left, "left"), _with_description(renamed, "right")
        equal.append(column_named(_STATE["left"]).isNull() | column_named(_STATE["right"]).isNull())
    matches = reduce(lambda one, other: one & other, equal)
    if kind in ("left_semi", "left_anti") and left.isStreaming and right.isStreaming:
        taken = identifiers.keys(left.columns)
        wanted = renamed.select(*(column_named(name) for name in renamed.columns if identifiers.key(name) not in taken))
        join = _semi if kind == "left_semi" else _anti
        compared = [*hide.values(), _STATE["right"]]
        joined = join(left, wanted, matches, compared if condition is None else None)
    else:
        joined = left.join(renamed, matches, kind)
    shown = []
    for field, (one, other) in zip(fields[0], pairs, strict=True):
        value = {"right": other, "full": F.coalesce(one, other)}.get(kind, one)
        shown.append(value.alias(field.name, metadata=watermark_of(field)))
    own = [*(f.name for f in fields[0]), *_STATE.values()]
    rest = [column_named(name) for name in left.columns if name not in own]
    if kind not in ("left_semi", "left_anti"):
        rest += [column_named(name) for name in renamed.columns if name not in (*hide.values(), *_STATE.values())]
    _check_names(left, renamed, own, kind)
    return joined.select(*shown, *rest)


def _with_description(frame: DataFrame, side: str) -> DataFrame:
    """The rows of a stream with a column that describes them in the state of the join."""
    description = f"{side} rows {frame.schema.simpleString()}{in_zone(frame)}"
    return frame.select("*", described_rows(description).alias(_STATE[side]))


def _settled(frame: DataFrame, changelog: bool | None, side: str) -> DataFrame:
    """The net rows of a changelog; any other frame unchanged."""
    kind = changes_of(frame, False if changelog is False else None, f"window_join: {side} frame")
    return frame if kind is None else settled(frame, kind).drop(ARRIVAL)


def _semi(left: DataFrame, right: DataFrame, matches: Column, equal: Sequence[str] | None) -> DataFrame:
    """An inner join that returns each row with a partner once.

    Spark's semi join does not keep a row of the right side if its window ends in the same micro-batch, and since 4.3 it
    joins the left side after that (SPARK-55973). So windows that an aggregate emits at their end would find no partner.
    `equal` are the compared columns of the right frame; None if there is another condition.
    """
    if equal is not None:
        return left.join(without_repeats(right, equal), matches)
    both = with_row_ids(left)
    return each_once(both.join(right, matches).select(*map(column_named, both.columns)), WINDOW_TIME)


def _anti(left: DataFrame, right: DataFrame, matches: Column, equal: Sequence[str] | None) -> DataFrame:
    """An outer join without the matched rows, because Spark has no anti join of streams."""
    marked = right.select("*", F.lit(True).alias(_MATCHED))
    return left.join(marked, matches, "left").where(F.col(_MATCHED).isNull())


def _check_streams(left: DataFrame, right: DataFrame, kind: str) -> None:
    streams = [frame for frame in (left, right) if frame.isStreaming]
    if len(streams) < 2:
        return
    for side, frame in (("left", left), ("right", right)):
        if not any(f.name == WINDOW_TIME and WATERMARK in f.metadata for f in frame.schema.fields):
            raise PlanError(f"window_join: the {side} stream has no column window_time with a watermark")


def _check_names(left: DataFrame, right: DataFrame, keys: Sequence[str], kind: str) -> None:
    if kind in ("left_semi", "left_anti"):
        return
    identifiers = identifiers_of(left)
    taken = identifiers.keys(keys)
    twice = [name for name in identifiers.repeated([*left.columns, *right.columns]) if name not in taken]
    if twice:
        raise PlanError(f"window_join: both frames have a column {twice[0]!r}; rename one, or join on it")


def without_repeats(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """These columns without repeated rows. They include the time with the watermark, so that the state is dropped.

    If only these columns are compared, and for equality, a row on the left has at most one partner.
    """
    return frame.select(*map(column_named, names)).dropDuplicates(list(names))


def with_row_ids(frame: DataFrame) -> DataFrame:
    """The left frame with a column by which `each_once` identifies its rows if they may have several partners."""
    return frame.select("*", F.expr("uuid()").alias(_ROW))


def each_once(joined: DataFrame, time: str) -> DataFrame:
    """Each row of `with_row_ids` once, without the added column. `time` is the column with the watermark."""
    return joined.dropDuplicates([_ROW, time]).drop(_ROW)
