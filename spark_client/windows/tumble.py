"""TUMBLE: windows of one size, side by side (FLIP-145)."""

import dataclasses

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_client.base.errors import PlanError
from spark_client.windows.intervals import Interval, micros_of, shown
from spark_client.windows.panes import PANE, PANE_END, PANE_START, PaneWindows, assign, later
from spark_client.windows.planned import remember

__all__ = ["Tumble", "tumble"]


@dataclasses.dataclass(frozen=True)
class Tumble(PaneWindows):
    """TUMBLE: each pane is a window. Raises PlanError for invalid lengths."""

    size: int
    offset: int = 0
    name = "TUMBLE"

    def __post_init__(self) -> None:
        if self.size <= 0:
            raise PlanError(f"TUMBLE table function based aggregate requires size to be positive, got {self.sizes}")
        if abs(self.offset) >= self.size:
            raise PlanError(f"TUMBLE table function parameters must satisfy abs(offset) < size, got {self.sizes}")

    @property
    def sizes(self) -> str:
        return f"size {shown(self.size)} and offset {shown(self.offset)}"

    @property
    def pane(self) -> int:
        return self.size

    @property
    def pane_offset(self) -> int:
        return self.offset

    @property
    def one_pane(self) -> bool:
        return True

    def windows(self, frame: DataFrame) -> DataFrame:
        return frame.select("*", F.col(PANE).alias(PANE_START), later(F.col(PANE), self.size).alias(PANE_END))


def tumble(frame: DataFrame, time_col: str, size: Interval, offset: Interval | None = None) -> DataFrame:
    """Assign each row to the window of its time: `tumble(df, "ts", "10 minutes")`.

    The result has the columns window_start, window_end and window_time after those of the frame. Windows begin at
    multiples of their size, counted from midnight of 1970-01-01 on the clock of the session's time zone (of the column
    itself, if it is timestamp_ntz). A row at the end of a window belongs to the next one. Rows without time are
    skipped. On a stream window_time carries the watermark.

    Args:
        frame: A table or a stream.
        time_col: The name of the time column.
        size: The length of the windows, such as "10 minutes" or a timedelta.
        offset: How far windows are shifted.

    Raises:
        PlanError: A length is invalid, or the frame has no such column or has columns of the new names.
    """
    windows = Tumble(micros_of(size, "TUMBLE: size"), micros_of(offset or "0 s", "TUMBLE: offset"))
    return remember(assign(frame, time_col, windows), frame, time_col, windows)
