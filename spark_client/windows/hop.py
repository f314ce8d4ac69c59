"""HOP: windows of one size that begin at regular intervals, and may overlap or leave gaps (FLIP-145, FLIP-392)."""

import dataclasses
import math

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_client.base.errors import PlanError
from spark_client.windows.columns import hidden
from spark_client.windows.intervals import Interval, micros_of, shown
from spark_client.windows.panes import PANE, PANE_END, PANE_START, PaneWindows, assign, floor, later, numbered
from spark_client.windows.planned import remember

__all__ = ["Hop", "hop"]

_LAST = hidden("last")
_MOST = 100_000


@dataclasses.dataclass(frozen=True)
class Hop(PaneWindows):
    """HOP: a pane is the greatest common divisor of size and slide. Raises PlanError for invalid lengths."""

    slide: int
    size: int
    offset: int = 0
    name = "HOP"

    def __post_init__(self) -> None:
        sizes = f"slide {shown(self.slide)} and size {shown(self.size)}"
        if self.slide <= 0 or self.size <= 0:
            raise PlanError(f"HOP table function based aggregate requires slide and size to be positive, got {sizes}")
        if self.most > _MOST:
            raise PlanError(f"HOP with {sizes} puts every row in {self.most:,} windows; at most {_MOST:,} are allowed")

    @property
    def most(self) -> int:
        """The maximum number of windows that contain a row."""
        return -(-self.size // self.slide)

    @property
    def pane(self) -> int:
        return math.gcd(self.size, self.slide)

    @property
    def pane_offset(self) -> int:
        return self.offset

    def windows(self, frame: DataFrame) -> DataFrame:
        last = F.col(PANE)
        if self.pane != self.slide:
            frame = frame.select("*", floor(F.col(PANE), self.slide, self.offset).alias(_LAST))
            last = F.col(_LAST)
        frame, number = numbered(frame, self.most)
        start = later(last, -self.slide, number) if self.most > 1 else last
        end = later(last, self.size) if self.most == 1 else later(start, self.size)
        spread = frame.select("*", start.alias(PANE_START), end.alias(PANE_END))
        # The earliest window may end before the pane begins; if there are gaps, it may be the only one.
        return spread if self.pane == self.slide else spread.where(F.col(PANE_END) > F.col(PANE))


def hop(
    frame: DataFrame, time_col: str, slide: Interval, size: Interval, offset: Interval | None = None
) -> DataFrame:  # fmt: skip
    """Repeat each row for every window that contains its time: `hop(df, "ts", "5 minutes", "10 minutes")`.

    The columns and the start of windows are those of `tumble`. The size need not be a multiple of the slide; if the
    slide is larger than the size, rows between windows are skipped.

    Args:
        frame: A table or a stream.
        time_col: The name of the time column.
        slide: The time between the starts of two windows.
        size: The length of the windows.
        offset: How far windows are shifted.

    Raises:
        PlanError: A length is invalid, or the frame has no such column or has columns of the new names.
    """
    windows = Hop(
        micros_of(slide, "HOP: slide"), micros_of(size, "HOP: size"), micros_of(offset or "0 s", "HOP: offset")
    )
    return remember(assign(frame, time_col, windows), frame, time_col, windows)
