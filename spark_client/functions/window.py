"""Window: the partition, the order and the frame of `f("x").over(window)`, with the names of pyspark.sql.Window."""

import dataclasses
import math
import re
from datetime import timedelta
from typing import TypeAlias

from pyspark.sql import Column

from remote_udf.durations import parse_seconds
from spark_client.base.errors import PlanError
from spark_client.executor.aggregate.frames import TO_CURRENT, WHOLE, Frame

__all__ = ["Months", "Ordered", "Window", "WindowSpec", "desc"]

_UNBOUNDED = (1 << 63) - 1
"""Integers at or beyond this are unbounded, as in Spark. An infinite number is too, but no other number."""
_MOST_ROWS = 1 << 62
_MONTHS = re.compile(r"(-?)\s*(\d+)\s*(month|year)s?", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, eq=False)
class Ordered:
    """A column to order by, its direction, and the position of its nulls."""

    column: Column | str
    descending: bool
    nulls_first: bool

    def applied(self, column: Column) -> Column:
        """The sort expression of a column that has the values of this one."""
        if self.descending:
            return column.desc_nulls_first() if self.nulls_first else column.desc_nulls_last()
        return column.asc_nulls_first() if self.nulls_first else column.asc_nulls_last()


def desc(column: Column | str) -> Ordered:
    """Order a window by a column in descending order, with nulls last."""
    return Ordered(column, descending=True, nulls_first=False)


@dataclasses.dataclass(frozen=True)
class Months:
    """An offset in months, whose lengths differ."""

    count: int

    def __neg__(self) -> "Months":
        return Months(-self.count)

    def __str__(self) -> str:
        return f"{self.count} months"


Offset: TypeAlias = int | float | str | timedelta | Months
"""A bound of a RANGE frame."""


@dataclasses.dataclass(frozen=True, eq=False)
class WindowSpec:
    """The partitions, the order and the frame of a window; every method returns a new object."""

    partition: tuple[Column | str, ...] = ()
    order: tuple[Column | str | Ordered, ...] = ()
    explicit: Frame | None = None

    def partitionBy(self, *columns: Column | str) -> "WindowSpec":  # noqa: N802 - as pyspark.sql.Window
        """Set the columns of the partitions: a frame has rows with equal values in these columns."""
        return dataclasses.replace(self, partition=columns)

    def orderBy(self, *columns: Column | str | Ordered) -> "WindowSpec":  # noqa: N802
        """Set the order of the rows in a partition; use `desc("ts")` for descending order.

        ROWS frames also take Spark's own sort expressions, such as `F.col("ts").desc_nulls_first()`.
        """
        return dataclasses.replace(self, order=columns)

    def rowsBetween(self, start: int, end: int) -> "WindowSpec":  # noqa: N802
        """Set a frame by number of rows: negative offsets are before the current row, 0 is the current row."""
        frame = Frame(True, _rows_bound(start, _START), _rows_bound(end, _END))
        _require_order(frame)
        return dataclasses.replace(self, explicit=frame)

    def rangeBetween(self, start: Offset, end: Offset) -> "WindowSpec":  # noqa: N802
        """Set a frame by value: offsets to the only column of the order. 0 is the current row and equal rows.

        If the order is by time, an offset is a timedelta or text such as "20 minutes", "-20 minutes" or "-3 months".
        Days, months and years are those of the calendar in the session's time zone, as in Spark: when clocks change,
        a day has 23 or 25 hours. A timedelta of 36 hours is one day of the calendar and twelve hours.
        """
        bounds = [_range_bound(start, _START), _range_bound(end, _END)]
        kinds = {kind for offset, kind in bounds if offset not in (None, 0)}
        if len(kinds) > 1:
            raise PlanError(
                f"a frame from {start} to {end} has offsets of two kinds; give two numbers, two durations or two "
                "numbers of months or years"
            )
        kind = kinds.pop() if kinds else _NUMBER
        frame = Frame(False, bounds[0][0], bounds[1][0], of_time=kind == _TIME, of_months=kind == _CALENDAR)
        _require_order(frame)
        return dataclasses.replace(self, explicit=frame)

    @property
    def frame(self) -> Frame:
        """The effective frame. The default is the partition, or with an order, its rows up to the current row."""
        if self.explicit is not None:
            return self.explicit
        return TO_CURRENT if self.order else WHOLE


class Window:
    """The start of a window specification: `Window.partitionBy("user").orderBy("ts").rowsBetween(-2, 0)`."""

    unboundedPreceding = -(1 << 63)  # noqa: N815
    unboundedFollowing = (1 << 63) - 1  # noqa: N815
    currentRow = 0  # noqa: N815

    partitionBy = staticmethod(WindowSpec().partitionBy)  # noqa: N815
    orderBy = staticmethod(WindowSpec().orderBy)  # noqa: N815
    rowsBetween = staticmethod(WindowSpec().rowsBetween)  # noqa: N815
    rangeBetween = staticmethod(WindowSpec().rangeBetween)  # noqa: N815


_START, _END = -1, 1


def _rows_bound(bound: int, side: int) -> float | None:
    if isinstance(bound, bool) or not isinstance(bound, int):
        raise PlanError(f"{bound!r} is not a number of rows")
    offset = _offset(bound, side)
    return None if offset is None else max(-_MOST_ROWS, min(offset, _MOST_ROWS))


def _offset(bound: float, side: int) -> float | None:
    """The offset; None if the frame is unbounded at this side."""
    if not (math.isinf(bound) if isinstance(bound, float) else abs(bound) >= _UNBOUNDED):
        return bound
    if bound * side > 0:
        return None
    what = "start at UNBOUNDED FOLLOWING" if side == _START else "end at UNBOUNDED PRECEDING"
    raise PlanError(f"invalid frame: it cannot {what}, because every frame would be empty")


_NUMBER, _TIME, _CALENDAR = "number", "time", "months"


def _range_bound(bound: Offset, side: int) -> tuple[float | None, str]:
    """The offset and its kind. None is unbounded."""
    if isinstance(bound, Months):
        return bound.count, _CALENDAR
    if isinstance(bound, timedelta):
        return bound.total_seconds(), _TIME
    if isinstance(bound, str):
        text = bound.strip()
        if (months := _MONTHS.fullmatch(text)) is not None:
            count = int(months[2]) * (12 if months[3].lower() == "year" else 1)
            return (-count if months[1] else count), _CALENDAR
        return (-parse_seconds(text[1:]) if text.startswith("-") else parse_seconds(text)), _TIME
    not_a_number = isinstance(bound, float) and math.isnan(bound)
    if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not_a_number:
        raise PlanError(f"{bound!r} is not an offset: a number, a timedelta or text such as '20 minutes' or '3 months'")
    return _offset(bound, side), _NUMBER


def _require_order(frame: Frame) -> None:
    if frame.start is not None and frame.end is not None and frame.start > frame.end:
        raise PlanError(f"invalid frame: start {frame.start:g} is after end {frame.end:g}; every frame would be empty")
