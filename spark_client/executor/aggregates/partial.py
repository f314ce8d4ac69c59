"""Partial aggregation inside mapInArrow: rows become segments, segments become accumulators.

Every bundle is by itself, so that many are under way at once; that the same key comes out of several
bundles is what the merge after the shuffle is for.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from remote_udf.options import OnError
from remote_udf.segments import KEY, ROWS
from spark_client.executor.aggregates.cutting import tables_of
from spark_client.executor.aggregates.outcomes import check_policy
from spark_client.executor.aggregates.segments import AggregateInput, Grouping, group_by_key, key_struct, rows_column
from spark_client.executor.engine import OpenStream, PlannedCall, RowEngine
from spark_client.executor.groups import Completed
from spark_client.executor.opening import open_stream
from spark_client.executor.policy import error_array

__all__ = ["PartialPlan", "map_partial"]


@dataclass(frozen=True)
class PartialPlan:
    """What one partial aggregation does.

    `keys` are the columns of the key, `key_names` what they are called for the function and in errors,
    `kinds` is the column of row kinds of a changelog. Without `passed`, output has a row per segment: the
    key's columns, then an accumulator per call, then an error per call that does not fail the job. With
    it, output has every input row with these columns, and accumulators and errors are null but in the last
    row of their segment. `names` are those of the output's columns.
    """

    inputs: tuple[AggregateInput, ...]
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    kinds: int | None
    passed: tuple[int, ...] | None
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Bundle:
    """A bundle under way."""

    table: pa.Table
    grouping: Grouping
    keys: list[pa.Array]


def map_partial(
    plan: PartialPlan, batches: Iterator[pa.RecordBatch], opening: OpenStream = open_stream
) -> Iterator[pa.RecordBatch]:
    """Input batches to output batches. Raises FunctionFailed, and what streams raise."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    engine = RowEngine(planned_calls(plan.inputs), opening, ordered=True, merging=False)
    under_way: deque[_Bundle] = deque()
    with ExitStack() as cleanup:
        cleanup.callback(engine.close)
        engine.open(_bundled(plan, pa.Table.from_batches([first.slice(0, 1)]))[0].schema)
        bounds = engine.bundles()

        def bundles() -> Iterator[pa.RecordBatch]:
            for table in tables_of(itertools.chain([first], batches), bounds.size, bounds.allow_latency):
                batch, bundle = _bundled(plan, table)
                under_way.append(bundle)
                yield batch

        for completed in engine.run(bundles()):
            yield from _output(plan, under_way.popleft(), completed)


def planned_calls(inputs: tuple[AggregateInput, ...]) -> list[PlannedCall]:
    """The calls over batches made by `bundle_columns`."""
    calls = []
    for index, source in enumerate(inputs):
        if source.call.spec.sees_key:
            calls.append(PlannedCall(source.call, (0, index + 1), names=(KEY, ROWS)))
        else:
            calls.append(PlannedCall(source.call, (index + 1,), names=(ROWS,)))
    return calls


def _bundled(plan: PartialPlan, table: pa.Table) -> tuple[pa.RecordBatch, _Bundle]:
    """The bundle of a table: the key, and the rows for each call."""
    grouping = group_by_key([table.column(key) for key in plan.keys], table.num_rows)
    firsts = pa.array(grouping.first_rows())
    keys = [combined(table.column(key)).take(firsts) for key in plan.keys]
    kinds = None if plan.kinds is None else table.column(plan.kinds)
    columns = [key_struct(keys, plan.key_names, grouping.segments)]
    columns += [rows_column(source, table, grouping, kinds) for source in plan.inputs]
    batch = pa.RecordBatch.from_arrays(columns, names=[KEY, *(f"{ROWS}_{i}" for i in range(len(plan.inputs)))])
    return batch, _Bundle(table, grouping, keys)


def _output(plan: PartialPlan, bundle: _Bundle, completed: Completed) -> Iterator[pa.RecordBatch]:
    for source, errors in zip(plan.inputs, completed.errors, strict=True):
        check_policy(source.call, errors, bundle.keys, plan.key_names)
    segments = bundle.grouping.segments
    results = [values.flatten()[0] for values in completed.values]
    results += [
        error_array(segments, errors)
        for source, errors in zip(plan.inputs, completed.errors, strict=True)
        if source.call.policy.on_error is not OnError.FAIL
    ]
    if plan.passed is None:
        columns = [*bundle.keys, *results]
    else:
        columns = [bundle.table.column(column) for column in plan.passed]
        columns += [at_rows(result, bundle.grouping.last_rows(), bundle.table.num_rows) for result in results]
    yield from pa.Table.from_arrays(columns, names=list(plan.names)).to_batches()


def at_rows(values: pa.Array, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]", count: int) -> pa.Array:
    """A column of `count` rows with these values at these rows and null elsewhere."""
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(values))
    return values.take(pa.array(places, mask=places < 0))


def combined(column: pa.ChunkedArray) -> pa.Array:
    """The column in one piece."""
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return column
