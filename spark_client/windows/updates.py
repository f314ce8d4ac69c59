"""emitOnlyOnUpdate of CUMULATE: a window is emitted if rows came in its last step (FLINK-39030).

    step 2, size 6     |--a--|-----|--c--|
                       [-----)              emitted: a row came in it
                       [-----------)        skipped: the same as before
                       [-----------------)  emitted

A window function returns rows; only the aggregation knows which windows of a key have new rows. So this option is
recorded in the metadata of the columns.
"""

from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, identifiers_of
from spark_client.windows.columns import WINDOW_END, wall_clock, with_metadata, without_metadata
from spark_client.windows.intervals import interval_column

__all__ = ["is_only_updated", "only_updated", "update_times", "updates", "without_updates"]

_STEP = "remote_udf.only_updated"
"""The key in the metadata of window_end for the length of the last step, in microseconds."""
_TIME = "remote_udf.update_time"
"""The key in the metadata of the time column."""
_PLAIN = "remote_udf.emitted"


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
