"""The columns that a window function adds, and their watermark.

window_start and window_end are wall clock times without time zone. window_time is the last millisecond of the window,
in the type of the time column. The watermark of the time column moves to window_time, which is never before a row of
the window: Spark allows one watermark column per stream, and a time without time zone cannot be compared with a
watermark, which is an instant.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, WindowSpec
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base import identifiers
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import are_plain, column_named, identifiers_of
from spark_client.windows.intervals import MILLISECOND, interval_column

__all__ = [
    "TIMED", "WATERMARK", "WINDOW_COLUMNS", "WINDOW_END", "WINDOW_START", "WINDOW_TIME", "check_input", "elapsed",
    "emitted", "field_named", "fields_named", "hidden", "in_zone", "last_millisecond", "wall_clock", "watermark_of",
    "with_bounds", "with_metadata", "with_times", "without_metadata", "without_watermark", "zone_metadata", "zone_of",
]  # fmt: skip

WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_TIME = "window_time"
WINDOW_COLUMNS = (WINDOW_START, WINDOW_END, WINDOW_TIME)

WATERMARK = "spark.watermarkDelayMs"
"""The key in a column's metadata by which Spark knows the column of the watermark (EventTimeWatermark.delayKey)."""
TIMED = "remote_udf.timed"
"""The key in a column's metadata for rows that the watermark of their micro-batch made: it ends windows, fires timers,
and releases what ORDER BY holds back. So a process table function after that gets the rows before this watermark."""
_ZONE = "remote_udf.zone"
"""The key in the metadata of window_start for the time zone whose clock it shows, on a stream of instants."""
_DAY = 86_400_000_000
_PLAIN = "remote_udf.plain_time"
"""The key in the metadata of a time column that had the watermark."""


def hidden(name: str) -> str:
    """The name of a column that is removed before the caller receives the frame."""
    return identifiers.hidden(f"window_{name}")


def field_named(frame: DataFrame, name: str, what: str) -> T.StructField:
    """The frame's column of that name, as the session compares names. Raises PlanError unless there is exactly one."""
    if not isinstance(name, str):
        raise PlanError(f"{what} takes the name of a column, not {type(name).__name__}")
    identifiers = identifiers_of(frame)
    found = [field for field in frame.schema.fields if identifiers.same(field.name, name)]
    if len(found) != 1:
        raise PlanError(
            f"{what}: column {name!r} is {'ambiguous' if found else 'not found'} among {', '.join(frame.columns)}"
        )
    return found[0]


def fields_named(frame: DataFrame, names: Sequence[str] | str, what: str) -> list[str]:
    """The names of one or several columns as the frame spells them. Raises PlanError as `field_named`."""
    return [field_named(frame, name, what).name for name in ([names] if isinstance(names, str) else names)]


def check_input(frame: DataFrame, time_col: str, function: str) -> T.StructField:
    """The time column. Raises PlanError if it is no timestamp, or if the frame has a column that would be added."""
    field = field_named(frame, time_col, f"{function}: time column")
    if not isinstance(field.dataType, (T.TimestampType, T.TimestampNTZType)):
        raise PlanError(
            f"{function}: time column {field.name!r} is of type {field.dataType.simpleString()}; "
            "expected timestamp or timestamp_ntz"
        )
    taken = identifiers_of(frame).keys(frame.columns) & set(WINDOW_COLUMNS)
    if taken:
        raise PlanError(
            f"{function}: Column '{sorted(taken)[0]}' is ambiguous: the input has one of that name; rename it first"
        )
    return field


def wall_clock(field: T.StructField) -> Column:
    """The wall clock time; that of an instant is in the session's time zone."""
    return _shown(column_named(field.name), field.dataType)


def elapsed(time: Column, type_: T.DataType, micros: int) -> Column:
    """The time this many microseconds later. `type_` is its type, with or without time zone.

    A day always has 24 hours. Spark's own addition of an interval uses the calendar for whole days.
    """
    if isinstance(type_, T.TimestampType):
        return F.timestamp_micros(F.unix_micros(time) + F.lit(micros))
    return time + interval_column(micros)


