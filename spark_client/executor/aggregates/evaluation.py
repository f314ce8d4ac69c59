"""Evaluation: applies the steps of frames and picks each row's value."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.outcomes import RowError
from remote_udf.row_kinds import ROW_KIND, RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, AppliedField, list_of
from spark_client.executor.aggregates.frames import Steps
from spark_client.executor.aggregates.keys import combined
from spark_client.executor.aggregates.segments import AggregateInput, accumulator_lists, key_struct
from spark_client.executor.engine import OpenStream, PlannedCall, RowEngine
from spark_client.executor.groups import Completed

__all__ = ["Evaluation"]

Integers = npt.NDArray[np.int64]
_STEP_BYTES = 8
"""What a step takes besides its arguments, at most."""
_CODES = np.array([RowKind.INSERT.code, RowKind.DELETE.code], np.int8)


class Evaluation:
    """One call over frames, for one task. Streams are opened when first needed.

    With `each_row` values may stand after any step of a segment, otherwise after its last one. With
    `retracting` steps may take rows back.
    """

    def __init__(
        self, source: AggregateInput, key_names: Sequence[str], opening: OpenStream, *, each_row: bool, retracting: bool
    ) -> None:
        self._source = source
        self._key_names = key_names
        self._opening = opening
        self._each_row = each_row
        self._retracting = retracting
        wanted = (AppliedField.STARTING_VALUE, AppliedField.UPDATED_VALUES) if each_row else (AppliedField.FINAL_VALUE,)
        self._engine = self._new_engine(wanted, chained=False)
        self._chained = self._new_engine((AppliedField.ACCUMULATOR, *wanted), chained=True)
        self._chain_used = False

    @property
    def size(self) -> int:
        """Rows of a bundle, as agreed with the server; known once something has been evaluated."""
        return self._engine.bundles().size

    def evaluate(self, table: pa.Table, steps: Steps, keys: Sequence[pa.Array]) -> tuple[pa.Array, dict[int, RowError]]:
        """A value per row of the table, and errors by segment, whose rows have null for a value.

        `keys` has a row per segment.
        """
        bundles = _Bundles(table, self._source, steps, keys, self._key_names, retracting=self._retracting)
        results = _Results(steps, self._source.call.spec.result, each_row=self._each_row)
        self._engine.open(bundles.batch(0, 0).schema)
        size = min(self._engine.bundles().size, bundles.rows_within(self._engine.segment_bytes()))
        first, count = 0, len(steps.offsets) - 1
        while first < count:
            fits = int(np.searchsorted(steps.offsets, steps.offsets[first] + size, side="right")) - 1
            last = min(fits, first + size)
            if last > first:
                self._collect(results, self._engine.send(bundles.batch(first, last)))
                first = last
            else:
                # Larger than a bundle: in parts, after everything before it.
                self._collect(results, self._engine.drain())
                self._chain(results, bundles, first, size)
                first += 1
        self._collect(results, self._engine.drain())
        return results.values(), results.errors

    def finish(self) -> None:
        """Ends the streams and compares accounts."""
        self._engine.finish()
        if self._chain_used:
            self._chained.finish()

    def close(self) -> None:
        """Cancels what is under way. Safe to call twice."""
        self._engine.close()
        self._chained.close()

    def _new_engine(self, applied: tuple[AppliedField, ...], *, chained: bool) -> RowEngine:
        """An engine over what `_Bundles` makes."""
        call = replace(self._source.call, applied=applied)
        columns, names = ([0], [KEY]) if call.spec.sees_key else ([], [])
        columns, names = [*columns, 1], [*names, ROWS]
        if chained:
            columns, names = [*columns, 2], [*names, ACCUMULATORS]
        planned = PlannedCall(call, tuple(columns), names=tuple(names))
        return RowEngine([planned], self._opening, ordered=True, merging=False)

    def _collect(self, results: "_Results", completed: Iterator[Completed]) -> None:
        for each in completed:
            fields = each.values[0].flatten()
            starting, values = fields if self._each_row else (None, fields[0])
            results.add(starting, values, each.errors[0])

    def _chain(self, results: "_Results", bundles: "_Bundles", segment: int, size: int) -> None:
        """One segment in parts, each applied to the accumulator of the part before."""
        accumulator: pa.Array | None = None
        begin: pa.Array | None = None
        parts: list[pa.Array] = []
        self._chain_used = True
        for batch in bundles.parts(segment, size):
            spec = self._source.call.spec
            assert spec.accumulator is not None
            before = accumulator_lists([accumulator], spec.accumulator)
            completed = self._chained.exchange(batch.append_column(ACCUMULATORS, before))
            if completed.errors[0]:
                results.add_failed(completed.errors[0][0])
                return
            fields = completed.values[0].flatten()
            accumulator = fields[0]
            begin = begin if begin is not None or not self._each_row else fields[1]
            parts.append(fields[-1].flatten() if self._each_row else fields[-1])
        if self._each_row:
            results.add_flat(begin, pa.concat_arrays(parts))
        else:
            results.add_flat(None, parts[-1])


class _Bundles:
    """Segments as batches: the key, the rows."""

    def __init__(
        self, table: pa.Table, source: AggregateInput, steps: Steps, keys: Sequence[pa.Array],
        key_names: Sequence[str], *, retracting: bool,
    ) -> None:  # fmt: skip
        self._steps = steps
        self._keys = keys
        self._key_names = key_names
        self._arguments = [combined(table.column(column)) for column in source.columns]
        self._retracting = retracting

    def rows_within(self, size: int) -> int:
        """How many steps take so many bytes, by the average row of the table; at least one."""
        rows = max(len(self._arguments[0]), 1) if self._arguments else 1
        width = sum(argument.nbytes for argument in self._arguments) / rows + _STEP_BYTES
        return max(1, int(size / width))

    def batch(self, first: int, last: int) -> pa.RecordBatch:
        """Segments `first` up to `last`."""
        offsets = self._steps.offsets[first : last + 1]
        return self._batch(first, offsets)

    def parts(self, segment: int, size: int) -> Iterator[pa.RecordBatch]:
        """One segment, `size` rows at a time."""
        begin, end = self._steps.offsets[segment : segment + 2].tolist()
        for start in range(begin, end, size):
            yield self._batch(segment, np.array([start, min(start + size, end)]))

    def _batch(self, first: int, offsets: Integers) -> pa.RecordBatch:
        begin, end = int(offsets[0]), int(offsets[-1])
        count = len(offsets) - 1
        places = pa.array(self._steps.rows[begin:end])
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
        key = key_struct([column.slice(first, count) for column in self._keys], self._key_names, count)
        return pa.RecordBatch.from_arrays([key, rows], names=[KEY, ROWS])


class _Results:
    """Values as they come, in the order of segments and steps."""

    def __init__(self, steps: Steps, type_: pa.DataType, *, each_row: bool) -> None:
        self._steps = steps
        self._type = type_
        self._each_row = each_row
        self._starting: list[pa.Array] = []
        self._values: list[pa.Array] = []
        self._segments = 0
        self.errors: dict[int, RowError] = {}

    def add(self, starting: pa.Array | None, values: pa.Array, errors: Mapping[int, RowError]) -> None:
        """Results of the next segments: per segment a final value, or a list of values after each step."""
        if not errors or not self._each_row:
            self.errors |= {self._segments + segment: error for segment, error in errors.items()}
            self.add_flat(starting, values.flatten() if self._each_row else values, segments=len(values))
            return
        assert starting is not None
        for segment in range(len(values)):
            if segment in errors:
                self.add_failed(errors[segment])
            else:
                self.add_flat(starting.slice(segment, 1), values.slice(segment, 1).flatten())

    def add_failed(self, error: RowError) -> None:
        """The next segment has no values."""
        self.errors[self._segments] = error
        begin, end = self._steps.offsets[self._segments : self._segments + 2].tolist()
        nulls = pa.nulls(end - begin if self._each_row else 1, self._type)
        self.add_flat(pa.nulls(1, self._type) if self._each_row else None, nulls)

    def add_flat(self, starting: pa.Array | None, values: pa.Array, segments: int = 1) -> None:
        """The same in one piece."""
        self._segments += segments
        self._values.append(values)
        if starting is not None:
            self._starting.append(starting)

    def values(self) -> pa.Array:
        """A value per row of the table."""
        steps = self._steps
        if not len(steps.segment):
            return pa.nulls(0, self._type)
        if not self._each_row:
            return pa.concat_arrays(self._values).take(pa.array(steps.segment))
        begin = steps.offsets[:-1][steps.segment]
        last = int(steps.offsets[-1]) + steps.segment
        places = np.where(steps.position > 0, begin + steps.position - 1, last)
        return pa.concat_arrays([*self._values, *self._starting]).take(pa.array(places))
