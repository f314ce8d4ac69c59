"""CUMULATE: windows with one start that grow by a step up to a size, then start again (FLIP-145)."""

import dataclasses

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_client.base.errors import PlanError
from spark_client.windows.intervals import Interval, micros_of, shown
from spark_client.windows.panes import PANE, PANE_END, PANE_START, PaneWindows, assign, floor, later, numbered
from spark_client.windows.planned import remember

__all__ = ["Cumulate", "cumulate"]

_MOST = 100_000


@dataclasses.dataclass(frozen=True)
class Cumulate(PaneWindows):
    """CUMULATE: each step is a pane. Raises PlanError for invalid lengths."""

    step: int
    size: int
    offset: int = 0
    emit_only_on_update: bool = False
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
        if self.most > _MOST:
            raise PlanError(
                f"CUMULATE with {sizes} puts a row in up to {self.most:,} windows; at most {_MOST:,} are allowed"
            )

    @property
    def most(self) -> int:
        """The maximum number of windows that contain a row."""
        return self.size // self.step

    @property
    def only_updated(self) -> bool:
        return self.emit_only_on_update

    @property
    def pane(self) -> int:
        return self.step

    @property
    def pane_offset(self) -> int:
        return self.offset

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
    return remember(assign(frame, time_col, windows), frame, time_col, windows)
