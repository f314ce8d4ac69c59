"""The last step, inside mapInArrow: the accumulators of a key, or its rows, become its values."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_client.base.calls import AggregateCall
from spark_client.executor.engine.pieces import WHOLE_BYTES
from spark_client.executor.engine.policy import check_policy
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.scalar.rows import OutputColumn, output_table
from spark_client.executor.segments.keys import key_codes
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["FinishPlan", "map_finish", "without_repeats"]


@dataclass(frozen=True)
class FinishPlan:
    """The plan of a final operator: both its input and its output have a row per key.

    `distinct` are the columns of lists in which equal rows count once.
    """

    calls: tuple[PlannedCall, ...]
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    output: tuple[OutputColumn, ...]
    distinct: tuple[int, ...] = ()


def map_finish(
    plan: FinishPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME
) -> Iterator[pa.RecordBatch]:
    """Turn input batches into output batches. Raises FunctionFailed, and errors of streams."""
    engine = RowEngine(plan.calls, runtime, ordered=True, most_bytes=WHOLE_BYTES)
    for completed in engine.run(_settled(plan, batch) for batch in batches):
        keys = [completed.table.column(key) for key in plan.keys]
        for planned, errors in zip(plan.calls, completed.errors, strict=True):
            assert isinstance(planned.call, AggregateCall)
            check_policy(planned.call, errors, keys, plan.key_names)
        finals = [values.flatten()[0] for values in completed.values]
        yield from output_table(plan.output, replace(completed, values=finals)).to_batches()


def _settled(plan: FinishPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch without the equal rows that Spark leaves in a set.

    If Spark's hash aggregation falls back to sorting, a struct that was collected before and an equal one that was
    collected afterwards are two elements of a collect_set.
    """
    for column in plan.distinct:
        batch = batch.set_column(column, batch.schema.field(column), without_repeats(batch.column(column)))
    return batch


def without_repeats(lists: pa.Array) -> pa.Array:
    """The lists of structs without repetitions; the first of equal elements of a list is kept."""
    flat = lists.flatten()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    owners = np.repeat(np.arange(len(lists)), lengths)
    parts = [pa.chunked_array([part]) for part in (pa.array(owners), *flat.flatten())]
    codes, _ = key_codes(parts, len(flat))
    _, firsts = np.unique(codes, return_index=True)
    if len(firsts) == len(flat):
        return lists
    firsts.sort()
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owners[firsts], minlength=len(lists)))))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), flat.take(pa.array(firsts)), type=lists.type)
