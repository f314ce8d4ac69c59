"""SESSION: a window for each sequence of rows without a gap (FLIP-145, FLIP-392).

A row at t covers the time from t to t + gap. Rows whose times overlap or touch are in one session, also two rows that
are exactly a gap apart:

    gap 5     8:05 ==========
              8:08       ==========         one session, [8:05, 8:13)
              8:17                 - ==========   another, [8:17, 8:22)
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.changelogs import require_no_fires
from spark_client.base.collected_state import described
from spark_client.base.errors import PlanError
from spark_client.base.grouped import grouped
from spark_client.base.identifiers import column_named
from spark_client.windows.columns import (
    WATERMARK,
    WINDOW_COLUMNS,
    WINDOW_START,
    WINDOW_TIME,
    check_input,
    elapsed,
    emitted,
    field_named,
    hidden,
    watermark_of,
    with_times,
    without_watermark,
    zone_metadata,
)
from spark_client.windows.intervals import MILLISECOND, Interval, interval_column, micros_of, shown

__all__ = ["SESSION", "session"]

SESSION = "remote_udf.session"
"""The key in the metadata of window_start for sessions of a stream, which fire only at their end."""

_WALL, _NEW, _SESSION, _ROWS = hidden("wall"), hidden("new"), hidden("session"), hidden("rows")


def session(
    frame: DataFrame, time_col: str, gap: Interval, partition_by: Sequence[str] | str = ()
) -> DataFrame:  # fmt: skip
    """Assign each row to its session: `session(df, "ts", "10 minutes", partition_by="user")`.

    The columns are those of `tumble`. A session ends when no row follows within the gap, which is elapsed time. On a
    stream the time column must have a watermark: Spark keeps the rows until their session is over, and drops late rows.

    Args:
        frame: A table or a stream.
        time_col: The name of the time column.
        gap: The longest time between two rows of a session.
        partition_by: Names of columns whose values have separate sessions; without them all rows are in one task.

    Raises:
        PlanError: The gap is invalid, a column is missing, or the frame has columns of the new names.
    """
    field = check_input(frame, time_col, "SESSION")
    micros = micros_of(gap, "SESSION: gap")
    if micros <= 0:
        raise PlanError(f"SESSION table function based aggregate requires gap to be positive, got {shown(micros)}")
    names = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    keys = [field_named(frame, name, "SESSION: PARTITION BY").name for name in names]
    present = frame.where(column_named(field.name).isNotNull())
    if frame.isStreaming:
        return _on_stream(present, field, micros, keys)
    time = column_named(field.name)
    partition = [column_named(key) for key in keys]
    by_time = Window.partitionBy(*partition).orderBy(time)
    one = Window.partitionBy(*partition, _SESSION)
    before = F.lag(time).over(by_time)
    begins = (before.isNull() | (time > elapsed(before, field.dataType, micros))).cast("int")
    marked = present.select("*", begins.alias(_NEW))
    numbered = marked.select("*", F.sum(_NEW).over(by_time.rowsBetween(Window.unboundedPreceding, 0)).alias(_SESSION))
    end = elapsed(F.max(time).over(one), field.dataType, micros)
    return with_times(numbered, field, F.min(time).over(one), end)


def _on_stream(frame: DataFrame, field: T.StructField, micros: int, keys: Sequence[str]) -> DataFrame:
    """Use Spark's session_window, which keeps rows as lists until the watermark has passed their session."""
    require_no_fires(frame, "SESSION")
    if WATERMARK not in field.metadata:
        raise PlanError(
            f"SESSION on a stream needs a watermark on its time column: frame.withWatermark({field.name!r}, ...)"
        )
    # By position, because a frame may have two columns with the same name.
    names = [hidden(str(place)) for place in range(len(frame.columns))]
    place = {name: names[index] for index, name in enumerate(frame.columns)}
    renamed = frame.toDF(*names)
    timed = without_watermark(renamed, renamed.schema[place[field.name]])
    # A window is complete at its last millisecond; Spark completes a session at its end, a millisecond later.
    millisecond = interval_column(MILLISECOND)
    before = (F.col(place[field.name]) - millisecond).alias(_WALL, metadata=watermark_of(field))
    window = F.session_window(F.col(_WALL), f"{micros} microseconds")
    by = [F.col(place[key]).alias(hidden(f"key_{index}")) for index, key in enumerate(keys)]
    # Spark rejects sessions of a stream without a key, and would recognise a literal as none.
    by = by or [F.pmod(F.hash(place[field.name]), F.lit(1)).alias(hidden("key_0"))]
    description = f"rows {frame.schema.simpleString()} by ({', '.join(keys)})"
    collected = described(F.collect_list(F.struct(*names)), description).alias(_ROWS)
    gathered = grouped(timed.select("*", before), [*by, window.alias(_SESSION)], [collected])
    rows = gathered.select(F.inline(_ROWS), F.col(f"{_SESSION}.start"), F.col(f"{_SESSION}.end"))
    bounded = rows.select(
        *names,
        (F.col("start") + millisecond)
        .cast("timestamp_ntz")
        .alias(WINDOW_START, metadata={SESSION: True, **zone_metadata(frame, field)}),
        (F.col("end") + millisecond).cast("timestamp_ntz"),
        F.col("end").cast(field.dataType).alias(WINDOW_TIME, metadata=watermark_of(field)),
    )
    return emitted(without_watermark(bounded.toDF(*frame.columns, *WINDOW_COLUMNS), field))
