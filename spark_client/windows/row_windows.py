"""SESSION and TUMBLE_ROW: the window functions whose windows depend on the rows (FLIP-145, FLIP-392).

SESSION makes a window for each sequence of rows without a gap. A row at t covers the time from t to t + gap. Rows whose
times overlap or touch are in one session, also two rows that are exactly a gap apart:

    gap 5     8:05 ==========
              8:08       ==========         one session, [8:05, 8:13)
              8:17                 - ==========   another, [8:17, 8:22)
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.changelogs import require_no_fires
from spark_client.base.errors import PlanError
from spark_client.base.grouped import described, grouped
from spark_client.base.identifiers import column_named, identifiers_of
from spark_client.windows.columns import (
    WATERMARK,
    WINDOW_COLUMNS,
    WINDOW_START,
    WINDOW_TIME,
    check_input,
    elapsed,
    emitted,
    fields_named,
    hidden,
    watermark_of,
    with_times,
    without_watermark,
    zone_metadata,
)
from spark_client.windows.intervals import MILLISECOND, Interval, interval_column, micros_of, shown

__all__ = ["SESSION", "session", "tumble_rows"]

SESSION = "remote_udf.session"
"""The key in the metadata of window_start for sessions of a stream, which fire only at their end."""

WINDOW_NUMBER = "window_number"
_WALL, _NEW, _SESSION, _ROWS = hidden("wall"), hidden("new"), hidden("session"), hidden("rows")
_POSITION = hidden("position")


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
    keys = fields_named(frame, partition_by, "SESSION: PARTITION BY")
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
    return with_times(numbered, field, one, micros)


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


def tumble_rows(
    frame: DataFrame, count: int, *, order_by: str, partition_by: Sequence[str] | str = ()
) -> DataFrame:  # fmt: skip
    """Assign rows to windows of `count` rows: `tumble_rows(df, 100, order_by="ts", partition_by="user")`.

    window_start is the time of the first row, window_time that of the last, window_end a millisecond after it.
    Windows of rows with equal times have equal bounds, so there is a column window_number, from 1: group by it too.
    Rows of equal time have no defined order, and rows without time are skipped. The last window may have fewer rows.

    Args:
        frame: A table.
        count: The number of rows of a window.
        order_by: The name of the time column, in whose order rows are counted.
        partition_by: Names of columns whose values have separate windows.

    Raises:
        PlanError: The frame is a stream, the count is not positive, or a column is missing or ambiguous.
    """
    field = check_input(frame, order_by, "TUMBLE_ROW")
    if isinstance(count, bool) or not isinstance(count, int) or count <= 0:
        raise PlanError(f"TUMBLE_ROW: count {count!r} is not a positive number of rows")
    if WINDOW_NUMBER in identifiers_of(frame).keys(frame.columns):
        raise PlanError(f"TUMBLE_ROW: Column '{WINDOW_NUMBER}' is ambiguous: the input has one of that name")
    if frame.isStreaming:
        raise PlanError("TUMBLE_ROW is not supported on a stream: Spark cannot number the rows of one")
    partition = [column_named(name) for name in fields_named(frame, partition_by, "TUMBLE_ROW: PARTITION BY")]
    time = column_named(field.name)
    present = frame.where(time.isNotNull())
    position = F.row_number().over(Window.partitionBy(*partition).orderBy(time))
    placed = present.select("*", position.alias(_POSITION))
    number = F.floor((F.col(_POSITION) - 1) / count) + 1
    numbered = placed.select("*", number.alias(WINDOW_NUMBER))
    one = Window.partitionBy(*partition, WINDOW_NUMBER)
    bounded = with_times(numbered, field, one, MILLISECOND)
    return bounded.select(*(column_named(name) for name in [*frame.columns, *WINDOW_COLUMNS, WINDOW_NUMBER]))
