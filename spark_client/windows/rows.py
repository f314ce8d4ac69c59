"""TUMBLE_ROW: windows of so many rows (FLIP-145, future work)."""

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
    """Every row in a window of `count` rows, counted in the order of the time column `order_by` from the first row.

    Windows are made per value of the columns `partition_by`; the last may have fewer rows. window_start
    is the time of the first row, window_time that of the last, window_end a millisecond after it. Windows
    of rows of equal time have equal bounds, so window_number, from 1, comes after them: group by it too.
    Rows of equal time come in any order; rows without time are left out.
    Raises PlanError, on a stream as well, where rows have no numbers.
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
