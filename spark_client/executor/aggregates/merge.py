"""Finishing inside mapInArrow: the accumulators of a key, or its rows, become its values."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from remote_udf.options import OnError
from spark_client.executor.aggregates.outcomes import check_policy
from spark_client.executor.engine import OpenStream, PlannedCall, RowEngine
from spark_client.executor.opening import open_stream
from spark_client.executor.policy import error_array

__all__ = ["FinishPlan", "map_finish"]


@dataclass(frozen=True)
class FinishPlan:
    """What one finishing operator does: one input row per key.

    `output` says, per output column, an input column (position), the value of a call (~index) or its
    error (`errors_of`).
    """

    calls: tuple[PlannedCall, ...]
    keys: tuple[int, ...]
    key_names: tuple[str, ...]
    output: tuple[tuple[str, str, int], ...]
    """Name, "input" or "value" or "error", and the position of column or call."""


def map_finish(
    plan: FinishPlan, batches: Iterator[pa.RecordBatch], opening: OpenStream = open_stream
) -> Iterator[pa.RecordBatch]:
    """Input batches to output batches. Raises FunctionFailed, and what streams raise."""
    engine = RowEngine(plan.calls, opening, ordered=True)
    for completed in engine.run(batches):
        table = completed.table
        keys = [table.column(key) for key in plan.keys]
        for planned, errors in zip(plan.calls, completed.errors, strict=True):
            check_policy(planned.call, errors, keys, plan.key_names)  # type: ignore[arg-type]
        columns = []
        for _, source, index in plan.output:
            if source == "input":
                columns.append(table.column(index))
            elif source == "value":
                columns.append(completed.values[index].flatten()[0])
            else:
                assert plan.calls[index].call.policy.on_error is OnError.COLUMN
                columns.append(error_array(table.num_rows, completed.errors[index]))
        yield from pa.Table.from_arrays(columns, names=[name for name, _, _ in plan.output]).to_batches()
