"""RowValues selects the value of each row from the values of segments and steps."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.outcomes import RowError
from spark_client.executor.aggregate.frames import FrameSteps
from spark_client.executor.engine.pieces import Integers, cuts, row_bytes
from spark_client.executor.engine.policy import error_array

__all__ = ["FIRST_VALUES", "Evaluated", "RowValues"]

FIRST_VALUES = 16_384
"""The number of values in a piece if their size is not known yet."""


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
