"""When aggregates emit a window, other than once at its end.

The options of early firing, late firing and allowed lateness (FLIP-392) are read here; `Firing` implements them.

With emitOnlyOnUpdate, CUMULATE emits a window if rows came in its last step (FLINK-39030):

    step 2, size 6     |--a--|-----|--c--|
                       [-----)              emitted: a row came in it
                       [-----------)        skipped: the same as before
                       [-----------------)  emitted

A window function returns rows; only the aggregation knows which windows of a key have new rows. So this option is
recorded in the metadata of the columns.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from remote_udf.durations import format_seconds, parse_seconds
from remote_udf.effective_options import canonical, resolve
from remote_udf.option_tables import Option, option, table_of
from remote_udf.option_values import ValueReader, switch
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, identifiers_of
from spark_client.base.options import EMIT_PREFIX
from spark_client.executor.aggregate.firing import EmitOptions
from spark_client.windows.columns import WINDOW_END, wall_clock, with_metadata, without_metadata
from spark_client.windows.intervals import interval_column

__all__ = [
    "EMIT_OPTIONS",
    "emit_options",
    "is_only_updated",
    "only_updated",
    "update_times",
    "updates",
    "without_updates",
]

_STEP = "remote_udf.only_updated"
"""The key in the metadata of window_end for the length of the last step, in microseconds."""
_TIME = "remote_udf.update_time"
"""The key in the metadata of the time column."""
_PLAIN = "remote_udf.emitted"


def _delay(value: str | timedelta) -> float:
    if isinstance(value, str) and value.strip().startswith("-"):
        return -parse_seconds(value.strip().lstrip("-"))
    return parse_seconds(value)


def _shown_delay(seconds: float) -> str:
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


_delays = ValueReader(_delay, _shown_delay, "Duration")


@dataclass(frozen=True)
class _Settings:
    early_fire_enabled: bool | None = option(
        switch, None, "Emit a window's value before its end. Default: true if `early-fire-delay` is set."
    )
    early_fire_delay: float | None = option(
        _delays, None,
        "`0 s`: emit with every micro-batch that has rows of the window. Otherwise: emit at this interval of "
        "processing time, starting with the first row of the key and window.",
    )  # fmt: skip
    late_fire_enabled: bool | None = option(
        switch, None, "Emit a window's value again for late rows. Default: true if `late-fire-delay` is set."
    )
    late_fire_delay: float | None = option(
        _delays, None, "Like `early-fire-delay`, after the window's end, starting with its first late row."
    )
    allow_lateness: float | None = option(
        _delays, None,
        "How far the watermark may be past a window's end while its late rows still count. Requires late fire; "
        "without it late rows are dropped. At least `late-fire-delay`.",
    )  # fmt: skip


EMIT_OPTIONS: Mapping[str, Option] = table_of(_Settings)
"""Options of `RemoteGrouping.emit` and of the session, by name; in Flink they are below `table.exec.emit`."""


def emit_options(given: Mapping[str, object], session: Mapping[str, str]) -> EmitOptions:
    """The options of a call, which override those of the session below EMIT_PREFIX.

    Raises InvalidOption for unknown or malformed options, PlanError for options that contradict each other.
    """
    merged: dict[str, str] = {}
    for key, value in session.items():
        if key.startswith(EMIT_PREFIX + "."):
            name = key.removeprefix(EMIT_PREFIX + ".").replace("-fire.", "-fire-")
            merged |= canonical({name: value}, source=f"session setting {key}", known=(EMIT_OPTIONS,))
    merged |= canonical(given, source="emit of a window aggregate", known=(EMIT_OPTIONS,))
    settings = resolve(_Settings, merged)
    early = _fire(settings.early_fire_enabled, settings.early_fire_delay, "early-fire")
    late = _fire(settings.late_fire_enabled, settings.late_fire_delay, "late-fire")
    lateness = settings.allow_lateness or 0.0
    if lateness < 0:
        raise PlanError(f"allow-lateness {_shown_delay(lateness)} is negative")
    if late is None:
        return EmitOptions(early)
    if lateness == 0:
        raise PlanError(
            "late fire, the 'AFTER WATERMARK' emit strategy, requires set 'allow-lateness' to be longer than zero"
        )
    if lateness * 1000 < late:
        raise PlanError(
            f"allow-lateness {format_seconds(lateness)} is shorter than late-fire-delay {format_seconds(late / 1000)}: "
            "no late fire would occur"
        )
    return EmitOptions(early, late, round(lateness * 1000))


def _fire(enabled: bool | None, delay: float | None, name: str) -> int | None:
    """The delay in milliseconds; None if it is off."""
    if not (delay is not None if enabled is None else enabled):
        return None
    if delay is None or delay < 0:
        raise PlanError(
            f"{name.capitalize()} delay should not be null or negative value when {name} is enabled; set "
            f"'{name}-delay', found {'none' if delay is None else _shown_delay(delay)}"
        )
    return round(delay * 1000)


def only_updated(frame: DataFrame, time_col: str, step: int) -> DataFrame:
    """Mark a windowed frame so that aggregates emit only windows with a row in their last `step`, in microseconds."""
    for name, mark in ((WINDOW_END, {_STEP: step}), (time_col, {_TIME: True})):
        frame = with_metadata(frame, name, {**frame.schema[name].metadata, **mark})
    return frame


def is_only_updated(frame: DataFrame) -> bool:
    """Whether the frame is marked so."""
    return _end(frame) is not None


def update_times(frame: DataFrame) -> list[str]:
    """The marked time columns, which show the step of a row; copies and joins add more. Raises PlanError if none."""
    times = [field.name for field in frame.schema.fields if _TIME in field.metadata]
    if not times:
        raise PlanError(
            "CUMULATE: emitOnlyOnUpdate needs the time column of the window function where rows are grouped; there is "
            f"only {', '.join(frame.columns)}"
        )
    return times


def updates(frame: DataFrame) -> Column | None:
    """Whether a row causes its window to be emitted; None if all windows are. Raises PlanError as `update_times`."""
    end = _end(frame)
    if end is None:
        return None
    last = column_named(end.name) - interval_column(int(end.metadata[_STEP]))
    latest = [F.coalesce(wall_clock(frame.schema[name]) >= last, F.lit(False)) for name in update_times(frame)]
    return reduce(lambda one, other: one | other, latest)


def without_updates(frame: DataFrame) -> DataFrame:
    """The frame with a plain window_end, because its windows have been emitted."""
    end = _end(frame)
    return frame if end is None else without_metadata(frame, end, _STEP, _PLAIN)


def _end(frame: DataFrame) -> T.StructField | None:
    key = identifiers_of(frame).key
    fields = [field for field in frame.schema.fields if key(field.name) == WINDOW_END]
    return next((field for field in fields if _STEP in field.metadata), None)