def last_millisecond(end: Column, type_: T.DataType) -> Column:
    """The last millisecond, as a `type_`, of a window that ends at a wall clock time.

    If that millisecond occurs twice, because clocks are set back, the second one is returned: rows of the window can
    follow the first one, and would be late.
    """
    last = end - interval_column(MILLISECOND)
    first = last.cast(type_)
    if not isinstance(type_, T.TimestampType):
        return first
    # Computed with the time zone offset of the next day, which is the one after the change.
    second = elapsed((last + interval_column(_DAY)).cast(type_), type_, -_DAY)
    return F.when(_shown(second, type_) == last, second).otherwise(first)


def with_bounds(frame: DataFrame, field: T.StructField, start: Column, end: Column) -> DataFrame:
    """The frame without hidden columns, followed by the columns of the window, with the watermark of the time column.

    `start` and `end` have no time zone.
    """
    return _bounded(frame, field, start, end, last_millisecond(end, field.dataType))


def with_times(frame: DataFrame, field: T.StructField, rows: WindowSpec, micros: int) -> DataFrame:
    """Like `with_bounds`, for windows from the first time of `rows` until this many microseconds after the last."""
    time, type_ = column_named(field.name), field.dataType
    end = elapsed(F.max(time).over(rows), type_, micros)
    last = elapsed(end, type_, -MILLISECOND)
    return _bounded(frame, field, _shown(F.min(time).over(rows), type_), _shown(end, type_), last)


def _bounded(frame: DataFrame, field: T.StructField, start: Column, end: Column, last: Column) -> DataFrame:
    bounded = frame.select(
        "*", start.alias(WINDOW_START, metadata=zone_metadata(frame, field) or None), end.alias(WINDOW_END),
        last.alias(WINDOW_TIME, metadata=watermark_of(field)),
    )  # fmt: skip
    bounded = bounded.drop(*(name for name in frame.columns if name.startswith(hidden(""))))
    return without_watermark(bounded, field)


def zone_metadata(frame: DataFrame, field: T.StructField) -> dict[str, object]:
    """The metadata of window_start over this time column: the session's time zone, if windows of a stream depend on it.

    The state of operators over these windows contains their bounds, so a query must not continue in another time zone.
    """
    if not frame.isStreaming or not isinstance(field.dataType, T.TimestampType):
        return {}
    return {_ZONE: str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))}


def zone_of(frame: DataFrame) -> str | None:
    """The time zone whose clock the windows of a stream show; None if they do not depend on one."""
    zones = (field.metadata.get(_ZONE) for field in frame.schema.fields)
    return next((str(zone) for zone in zones if zone is not None), None)


def in_zone(frame: DataFrame) -> str:
    """The time zone of the windows, for the description of their state; empty if they do not depend on one."""
    zone = zone_of(frame)
    return "" if zone is None else f" in the time zone {zone}"


def _shown(time: Column, type_: T.DataType) -> Column:
    return time.cast("timestamp_ntz") if isinstance(type_, T.TimestampType) else time


def with_metadata(frame: DataFrame, name: str, metadata: dict[str, object]) -> DataFrame:
    """Like DataFrame.withMetadata, which does not support a dot or a backtick in the name of the column."""
    if are_plain([name]):
        return frame.withMetadata(name, metadata)
    names = frame.columns
    places = [hidden(str(place)) for place in range(len(names))]
    return frame.toDF(*places).withMetadata(places[names.index(name)], metadata).toDF(*names)


def watermark_of(field: T.StructField) -> dict[str, object] | None:
    """The metadata that gives another column the watermark of the field; None if it has none."""
    if WATERMARK not in field.metadata:
        return None
    return {key: field.metadata[key] for key in (WATERMARK, TIMED) if key in field.metadata}


def emitted(frame: DataFrame) -> DataFrame:
    """The stream, whose rows are marked as emitted by the watermark."""
    for field in frame.schema.fields:
        if WATERMARK in field.metadata:
            frame = with_metadata(frame, field.name, {**field.metadata, TIMED: True})
    return frame


def without_watermark(frame: DataFrame, field: T.StructField) -> DataFrame:
    """The frame with that column as a plain time, because another column has the watermark now."""
    return without_metadata(frame, field, WATERMARK, _PLAIN) if WATERMARK in field.metadata else frame


def without_metadata(frame: DataFrame, field: T.StructField, key: str, plain: str) -> DataFrame:
    """The frame without a key in the metadata of a column. If it was the only one, `plain` is there instead."""
    kept: dict[str, object] = {name: value for name, value in field.metadata.items() if name != key}
    # If Spark receives empty metadata for a column, the column keeps its old metadata.
    return with_metadata(frame, field.name, kept or {plain: True})
