"""Steps that lead from one frame to the next, after which each row has its value."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.outcomes import RowError
from spark_client.executor.engine.pieces import Integers, cuts, row_bytes
from spark_client.executor.engine.policy import error_array

__all__ = ["FIRST_VALUES", "Evaluated", "FrameSteps", "RowValues", "recomputed", "slid", "stretches"]

FIRST_VALUES = 16_384
"""The number of values in a piece if their size is not known yet."""


@dataclass(frozen=True)
class FrameSteps:
    """The rows to apply, by segment, and the step after which each row's value is taken.

    `rows` are row numbers of the table, `retracts` tells which of them are retracted (None: none), `offsets` are the
    offsets of the segments. A row's value is that after `position` steps of its `segment`.
    """

    rows: Integers
    retracts: npt.NDArray[np.bool_] | None
    offsets: Integers
    segment: Integers
    position: Integers

    def only(self, chosen: npt.NDArray[np.bool_]) -> "FrameSteps":
        """The steps of chosen rows only; `chosen` has an entry per row of the table."""
        kept = chosen[self.rows]
        before = np.concatenate(([0], np.cumsum(kept)))
        start = self.offsets[:-1][self.segment]
        return FrameSteps(
            rows=self.rows[kept],
            retracts=None if self.retracts is None else self.retracts[kept],
            offsets=before[self.offsets],
            segment=self.segment,
            position=before[start + self.position] - before[start],
        )


def slid(low: Integers, high: Integers, starts: Integers) -> FrameSteps:
    """Steps that add the rows which enter a frame and retract those which leave it, row by row.

    Within a partition, neither bound may decrease. A frame that only grows retracts nothing.
    """
    rows = len(low)
    firsts = np.zeros(rows, np.bool_)
    firsts[starts] = True
    low_before, high_before = np.roll(low, 1), np.roll(high, 1)
    low_before[firsts] = high_before[firsts] = low[firsts]
    # If the frame jumps over rows, they are added and then retracted.
    added = np.maximum(high - high_before, 0)
    removed = low - low_before
    total = np.cumsum(added + removed)
    begin = total - added - removed
    count = int(total[-1]) if rows else 0
    steps = np.empty(count, np.int64)
    steps[_spread(begin, added)] = _spread(high_before, added)
    retracts = np.zeros(count, np.bool_)
    leaving = _spread(begin + added, removed)
    steps[leaving] = _spread(low_before, removed)
    retracts[leaving] = True
    segment = np.cumsum(firsts) - 1
    offsets = np.append(begin[starts], count)
    return FrameSteps(steps, retracts if retracts.any() else None, offsets, segment, total - offsets[:-1][segment])


def recomputed(low: Integers, high: Integers) -> FrameSteps:
    """Steps that compute each frame separately, from its first row; rows with equal frames share a segment."""
    fresh = _fresh(low, high)
    lengths = (high - low)[fresh]
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    segment = np.cumsum(fresh) - 1
    return FrameSteps(_spread(low[fresh], lengths), None, offsets, segment, lengths[segment])


def stretches(low: Integers, high: Integers, most: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows whose frames together have about `most` rows; rows with equal frames stay together."""
    fresh = _fresh(low, high)
    total = np.cumsum(np.where(fresh, high - low, 0))
    stretch = np.maximum.accumulate(np.where(fresh, total // most, 0))
    cuts = np.flatnonzero(stretch[1:] != stretch[:-1]) + 1
    yield from itertools.pairwise([0, *cuts.tolist(), len(low)])


def _fresh(low: Integers, high: Integers) -> npt.NDArray[np.bool_]:
    """Whether each row's frame differs from that of the previous row."""
    fresh = np.ones(len(low), np.bool_)
    fresh[1:] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    return fresh


def _spread(begin: Integers, counts: Integers) -> Integers:
    """begin[0], begin[0] + 1, ... with counts[0] elements, then the same for the next ones."""
    ends = np.cumsum(counts)
    return np.repeat(begin - (ends - counts), counts) + np.arange(ends[-1] if len(ends) else 0)


@dataclass(frozen=True)
class Evaluated:
    """The values of consecutive rows, and the errors of rows whose segment failed, by position."""

    values: pa.Array
    errors: Mapping[int, RowError]

    def columns(self, on_error: OnError) -> list[pa.Array]:
        """The values, and the errors if on-error is `column`."""
        errors = [error_array(len(self.values), self.errors)] if on_error is OnError.COLUMN else []
        return [self.values, *errors]


class RowValues:
    """Converts the values of segments and steps to the values of rows, in the same order."""

    def __init__(self, steps: FrameSteps, type_: pa.DataType, *, each_row: bool) -> None:
        self._steps = steps
        self._type = type_
        self._each_row = each_row
        self.segment = 0
        """The number of the next segment."""
        self._row = 0

    def of_segments(self, starting: pa.Array | None, values: pa.Array, segments: int) -> Iterator[Evaluated]:
        """The rows of the next segments; `values` has the value after each step, or only after the last one."""
        first, steps = self.segment, self._steps
        self.segment += segments
        rows = self._rows_before(self.segment)
        segment = steps.segment[rows]
        if not self._each_row:
            yield from self._pieces(values, segment - first)
            return
        after = steps.offsets[segment] - steps.offsets[first] + steps.position[rows]
        yield from self._picked(starting, values, after, segment - first, steps.position[rows] == 0)

    def of_steps(self, starting: pa.Array | None, values: pa.Array, done: int) -> Iterator[Evaluated]:
        """Rows of the next segment whose values are those after these steps, or before the first step."""
        segment_end = int(np.searchsorted(self._steps.segment, self.segment, side="right"))
        here = self._steps.position[self._row : segment_end]
        count = int(np.searchsorted(here, done + len(values), side="right"))
        after = here[:count] - done
        self._row += count
        yield from self._picked(starting, values, after, np.zeros(count, np.int64), after == 0)

    def end_segment(self) -> None:
        """End the next segment, all of whose steps have been passed."""
        self.segment += 1

    def of_failed(self, error: RowError) -> Iterator[Evaluated]:
        """All rows of the next segment, without values."""
        self._row = int(np.searchsorted(self._steps.segment, self.segment, side="left"))
        self.segment += 1
        rows = self._rows_before(self.segment)
        for begin in range(rows.start, rows.stop, FIRST_VALUES):
            count = min(rows.stop - begin, FIRST_VALUES)
            yield Evaluated(pa.nulls(count, self._type), dict.fromkeys(range(count), error))

    def _rows_before(self, segment: int) -> slice:
        """The rows from the next one up to the first row of a segment."""
        begin, self._row = self._row, int(np.searchsorted(self._steps.segment, segment, side="left"))
        return slice(begin, self._row)

    def _picked(
        self,
        starting: pa.Array | None,
        values: pa.Array,
        after: Integers,
        segment: Integers,
        at_start: npt.NDArray[np.bool_],
    ) -> Iterator[Evaluated]:
        """The value after this number of steps, or, if `at_start`, the starting value of the segment."""
        if at_start.any():
            assert starting is not None
            places = np.where(at_start, len(values) + segment, after - 1)
            values = pa.concat_arrays([values, starting])
        else:
            places = after - 1
        yield from self._pieces(values, places)

    def _pieces(self, values: pa.Array, places: Integers) -> Iterator[Evaluated]:
        for begin, end in cuts(row_bytes(values)[places]):
            yield Evaluated(values.take(pa.array(places[begin:end])), {})
