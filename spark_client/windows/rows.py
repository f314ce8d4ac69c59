"""TUMBLE_ROW: windows of this many rows (FLIP-145, future work)."""

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, identifiers_of
from spark_client.windows.columns import (
    WINDOW_COLUMNS,
    check_input,
    elapsed,
    field_named,
    hidden,
    with_times,
)
from spark_client.windows.intervals import MILLISECOND

__all__ = ["WINDOW_NUMBER", "tumble_rows"]

WINDOW_NUMBER = "window_number"
_POSITION = hidden("position")


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
    names = [partition_by] if isinstance(partition_by, str) else list(partition_by)
    partition = [column_named(field_named(frame, name, "TUMBLE_ROW: PARTITION BY").name) for name in names]
    present = frame.where(column_named(field.name).isNotNull())
    position = F.row_number().over(Window.partitionBy(*partition).orderBy(column_named(field.name)))
    placed = present.select("*", position.alias(_POSITION))
    number = F.floor((F.col(_POSITION) - 1) / count) + 1
    numbered = placed.select("*", number.alias(WINDOW_NUMBER))
    one = Window.partitionBy(*partition, WINDOW_NUMBER)
    time = column_named(field.name)
    end = elapsed(F.max(time).over(one), field.dataType, MILLISECOND)
    bounded = with_times(numbered, field, F.min(time).over(one), end)
    return bounded.select(*(column_named(name) for name in [*frame.columns, *WINDOW_COLUMNS, WINDOW_NUMBER]))
