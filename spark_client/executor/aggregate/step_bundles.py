"""StepBundles: the batches that are sent for the steps of frames, a segment with its key per row."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from remote_udf.row_kinds import ROW_KIND, RowKind
from remote_udf.segments import KEY, ROWS, list_of
from spark_client.executor.aggregate.frames import FrameSteps
from spark_client.executor.aggregate.segment_columns import AggregateInput, key_struct
from spark_client.executor.engine.pieces import LongColumn
from spark_client.executor.segments.keys import Integers

__all__ = ["StepBundles"]

_STEP_BYTES = 8
"""The maximum size of a step, without its arguments."""
_CODES = np.array([RowKind.INSERT.code, RowKind.DELETE.code], np.int8)


class StepBundles:
    """Converts segments to batches with the columns key and rows."""

    def __init__(
        self, table: pa.Table, source: AggregateInput, steps: FrameSteps, owners: Integers, keys: Sequence[int],
        key_names: Sequence[str], *, retracting: bool,
    ) -> None:  # fmt: skip
        self._steps = steps
        self._owners = owners
        self._keys = [LongColumn(table.column(column)) for column in keys]
        self._key_names = key_names
        self._arguments = [LongColumn(table.column(column)) for column in source.columns]
        self._retracting = retracting

    def rows_within(self, size: int) -> int:
        """The number of steps that fit into `size` bytes, estimated by the average row of the table; at least one."""
        rows = max(len(self._arguments[0]), 1) if self._arguments else 1
        width = sum(argument.bytes for argument in self._arguments) / rows + _STEP_BYTES
        return max(1, int(size / width))

    def steps_of(self, segment: int) -> int:
        """The number of steps of a segment."""
        return int(self._steps.offsets[segment + 1] - self._steps.offsets[segment])

    def keys(self, first: int, count: int) -> list[pa.Array]:
        """The columns of the key, with a row per segment."""
        return [column.take(self._owners[first : first + count]) for column in self._keys]

    def batch(self, first: int, last: int) -> pa.RecordBatch:
        """The segments from `first` to `last`, without the last one."""
        return self._batch(first, self._steps.offsets[first : last + 1])

    def part(self, segment: int, begin: int, end: int) -> pa.RecordBatch:
        """Some of the steps of one segment."""
        return self._batch(segment, self._steps.offsets[segment] + np.array([begin, end]))

    def _batch(self, first: int, offsets: Integers) -> pa.RecordBatch:
        begin, end = int(offsets[0]), int(offsets[-1])
        count = len(offsets) - 1
        places = self._steps.rows[begin:end]
        names, columns = [], []
        if self._retracting:
            retracts = self._steps.retracts
            taken = np.zeros(end - begin, np.int8) if retracts is None else retracts[begin:end].astype(np.int8)
            names.append(ROW_KIND)
            columns.append(pa.array(_CODES[taken]))
        names += [str(index) for index in range(len(self._arguments))]
        columns += [argument.take(places) for argument in self._arguments]
        if columns:
            flat = pa.StructArray.from_arrays(columns, names=names)
        else:
            flat = pa.array([{}] * (end - begin), pa.struct([]))
        rows = pa.ListArray.from_arrays(pa.array((offsets - begin).astype(np.int32)), flat, type=list_of(flat.type))
        key = key_struct(self.keys(first, count), self._key_names, count)
        return pa.RecordBatch.from_arrays([key, rows], names=[KEY, ROWS])
