"""TUMBLE, HOP and CUMULATE: the window functions whose windows consist of panes (FLIP-145, FLIP-392)."""

import dataclasses
import math

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_client.base.errors import PlanError
from spark_client.windows.columns import hidden
from spark_client.windows.intervals import Interval, micros_of, shown
from spark_client.windows.panes import PANE, PANE_END, PANE_START, PaneWindows, assign, floor, later, numbered

__all__ = ["MOST_WINDOWS", "cumulate", "hop", "tumble"]

_LAST = hidden("last")
MOST_WINDOWS = 100_000
"""Windows that contain a row at most."""


@dataclasses.dataclass(frozen=True)
class Tumble(PaneWindows):
    """TUMBLE: each pane is a window. Raises PlanError for invalid lengths."""

    size: int
    offset: int = 0
    name = "TUMBLE"
    one_pane = True

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
    return assign(frame, time_col, windows)


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
        if self.most > MOST_WINDOWS:
            raise PlanError(
                f"HOP with {sizes} puts every row in {self.most:,} windows; at most {MOST_WINDOWS:,} are allowed"
            )

    @property
    def most(self) -> int:
        """The maximum number of windows that contain a row."""
        return -(-self.size // self.slide)

    @property
    def pane(self) -> int:
        return math.gcd(self.size, self.slide)

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
    return assign(frame, time_col, windows)


@dataclasses.dataclass(frozen=True)
class Cumulate(PaneWindows):
    """CUMULATE: each step is a pane. Raises PlanError for invalid lengths."""

    step: int
    size: int
    offset: int = 0
    only_updated: bool = False
    name = "CUMULATE"

    def __post_init__(self) -> None:
        sizes = f"maxSize {shown(self.size)} and step {shown(self.step)}"
        if self.step <= 0 or self.size <= 0:
            raise PlanError(
                f"CUMULATE table function based aggregate requires maxSize and step to be positive, got {sizes}"
            )
        if self.size % self.step:
            raise PlanError(
                "CUMULATE table function based aggregate requires maxSize must be an integral multiple of step, "
                f"got {sizes}"
            )
        if self.most > MOST_WINDOWS:
            raise PlanError(
                f"CUMULATE with {sizes} puts a row in up to {self.most:,} windows; at most {MOST_WINDOWS:,} are allowed"
            )

    @property
    def most(self) -> int:
        """The maximum number of windows that contain a row."""
        return self.size // self.step

    @property
    def pane(self) -> int:
        return self.step

    def windows(self, frame: DataFrame) -> DataFrame:
        frame = frame.select("*", floor(F.col(PANE), self.size, self.offset).alias(PANE_START))
        frame, number = numbered(frame, self.most)
        end = later(F.col(PANE), self.step, number + 1)
        return frame.select("*", end.alias(PANE_END)).where(
            F.col(PANE_END) <= later(F.col(PANE_START), self.size)
        )  # fmt: skip


def cumulate(
    frame: DataFrame, time_col: str, step: Interval, max_size: Interval, offset: Interval | None = None, *,
    emit_only_on_update: bool = False,
) -> DataFrame:  # fmt: skip
    """Repeat each row for every window that contains its time: `cumulate(df, "ts", "10 minutes", "1 day")`.

    The columns are those of `tumble`. Windows begin at multiples of `max_size` and end at every `step` after that,
    until they are `max_size` long.

    Args:
        frame: A table or a stream.
        time_col: The name of the time column.
        step: By how much windows grow.
        max_size: The length of the longest windows, a multiple of the step.
        offset: How far windows are shifted.
        emit_only_on_update: Aggregates do not emit a window of a key if its last step has no row of the key.

    Raises:
        PlanError: A length is invalid, or the frame has no such column or has columns of the new names.
    """
    if not isinstance(emit_only_on_update, bool):
        raise PlanError(f"CUMULATE: emitOnlyOnUpdate {emit_only_on_update!r} is neither true nor false")
    windows = Cumulate(
        micros_of(step, "CUMULATE: step"),
        micros_of(max_size, "CUMULATE: maxSize"),
        micros_of(offset or "0 s", "CUMULATE: offset"),
        emit_only_on_update,
    )
    return assign(frame, time_col, windows)
