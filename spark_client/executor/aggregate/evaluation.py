"""Evaluation: sends the steps of frames in bundles, and selects the value of each row."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.options import OnError
from remote_udf.outcomes import RowError
from remote_udf.row_kinds import ROW_KIND, RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, AppliedField, list_of
from spark_client.executor.aggregate.segment_columns import AggregateInput, accumulator_lists, segment_call, structs
from spark_client.executor.aggregate.steps import FIRST_VALUES, Evaluated, FrameSteps, RowValues
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import PIECE_BYTES, Integers, LongColumn
from spark_client.executor.engine.policy import check_policy
from spark_client.executor.engine.row_engine import RowEngine
from spark_client.executor.stream.runtime import Runtime

__all__ = ["Evaluation"]

_GROWTH = 4
_STEP_BYTES = 8
"""The maximum size of a step, without its arguments."""
_CODES = np.array([RowKind.INSERT.code, RowKind.DELETE.code], np.int8)


class Evaluation:
    """One call over frames, for one task. Streams are opened when they are first needed.

    If `each_row`, a row's value may be that after any step of its segment, otherwise it is that after the last step. If
    `retracting`, steps may retract rows.
    """

    def __init__(
        self, source: AggregateInput, keys: Sequence[int], key_names: Sequence[str], runtime: Runtime, *,
        each_row: bool, retracting: bool,
    ) -> None:  # fmt: skip
        self._source = source
        self._keys = keys
        self._key_names = key_names
        self._runtime = runtime
        self._each_row = each_row
        self._retracting = retracting
        wanted = (AppliedField.STARTING_VALUE, AppliedField.UPDATED_VALUES) if each_row else (AppliedField.FINAL_VALUE,)
        self._engine = self._new_engine(wanted, chained=False)
        self._chained = self._new_engine((AppliedField.ACCUMULATOR, *wanted), chained=True)
        self._values_within = FIRST_VALUES
        """An estimate of the number of values that fit in a bundle."""

    @property
    def size(self) -> int:
        """The number of rows of a bundle, as agreed with the server; known after the first evaluation."""
        return self._engine.bundles().size

    def evaluate(self, table: pa.Table, steps: FrameSteps, owners: Integers) -> Iterator[Evaluated]:
        """Yield a value per row of the table, in order, in pieces of bounded size.

        `owners` has a row of the table for each segment, from which its key is read. Raises FunctionFailed if the
        policy requires it.
        """
        bundles = _StepBundles(
            table, self._source, steps, owners, self._keys, self._key_names, retracting=self._retracting
        )
        results = RowValues(steps, self._source.call.spec.result, each_row=self._each_row)
        self._engine.open(bundles.batch(0, 0).schema)
        most = min(self._engine.bundles().size, bundles.rows_within(self._engine.segment_bytes()))
        first, count = 0, len(steps.offsets) - 1
        while first < count:
            size = min(most, self._values_within) if self._each_row else most
            fits = int(np.searchsorted(steps.offsets, steps.offsets[first] + size, side="right")) - 1
            last = min(fits, first + min(most, self._values_within))
            if last > first:
                yield from self._collect(results, bundles, self._engine.send(bundles.batch(first, last)))
                first = last
            else:
                # A segment that is larger than a bundle is sent in parts, after all earlier segments.
                yield from self._collect(results, bundles, self._engine.drain())
                yield from self._chain(results, bundles, first, most)
                first += 1
        yield from self._collect(results, bundles, self._engine.drain())

    def finish(self) -> None:
        """End the streams and compare the counts."""
        self._engine.finish()
        self._chained.finish()

    def close(self) -> None:
        """Cancel the calls in flight. Safe to call twice."""
        self._engine.close()
        self._chained.close()

    def _new_engine(self, applied: tuple[AppliedField, ...], *, chained: bool) -> RowEngine:
        """An engine for the batches of _StepBundles."""
        call = replace(self._source.call, applied=applied)
        planned = segment_call(call, {ROWS: 1, ACCUMULATORS: 2} if chained else {ROWS: 1})
        return RowEngine([planned], self._runtime, ordered=True, merging=False)

    def _collect(
        self, results: RowValues, bundles: "_StepBundles", completed: Iterator[Completed]
    ) -> Iterator[Evaluated]:
        """The rows of completed bundles."""
        for each in completed:
            fields = each.values[0].flatten()
            starting, values = fields if self._each_row else (None, fields[0])
            self._sized(values.nbytes, len(values.flatten()) if self._each_row else len(values))
            begin = 0
            for segment, error in sorted(each.errors[0].items()):
                yield from self._whole(results, starting, values, begin, segment)
                number = results.segment
                if self._each_row and error.code == ErrorCode.RESULT_TOO_LARGE and bundles.steps_of(number) > 1:
                    # The values after each of its rows do not fit into a message together.
                    yield from self._chain(results, bundles, number, bundles.steps_of(number) // 2)
                else:
                    yield from self._failed(results, bundles, error)
                begin = segment + 1
            yield from self._whole(results, starting, values, begin, len(values))

    def _whole(
        self, results: RowValues, starting: pa.Array | None, values: pa.Array, begin: int, end: int
    ) -> Iterator[Evaluated]:
        """The rows of the next segments, which have not failed."""
        if begin == end:
            return
        part = values.slice(begin, end - begin)
        before = None if starting is None else starting.slice(begin, end - begin)
        yield from results.of_segments(before, part.flatten() if self._each_row else part, end - begin)

    def _failed(self, results: RowValues, bundles: "_StepBundles", error: RowError) -> Iterator[Evaluated]:
        """The rows of the next segment, which has failed."""
        check_policy(self._source.call, {0: error}, bundles.keys(results.segment, 1), self._key_names)
        yield from results.of_failed(error)

    def _sized(self, size: int, values: int) -> None:
        """Adapt the number of values of the next bundle to the measured size of values."""
        if values:
            within = int(PIECE_BYTES / max(size / values, 1))
            self._values_within = max(1, min(self._values_within * _GROWTH, within))

    def _chain(self, results: RowValues, bundles: "_StepBundles", segment: int, most: int) -> Iterator[Evaluated]:
        """The rows of one segment, in parts of at most `most` steps, each applied to the previous accumulator."""
        spec = self._source.call.spec
        assert spec.accumulator is not None
        accumulator: pa.Array | None = None
        begin: pa.Array | None = None
        last: pa.Array | None = None
        # A segment fails as a whole. Unless that fails the job, its values are therefore held back until it is
        # complete.
        waits = self._source.call.policy.on_error is not OnError.FAIL
        waiting: list[Evaluated] = []
        done, count = 0, bundles.steps_of(segment)
        while done < count:
            end = min(done + (min(most, self._values_within) if self._each_row else most), count)
            before = accumulator_lists([accumulator], spec.accumulator)
            completed = self._chained.exchange(bundles.part(segment, done, end).append_column(ACCUMULATORS, before))
            if (error := completed.errors[0].get(0)) is not None:
                if self._each_row and error.code == ErrorCode.RESULT_TOO_LARGE and end - done > 1:
                    most = (end - done) // 2
                    continue
                yield from self._failed(results, bundles, error)
                return
            fields = completed.values[0].flatten()
            accumulator, last = fields[0], fields[-1]
            if self._each_row:
                begin = fields[1] if begin is None else begin
                values = last.flatten()
                self._sized(values.nbytes, len(values))
                found = results.of_steps(begin, values, done)
                if waits:
                    waiting += found
                else:
                    yield from found
            done = end
        yield from waiting
        if self._each_row:
            results.end_segment()
        else:
            yield from results.of_segments(None, last, 1)


class _StepBundles:
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
        flat = structs(columns, names, end - begin)
        rows = pa.ListArray.from_arrays(pa.array((offsets - begin).astype(np.int32)), flat, type=list_of(flat.type))
        key = structs(self.keys(first, count), self._key_names, count)
        return pa.RecordBatch.from_arrays([key, rows], names=[KEY, ROWS])
