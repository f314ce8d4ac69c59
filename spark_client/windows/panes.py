"""Windows made of panes: the arithmetic that TUMBLE, HOP and CUMULATE share.

Time is cut into panes of equal length that begin at an offset from 1970-01-01T00:00. Every window is a
number of whole panes, so all rows of a pane are in the same windows. Times are wall clock times without
zone; a row on a border belongs to the pane that begins there, before 1970 as well.

    CUMULATE step 2, size 6     |--a--|--b--|--c--|   panes
                                [-----)               windows, all from one start:
                                [-----------)         pane a is in three of them,
                                [-----------------)   pane c in one
"""

import dataclasses
from abc import ABC, abstractmethod

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_client.windows.columns import check_input, hidden, wall_clock, with_bounds
from spark_client.windows.intervals import interval_column
from spark_client.windows.updates import only_updated

__all__ = ["PANE", "PANE_END", "PANE_START", "PaneWindows", "assign", "floor", "in_panes", "later", "numbered"]

PANE = hidden("pane")
PANE_START = hidden("start")
PANE_END = hidden("end")
_NUMBER = hidden("number")


@dataclasses.dataclass(frozen=True)
class PaneWindows(ABC):
    """A way to make windows of panes; lengths are microseconds."""

    name: str = dataclasses.field(init=False, default="")
    """What SQL calls it."""

    @property
    @abstractmethod
    def pane(self) -> int:
        """The length of a pane."""

    @property
    @abstractmethod
    def pane_offset(self) -> int:
        """Where a pane begins, counted from 1970-01-01T00:00."""

    @property
    def one_pane(self) -> bool:
        """Whether every window is a pane and every pane a window."""
        return False

    @property
    def only_updated(self) -> bool:
        """Whether a window is emitted only if a row came in its last pane."""
        return False

    @property
    def most(self) -> int:
        """In how many windows a row is at most."""
        return 1

    @property
    def overlap(self) -> bool:
        """Whether windows share panes."""
        return self.most > 1

    @abstractmethod
    def windows(self, frame: DataFrame) -> DataFrame:
        """The frame with a column PANE, where a pane begins, becomes one with PANE_START and PANE_END.

        A row per window that the pane is in.
        """


def floor(time: Column, step: int, offset: int) -> Column:
    """Where the step begins that a time without zone is in. It wants a projection of its own."""
    return _step(time, step, offset)["start"]


def _step(time: Column, step: int, offset: int) -> Column:
    """The step that a time without zone is in, as Spark's own window(), whose code is the fastest there is."""
    return F.window(time, f"{step} microseconds", f"{step} microseconds", f"{offset % step} microseconds")


def in_panes(frame: DataFrame, time_col: str, windows: PaneWindows) -> DataFrame:
    """The frame with a column PANE; rows without time are skipped. Raises PlanError, as `check_input`."""
    field = check_input(frame, time_col, windows.name)
    time = wall_clock(field)
    return frame.where(time.isNotNull()).select("*", floor(time, windows.pane, windows.pane_offset).alias(PANE))


def assign(frame: DataFrame, time_col: str, windows: PaneWindows) -> DataFrame:
    """The frame with a row per row and window it is in. Raises PlanError, as `check_input`."""
    field = check_input(frame, time_col, windows.name)
    if windows.one_pane:
        # Spark's arithmetic of times and intervals would take as long again as all the rest.
        time = wall_clock(field)
        step = _step(time, windows.pane, windows.pane_offset).alias(PANE)
        spread = (
            frame.where(time.isNotNull())
            .select("*", step)
            .withColumns({PANE_START: F.col(PANE)["start"], PANE_END: F.col(PANE)["end"]})
        )
    else:
        spread = windows.windows(in_panes(frame, time_col, windows))
    bounded = with_bounds(spread, field, F.col(PANE_START), F.col(PANE_END))
    return only_updated(bounded, field.name, windows.pane) if windows.only_updated else bounded


def numbered(frame: DataFrame, count: int) -> tuple[DataFrame, Column]:
    """Every row `count` times, and the column with the number, from 0, of each."""
    if count == 1:
        return frame, F.lit(0)
    return frame.select("*", F.explode(F.sequence(F.lit(0), F.lit(count - 1))).alias(_NUMBER)), F.col(_NUMBER)


def later(time: Column, micros: int, times: Column | None = None) -> Column:
    """The time so much later, or as many times as much."""
    step = interval_column(micros)
    return time + (step if times is None else step * times)
