"""Windows made of panes: the arithmetic that TUMBLE, HOP and CUMULATE share.

Time is divided into panes of equal length that begin at an offset from 1970-01-01T00:00. Every window consists of whole
panes, so all rows of a pane are in the same windows. Times are wall clock times without time zone. A row on the border
of two panes belongs to the later one, also before 1970.

    CUMULATE step 2, size 6     |--a--|--b--|--c--|   panes
                                [-----)               windows, all from one start:
                                [-----------)         pane a is in three of them,
                                [-----------------)   pane c in one
"""

import dataclasses
import weakref
from abc import ABC, abstractmethod
from typing import ClassVar

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_client.windows.columns import check_input, hidden, wall_clock, with_bounds
from spark_client.windows.emitting import only_updated
from spark_client.windows.intervals import interval_column

__all__ = [
    "PANE", "PANE_END", "PANE_START", "PaneWindows", "assign", "floor", "in_panes", "later", "numbered", "windowed",
]  # fmt: skip

PANE = hidden("pane")
PANE_START = hidden("start")
PANE_END = hidden("end")
_NUMBER = hidden("number")


class PaneWindows(ABC):
    """A window function that consists of panes. Lengths are in microseconds."""

    name: ClassVar[str]
    """Its name in SQL."""
    offset: int
    """The start of a pane, relative to 1970-01-01T00:00."""
    one_pane: ClassVar[bool] = False
    """Whether every window is a pane and every pane a window."""
    only_updated: bool = False
    """Whether a window is emitted only if its last pane has a row."""

    @property
    @abstractmethod
    def pane(self) -> int:
        """The length of a pane."""

    @property
    def most(self) -> int:
        """The maximum number of windows that contain a row."""
        return 1

    @property
    def overlap(self) -> bool:
        """Whether windows share panes."""
        return self.most > 1

    @abstractmethod
    def windows(self, frame: DataFrame) -> DataFrame:
        """Replace PANE, the start of a pane, by PANE_START and PANE_END of a window.

        The result has a row for each window that contains the pane.
        """


def floor(time: Column, step: int, offset: int) -> Column:
    """The start of the step that contains a time without time zone. It must be in a projection of its own."""
    return _step(time, step, offset)["start"]


def _step(time: Column, step: int, offset: int) -> Column:
    """The step that contains a time without time zone, as Spark's window(), which has the fastest implementation."""
    return F.window(time, f"{step} microseconds", f"{step} microseconds", f"{offset % step} microseconds")


def in_panes(frame: DataFrame, time_col: str, windows: PaneWindows) -> DataFrame:
    """The frame with a column PANE, without rows whose time is null. Raises PlanError as `check_input`."""
    field = check_input(frame, time_col, windows.name)
    time = wall_clock(field)
    return frame.where(time.isNotNull()).select("*", floor(time, windows.pane, windows.offset).alias(PANE))


def assign(frame: DataFrame, time_col: str, windows: PaneWindows) -> DataFrame:
    """The frame with a row for each row and each window that contains it, recorded for `windowed`.

    Raises PlanError as `check_input`.
    """
    field = check_input(frame, time_col, windows.name)
    if windows.one_pane:
        # With Spark's arithmetic of times and intervals, this would take twice as long.
        time = wall_clock(field)
        step = _step(time, windows.pane, windows.offset).alias(PANE)
        spread = (
            frame.where(time.isNotNull())
            .select("*", step)
            .withColumns({PANE_START: F.col(PANE)["start"], PANE_END: F.col(PANE)["end"]})
        )
    else:
        spread = windows.windows(in_panes(frame, time_col, windows))
    bounded = with_bounds(spread, field, F.col(PANE_START), F.col(PANE_END))
    assigned = only_updated(bounded, field.name, windows.pane) if windows.only_updated else bounded
    _KNOWN[assigned] = Windowed(frame, time_col, windows)
    return assigned


def numbered(frame: DataFrame, count: int) -> tuple[DataFrame, Column]:
    """Repeat each row `count` times; also return the column with the number of the repetition, from 0."""
    if count == 1:
        return frame, F.lit(0)
    return frame.select("*", F.explode(F.sequence(F.lit(0), F.lit(count - 1))).alias(_NUMBER)), F.col(_NUMBER)


def later(time: Column, micros: int, times: Column | None = None) -> Column:
    """The time plus `micros`, or plus a multiple of `micros`."""
    step = interval_column(micros)
    return time + (step if times is None else step * times)


@dataclasses.dataclass(frozen=True)
class Windowed:
    """How a windowed DataFrame was created. `rows` is the frame before its rows were assigned to windows.

    With this, `remote.group_by` computes each pane of overlapping windows once. This is correct only for all rows of
    all windows, so it applies only to the DataFrame object that a window function returned, not to a DataFrame derived
    from it.
    """

    rows: DataFrame
    time_col: str
    windows: PaneWindows


_KNOWN: weakref.WeakKeyDictionary[DataFrame, Windowed] = weakref.WeakKeyDictionary()


def windowed(frame: DataFrame) -> Windowed | None:
    """How the frame was created, if a function of overlapping windows returned it."""
    return _KNOWN.get(frame)
