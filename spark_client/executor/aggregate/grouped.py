"""Aggregates rows that are sorted by key, inside mapInArrow: one accumulator per key.

Keys that end within a bundle are separate segments, and many bundles are in flight at once. A key with more rows than a
bundle continues in a chain: each part is applied to the accumulator of the previous part, so memory does not grow with
the size of a key.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import pyarrow as pa

from remote_udf.outcomes import RowError
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, AppliedField
from spark_client.executor.aggregate.bundles import (
    KeyedBundle,
    PartialPlan,
    bundle_of,
    net_rows,
    output_of,
    planned_calls,
    signs,
)
from spark_client.executor.aggregate.partial import HELD_BYTES, map_partial, merging_inputs
from spark_client.executor.aggregate.segment_columns import (
    accumulator_lists,
    errors_column,
    group_by_key,
    group_by_runs,
    rows_column,
    segment_call,
    structs,
)
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.engine.policy import error_array
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.segments.cutting import BUNDLE_BYTES, rows_by_key, run_sorted
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["map_gathered", "map_grouped"]

_COLUMNS = 3
"""The columns of a call in a batch of a chain: accumulators, rows, and the error of an earlier part."""


def map_grouped(
    plan: PartialPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME
) -> Iterator[pa.RecordBatch]:
    """Turn input batches, sorted by key, into output batches. Raises FunctionFailed, and errors of streams."""
    return run_sorted(lambda: _GroupedTask(plan, runtime), batches)


def map_gathered(
    plan: PartialPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME, *, held_bytes: int = HELD_BYTES
) -> Iterator[pa.RecordBatch]:
    """Like `map_grouped` for rows in any order, if the functions merge.

    A task sorts few rows faster than Spark does. If there are more, they become accumulators first.
    """
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        held.append(batch)
        size += batch.nbytes
        if size > held_bytes:
            applied = (AppliedField.ACCUMULATOR,)
            partly = tuple(replace(each, call=replace(each.call, applied=applied)) for each in plan.inputs)
            held = list(map_partial(replace(plan, inputs=partly), itertools.chain(held, batches), runtime))
            merging = merging_inputs([each.call for each in plan.inputs], len(plan.keys))
            plan = replace(plan, inputs=merging, keys=tuple(range(len(plan.keys))))
    if any(batch.num_rows for batch in held):
        yield from map_grouped(plan, iter(_by_key(plan, pa.Table.from_batches(held))), runtime)


def _by_key(plan: PartialPlan, rows: pa.Table) -> list[pa.RecordBatch]:
    order = group_by_key([rows.column(key) for key in plan.keys], rows.num_rows).order
    table = rows if order is None else rows.take(pa.array(order))
    return table.combine_chunks().to_batches()


class _GroupedTask:
    def __init__(self, plan: PartialPlan, runtime: Runtime) -> None:
        self._plan = plan
        self._engine = RowEngine(planned_calls(plan), runtime, ordered=True, merging=False)
        self._chain = _Chain(plan, runtime)
        self._clock = runtime.clock
        self._in_flight: deque[tuple[KeyedBundle, Integers | None]] = deque()
        self._count = 0
        """The net rows of the current chain, in a changelog."""

    def run(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        sample = pa.Table.from_batches([first.slice(0, 1)])
        self._engine.open(bundle_of(plan, sample, group_by_runs(np.zeros(1, np.int64), 1)).batch(plan).schema)
        for step in self._steps(itertools.chain([first], batches)):
            if isinstance(step, KeyedBundle):
                yield from self._outputs(self._engine.send(step.batch(plan)))
            else:
                yield from step
        yield from self._outputs(self._engine.drain())
        self._engine.finish()
        self._chain.finish()

    def close(self) -> None:
        """Cancel the calls in flight."""
        with closing(self._engine):
            self._chain.close()

    def _outputs(self, completed: Iterator[Completed]) -> Iterator[pa.RecordBatch]:
        for each in completed:
            bundle, counts = self._in_flight.popleft()
            yield from output_of(self._plan, bundle, each, counts)

    def _steps(self, batches: Iterator[pa.RecordBatch]) -> Iterator["KeyedBundle | list[pa.RecordBatch]"]:
        """Bundles of complete keys, and the output of keys in a chain, which are processed on the way."""
        most_bytes = min(BUNDLE_BYTES, self._engine.segment_bytes())
        for rows in rows_by_key(batches, self._plan.keys, self._engine.bundles(), most_bytes, self._clock):
            if rows.is_part:
                yield self._part(rows.table, ends=rows.ends)
            else:
                yield from self._complete(rows.table, rows.starts)

    def _complete(self, table: pa.Table, starts: Integers) -> Iterator[KeyedBundle]:
        counts = None
        if self._plan.kinds is not None:
            table, starts, counts = self._without_orphans(table, starts)
        if table.num_rows:
            bundle = bundle_of(self._plan, table, group_by_runs(starts, table.num_rows))
            self._in_flight.append((bundle, counts))
            yield bundle

    def _part(self, table: pa.Table, *, ends: bool) -> list[pa.RecordBatch]:
        """The output for a part of the key in the current chain, or in a new one."""
        output: list[pa.RecordBatch] = []
        if self._plan.kinds is not None:
            before = self._count if self._chain.started else 0
            kept, net = net_rows(signs(table.column(self._plan.kinds)), np.zeros(1, np.int64), before)
            table = table.filter(pa.array(kept))
            self._count = int(net[0])
        if table.num_rows:
            bundle, completed = self._chain.apply(table)
            counts = None if self._plan.kinds is None else np.array([self._count])
            output = list(output_of(self._plan, bundle, completed, counts, ends=ends))
        if ends:
            self._chain.forget()
        return output

    def _without_orphans(self, table: pa.Table, starts: Integers) -> tuple[pa.Table, Integers, Integers]:
        """The rows without orphaned retractions, the positions where keys begin, and the net rows of each key."""
        assert self._plan.kinds is not None
        kept, net = net_rows(signs(table.column(self._plan.kinds)), starts, 0)
        if kept.all():
            return table, starts, net
        lengths = np.add.reduceat(kept.astype(np.int64), starts)
        present = lengths > 0
        ends = np.cumsum(lengths[present])
        return table.filter(pa.array(kept)), np.concatenate(([0], ends[:-1])).astype(np.int64), net[present]


class _Chain:
    """Applies the parts of one key at a time. Its own streams are opened when a key first needs them."""

    def __init__(self, plan: PartialPlan, runtime: Runtime) -> None:
        self._plan = plan
        self._engine = RowEngine(_planned(plan), runtime, ordered=True, merging=False)
        self._accumulators: list[pa.Array | None] = [None] * len(plan.inputs)
        self._errors: list[RowError | None] = [None] * len(plan.inputs)
        self.started = False
        """Whether a part of the key has been applied and more parts follow."""

    def apply(self, part: pa.Table) -> tuple[KeyedBundle, Completed]:
        """Apply rows of the key, and keep the accumulators and errors for the next part."""
        plan = self._plan
        bundle = bundle_of(plan, part, group_by_runs(np.zeros(1, np.int64), part.num_rows))
        kinds = None if plan.kinds is None else part.column(plan.kinds)
        columns = [structs(bundle.keys, plan.key_names, 1)]
        for source, before, error in zip(plan.inputs, self._accumulators, self._errors, strict=True):
            assert source.call.spec.accumulator is not None
            type_ = source.call.spec.accumulator
            errors = error_array(1, {} if error is None else {0: error})
            if source.accumulator is None:
                columns.append(accumulator_lists([before], type_))
                columns.append(rows_column(source, part, bundle.grouping, kinds))
            else:
                own = part.column(source.accumulator).combine_chunks().drop_null()
                columns += [accumulator_lists([before, own], type_), pa.nulls(1)]
            if error is None and source.error is not None:
                errors = errors_column(part.column(source.error), bundle.grouping)
            columns.append(errors)
        names = [KEY, *(str(index) for index in range(len(columns) - 1))]
        completed = self._engine.exchange(pa.RecordBatch.from_arrays(columns, names=names))
        self.started = True
        self._accumulators = [values.flatten()[0] for values in completed.values]
        self._errors = [errors.get(0) for errors in completed.errors]
        return bundle, completed

    def forget(self) -> None:
        """Forget the accumulators and errors, because a new key follows."""
        self.started = False
        self._accumulators = [None] * len(self._plan.inputs)
        self._errors = [None] * len(self._plan.inputs)

    def finish(self) -> None:
        """End the streams and compare the counts."""
        self._engine.finish()

    def close(self) -> None:
        """Cancel the calls in flight. Safe to call twice."""
        self._engine.close()


def _planned(plan: PartialPlan) -> Sequence[PlannedCall]:
    calls = []
    for index, source in enumerate(plan.inputs):
        first = 1 + index * _COLUMNS
        # Every part needs the accumulator.
        call = replace(source.call, applied=tuple(dict.fromkeys((AppliedField.ACCUMULATOR, *source.call.applied))))
        rows = {ROWS: first + 1} if source.accumulator is None else {}
        calls.append(segment_call(call, {ACCUMULATORS: first, **rows}, (first + 2,)))
    return calls
