"""Aggregates rows that are sorted by key, inside mapInArrow: one accumulator per key.

Keys that end within a bundle are separate segments, and many bundles are in flight at once. A key with more rows than a
bundle continues in a chain: each part is applied to the accumulator of the previous part, so memory does not grow with
the size of a key.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.segments import AppliedField
from spark_client.base.calls import AggregateCall
from spark_client.executor.aggregate.bundles import KeyedBundle, PartialPlan, bundle_of, output_of, planned_calls, signs
from spark_client.executor.aggregate.chain import Chain
from spark_client.executor.aggregate.partial import HELD_BYTES, map_partial, merging_inputs
from spark_client.executor.aggregate.segment_columns import AggregateInput, group_by_key, group_by_runs
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.engine.row_engine import RowEngine
from spark_client.executor.segments.cutting import BUNDLE_BYTES, rows_by_key, run_sorted
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["map_gathered", "map_grouped", "net_rows"]


def map_grouped(
    plan: PartialPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME
) -> Iterator[pa.RecordBatch]:
    """Turn input batches, sorted by key, into output batches. Raises FunctionFailed, and errors of streams."""
    return run_sorted(lambda cleanup: _GroupedTask(plan, runtime, cleanup), batches)


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
            partly = [replace(each.call, applied=(AppliedField.ACCUMULATOR,)) for each in plan.inputs]
            partial = replace(plan, inputs=tuple(map(_with_call, plan.inputs, partly)))
            held = list(map_partial(partial, itertools.chain(held, batches), runtime))
            merging = merging_inputs([each.call for each in plan.inputs], len(plan.keys))
            plan = replace(plan, inputs=merging, keys=tuple(range(len(plan.keys))))
    if any(batch.num_rows for batch in held):
        yield from map_grouped(plan, iter(_by_key(plan, pa.Table.from_batches(held))), runtime)


def _with_call(source: AggregateInput, call: AggregateCall) -> AggregateInput:
    return replace(source, call=call)


def _by_key(plan: PartialPlan, rows: pa.Table) -> list[pa.RecordBatch]:
    order = group_by_key([rows.column(key) for key in plan.keys], rows.num_rows).order
    table = rows if order is None else rows.take(pa.array(order))
    return table.combine_chunks().to_batches()


class _GroupedTask:
    def __init__(self, plan: PartialPlan, runtime: Runtime, cleanup: ExitStack) -> None:
        self._plan = plan
        self._engine = RowEngine(planned_calls(plan), runtime, ordered=True, merging=False)
        self._chain = Chain(plan, runtime)
        self._clock = runtime.clock
        cleanup.callback(self._engine.close)
        cleanup.callback(self._chain.close)
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


def net_rows(signs: Integers, starts: Integers, before: int) -> tuple[npt.NDArray[np.bool_], Integers]:
    """Which rows of a changelog are kept, and the net rows of each key. Each key begins with `before` rows.

    A retraction of a row of a key that has no rows is dropped (Flink: a retraction without state). If the number of
    rows is counted, these are the retractions that reach a new minimum below zero.
    """
    lengths = np.diff(np.append(starts, len(signs)))
    key = np.repeat(np.arange(len(starts)), lengths)
    total = np.cumsum(signs)
    depth = total - np.repeat(total[starts] - signs[starts], lengths) + before
    # The depths of each key are in a range of their own, below that of the previous key: one running minimum suffices.
    band = key * (2 * len(signs) + abs(before) + 2)
    lowest = np.minimum(np.minimum.accumulate(depth - band) + band, 0)
    previous = np.concatenate(([0], lowest[:-1]))
    previous[starts] = 0
    ends = np.append(starts[1:], len(signs)) - 1
    return lowest == previous, (depth - lowest)[ends]
