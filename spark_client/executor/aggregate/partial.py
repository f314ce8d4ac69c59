"""Partial aggregation inside mapInArrow: rows become segments, segments become accumulators.

Bundles are independent, and many of them are in flight at once. If a key occurs in several bundles of a task, its
accumulators are merged before the shuffle, as far as memory allows, because passing a row from one stage of Spark to
the next costs many times more than merging it. The final merge handles the rest.
"""

import itertools
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial

import numpy as np
import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.segments import AppliedField
from spark_client.base.calls import AggregateCall
from spark_client.executor.aggregate.bundles import KeyedBundle, PartialPlan, bundle_of, output_of, planned_calls
from spark_client.executor.aggregate.segment_columns import AggregateInput, group_by_key
from spark_client.executor.engine.row_engine import RowEngine
from spark_client.executor.segments.cutting import tables_of
from spark_client.executor.segments.keys import key_codes
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["HELD_BYTES", "can_combine", "combined_bundles", "map_partial", "merged_accumulators", "merging_inputs"]

FIRST_ROWS = 262_144
GROWTH = 4
ROWS_PER_KEY = 8
"""If bundles have fewer rows per key than this, they grow."""
GROWN_BYTES = 64 << 20
"""The maximum input of a bundle. Its segments are sent in several messages."""
HELD_BYTES = 64 << 20
"""The maximum size of accumulators of a task that wait for its next bundles."""
WORTH = 0.75
"""Accumulators are merged if at most this share of them remains."""

Batches = list[pa.RecordBatch]


def map_partial(
    plan: PartialPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME
) -> Iterator[pa.RecordBatch]:
    """Turn input batches into output batches. Raises FunctionFailed, and errors of streams."""
    with closing(_applied(plan, batches, runtime)) as bundles:
        if can_combine(plan):
            yield from combined_bundles(plan, bundles, partial(_merged, runtime))
        else:
            yield from itertools.chain.from_iterable(bundles)


def merged_accumulators(plan: PartialPlan, table: pa.Table, runtime: Runtime) -> pa.Table:
    """The output of a plan over accumulators, which form one bundle."""
    return pa.Table.from_batches(_merged(runtime, plan, table.to_batches()))


def _merged(runtime: Runtime, plan: PartialPlan, held: Batches) -> Batches:
    rows = iter([pa.Table.from_batches(held).combine_chunks().to_batches()[0]])
    return list(itertools.chain.from_iterable(_applied(plan, rows, runtime, whole=True)))


def _applied(
    plan: PartialPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime, *, whole: bool = False
) -> Generator[Batches]:
    """The output of each bundle; if `whole`, each batch is a bundle."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    engine = RowEngine(planned_calls(plan), runtime, ordered=True, merging=False)
    in_flight: deque[KeyedBundle] = deque()
    with closing(engine):
        engine.open(_grouped(plan, pa.Table.from_batches([first.slice(0, 1)])).batch(plan).schema)
        bounds = engine.bundles()

        def bundles() -> Iterator[pa.RecordBatch]:
            growing = _GrowingSize(bounds.size)
            rows = itertools.chain([first], batches)
            tables = (
                (pa.Table.from_batches([batch]) for batch in rows)
                if whole
                else tables_of(rows, growing, bounds.allow_latency, bundle_bytes=GROWN_BYTES, clock=runtime.clock)
            )
            for table in tables:
                for bundle in _bundles(plan, table, engine.segment_bytes()):
                    growing.saw(bundle.table.num_rows, bundle.grouping.segments)
                    in_flight.append(bundle)
                    yield bundle.batch(plan)

        for completed in engine.run(bundles()):
            yield list(output_of(plan, in_flight.popleft(), completed))


class _GrowingSize:
    """The number of rows of the next bundle: it grows if few keys repeat, because the output has a row per key."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rows = min(most, FIRST_ROWS)

    def __call__(self) -> int:
        return self._rows

    def saw(self, rows: int, segments: int) -> None:
        """Record the numbers of rows and of keys of a bundle."""
        if segments * ROWS_PER_KEY > rows >= self._rows:
            self._rows = min(self._rows * GROWTH, self._most)


def _bundles(plan: PartialPlan, table: pa.Table, segment_bytes: int) -> Iterator[KeyedBundle]:
    """The rows as one bundle, or as several if a key would not fit into a message, because segments are not divided."""
    bundle = _grouped(plan, table)
    largest = int(np.diff(bundle.grouping.offsets).max())
    if largest == 1 or largest * (table.nbytes / table.num_rows) <= segment_bytes:
        yield bundle
        return
    half = table.num_rows // 2
    yield from _bundles(plan, table.slice(0, half), segment_bytes)
    yield from _bundles(plan, table.slice(half), segment_bytes)


def _grouped(plan: PartialPlan, table: pa.Table) -> KeyedBundle:
    keys = [table.column(key) for key in plan.keys]
    return bundle_of(plan, table, group_by_key(keys, table.num_rows))


def can_combine(plan: PartialPlan) -> bool:
    """Whether the plan's output consists only of accumulators by key that can be merged."""
    mergeable = (
        source.call.spec.supports_merging and source.call.applied == (AppliedField.ACCUMULATOR,)
        for source in plan.inputs
    )
    return plan.passed is None and plan.kinds is None and all(mergeable)


def combined_bundles(
    plan: PartialPlan,
    bundles: Iterator[Batches],
    merge: Callable[[PartialPlan, Batches], Batches],
    *,
    held_bytes: int = HELD_BYTES,
) -> Iterator[pa.RecordBatch]:
    """The output of a task's bundles, with as few rows per key as `held_bytes` allow.

    `merge` runs a plan over accumulators. If merging is not worthwhile, because few keys recur, the remaining bundles
    are passed on unchanged.
    """
    held: Batches = []
    several = False
    for batches in bundles:
        several = several or bool(held)
        held += batches
        if _bytes(held) < held_bytes:
            continue
        if several and _repeats(plan, held):
            held = merge(_merging(plan), held)
            several = False
            if _bytes(held) <= held_bytes // 2:
                continue
        elif several:
            yield from held
            for rest in bundles:
                yield from rest
            return
        yield from held
        held = []
    yield from merge(_merging(plan), held) if several and _repeats(plan, held) else held


def _merging(plan: PartialPlan) -> PartialPlan:
    """A plan whose input is the output of `plan`, and whose output has the same columns."""
    inputs = merging_inputs([source.call for source in plan.inputs], len(plan.keys))
    return PartialPlan(inputs, tuple(range(len(plan.keys))), plan.key_names, None, None, plan.names)


def merging_inputs(calls: Sequence[AggregateCall], keys: int) -> tuple[AggregateInput, ...]:
    """The calls over a table of keys, an accumulator per call, and an error per call that keeps errors."""
    inputs, error = [], keys + len(calls)
    for index, call in enumerate(calls):
        keeps_errors = call.policy.on_error is not OnError.FAIL
        inputs.append(AggregateInput(call, (), accumulator=keys + index, error=error if keeps_errors else None))
        error += keeps_errors
    return tuple(inputs)


def _repeats(plan: PartialPlan, held: Batches) -> bool:
    """Whether enough keys occur in more than one bundle."""
    table = pa.Table.from_batches(held)
    _, distinct = key_codes(table.columns[: len(plan.keys)], table.num_rows)
    return distinct <= WORTH * table.num_rows


def _bytes(batches: Batches) -> int:
    return sum(batch.nbytes for batch in batches)
