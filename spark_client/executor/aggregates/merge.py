"""Finishing inside mapInArrow: the accumulators of a key, or its rows, become its values."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_client.calls import AggregateCall
from spark_client.executor.aggregates.outcomes import check_policy
from spark_client.executor.engine import OpenStream, PlannedCall, RowEngine
from spark_client.executor.opening import open_stream
from spark_client.executor.policy import error_array
from spark_client.executor.rows import OutputColumn, Source

__all__ = ["FinishPlan", "map_finish"]


@dataclass(frozen=True)
class FinishPlan:
    """What one finishing operator does: its input has a row per key, and so has its output."""

    calls: tuple[PlannedCall, ...]
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    output: tuple[OutputColumn, ...]


def map_finish(
    plan: FinishPlan, batches: Iterator[pa.RecordBatch], opening: OpenStream = open_stream
) -> Iterator[pa.RecordBatch]:
    """Input batches to output batches. Raises FunctionFailed, and what streams raise."""
    engine = RowEngine(plan.calls, opening, ordered=True)
    for completed in engine.run(batches):
        table = completed.table
        keys = [table.column(key) for key in plan.keys]
        for planned, errors in zip(plan.calls, completed.errors, strict=True):
            assert isinstance(planned.call, AggregateCall)
            check_policy(planned.call, errors, keys, plan.key_names)
        columns = []
        for column in plan.output:
            if column.source is Source.INPUT:
                columns.append(table.column(column.index))
            elif column.source is Source.VALUE:
                columns.append(completed.values[column.index].flatten()[0])
            else:
                columns.append(error_array(table.num_rows, completed.errors[column.index]))
        yield from pa.Table.from_arrays(columns, names=[column.name for column in plan.output]).to_batches()
