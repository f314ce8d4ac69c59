"""Frame: the rows around a row that an aggregate with OVER reads, and the positions of their bounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Context
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_client.executor.engine.pieces import Integers
from spark_client.executor.segments.keys import run_starts

__all__ = ["TO_CURRENT", "WHOLE", "Frame", "bounds_of"]

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64] | npt.NDArray[np.object_]
Side = Literal["left", "right"]
Limits = Sequence[pa.ChunkedArray | None]
_WIDE = Context(prec=80)
_MOST = 1 << 63


@dataclass(frozen=True)
class Frame:
    """The rows around a row, from `start` to `end`; None means unbounded.

    Offsets are rows, or differences in the column of the order: a number, or for times seconds or months.
    """

    rows: bool
    start: float | None
    end: float | None
    of_time: bool = False
    """Whether the offsets are seconds."""
    of_months: bool = False

    @property
    def has_offsets(self) -> bool:
        """Whether a RANGE frame compares values, and not only whether they are equal."""
        return not self.rows and any(bound not in (None, 0) for bound in (self.start, self.end))


WHOLE = Frame(rows=True, start=None, end=None)
TO_CURRENT = Frame(rows=False, start=None, end=0)
"""Up to the current row and its peers: SQL's default if there is an order."""


def bounds_of(
    frame: Frame, starts: Integers, order: list[pa.ChunkedArray], rows: int, limits: Limits = (None, None)
) -> tuple[Integers, Integers]:
    """For each row, the first row of its frame and the one after its last row; these are equal if the frame is empty.

    Rows are sorted by partition, which begin at `starts`, then by `order`. If the offset is not a plain addition,
    `limits` are columns with the order plus the offset, for the start and the end of the frame.
    """
    lengths = np.diff(np.append(starts, rows))
    first, last = np.repeat(starts, lengths), np.repeat(starts + lengths, lengths)
    here = np.arange(rows)
    if frame.rows:
        low = first if frame.start is None else np.clip(here + int(frame.start), first, last)
        high = last if frame.end is None else np.clip(here + int(frame.end) + 1, first, last)
    else:
        peers = _peer_starts(starts, order, rows)
        peer_lengths = np.diff(np.append(peers, rows))
        values = _Offsets(frame, order[0], starts, rows) if frame.has_offsets else None
        low = _range_bound(frame.start, first, np.repeat(peers, peer_lengths), values, limits[0], side="left")
        high = _range_bound(
            frame.end, last, np.repeat(peers + peer_lengths, peer_lengths), values, limits[1], side="right"
        )
        if any(limit is not None for limit in limits):
            # If clocks are set back between the two, a day before 02:30 may be later than a day before 02:10. In Spark
            # a frame never loses a row and gets it again, so its bounds never decrease.
            high = np.maximum.accumulate(high)
            low = np.maximum.accumulate(np.minimum(low, high))
    return low, np.maximum(low, high)


def _peer_starts(starts: Integers, order: list[pa.ChunkedArray], rows: int) -> Integers:
    """The positions of rows that are not peers of the previous row. Without an order, all rows of a partition are."""
    if not order:
        return starts
    changes = np.zeros(rows, np.bool_)
    changes[run_starts(order, rows)] = changes[starts] = True
    return np.flatnonzero(changes)


class _Offsets:
    """The values of the order as numbers, which can be searched within a partition."""

    def __init__(self, frame: Frame, column: pa.ChunkedArray, starts: Integers, rows: int) -> None:
        array = column.combine_chunks()
        self.values, self.unit = _numbers(array, of_time=frame.of_time)
        self.alone = array.is_null().to_numpy(zero_copy_only=False)
        if pa.types.is_floating(array.type):
            self.alone |= np.isnan(self.values)
        self.starts, self.rows, self.of_time = starts, rows, frame.of_time

    def search(self, offset: float, plain: Integers, limit: pa.ChunkedArray | None, side: Side) -> Integers:
        """For each row, the position of `its value + offset`, or of `limit` if it is given.

        The frame of a null contains only nulls, and that of NaN only NaNs; it is taken from `plain`.
        """
        found = plain.copy()
        numbers = self.values
        shift = self._shift(offset, side) if limit is None else 0
        sought = None if limit is None else _numbers(limit.combine_chunks(), of_time=self.of_time)[0]
        if (
            numbers.dtype == np.int64
            and len(numbers)
            and abs(shift) + max(-int(numbers.min()), int(numbers.max())) >= _MOST
        ):
            numbers = numbers.astype(object)
        ends = np.append(self.starts[1:], self.rows)
        for start, end in zip(self.starts.tolist(), ends.tolist(), strict=True):
            present = np.flatnonzero(~self.alone[start:end])
            if not len(present):
                continue
            # Nulls are adjacent, at one end of the partition, and NaNs are at the other end.
            begin, stop = start + int(present[0]), start + int(present[-1]) + 1
            values = numbers[begin:stop]
            targets = values if sought is None else sought[begin:stop]
            down = values[0] > values[-1] if sought is None else (targets[0] > values[0]) != (offset > 0)
            if down:  # in descending order
                values, targets = -values, -targets
            with np.errstate(over="ignore"):  # beyond the largest double is infinity, as in Spark
                found[begin:stop] = begin + np.searchsorted(values, targets + shift, side=side)
        return found

    def _shift(self, offset: float, side: Side) -> float:
        """The offset in the unit of the values; for integers it is rounded towards the row."""
        if self.unit is None:
            return offset
        # Seconds are parsed from text as floats, so they are exact only to the microsecond.
        exact = Fraction(round(offset * 1_000_000), 1_000_000) if self.of_time else Fraction(repr(offset))
        exact *= self.unit
        return math.ceil(exact) if side == "left" else math.floor(exact)


def _range_bound(
    offset: float | None, whole: Integers, peers: Integers, values: "_Offsets | None",
    limit: pa.ChunkedArray | None, *, side: Side,
) -> Integers:  # fmt: skip
    if offset is None:
        return whole
    if offset == 0 or values is None:
        return peers
    return values.search(offset, peers, limit, side)


def _numbers(array: pa.Array, *, of_time: bool) -> tuple[Numbers, Fraction | None]:
    """The values as numbers, and the size of the frame's unit in these numbers; None for floats."""
    type_ = array.type
    if pa.types.is_floating(type_):
        return pc.fill_null(array, 0).to_numpy(zero_copy_only=False), None
    if pa.types.is_decimal(type_):
        # As integers in units of the last digit, because floats are not exact and 64 bits may not suffice.
        unscaled = [0 if value is None else int(value.scaleb(type_.scale, _WIDE)) for value in array.to_pylist()]
        return np.array(unscaled, np.int64 if type_.precision <= 18 else object), Fraction(10**type_.scale)
    unit = Fraction(1_000_000 if of_time else 1)
    if pa.types.is_date(type_):
        array, unit = array.cast(pa.int32()), Fraction(1, 86400 if of_time else 1)
    return pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False), unit
