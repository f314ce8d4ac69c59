"""Processes broadcast tables: the function receives their rows first, and all keys read the resulting state."""

import contextlib
import dataclasses
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from remote_udf.process_calls import ProcessCall
from spark_client.base.calls import ProcessTableCall
from spark_client.executor.process.plan import ProcessPlan
from spark_client.executor.process.segment_batches import Before, Segments, after, segment_engine
from spark_client.executor.stream.runtime import RUNTIME
from spark_client.planning.process.inputs import ProcessInput

__all__ = ["broadcast_state"]

ROWS = 10_000
"""Rows of a broadcast table that one call receives."""


def broadcast_state(call: ProcessTableCall, inputs: Mapping[int, ProcessInput]) -> ProcessCall:
    """Collect the broadcast tables and return the call with the state that their rows produce.

    `inputs` are the broadcast tables by their number. Raises FunctionFailed.
    """
    process = call.process
    assert process is not None
    broadcasting = dataclasses.replace(call, process=dataclasses.replace(process, broadcast=True))
    before: Before | None = None
    for number, given in inputs.items():
        table = given.frame.toArrow()
        for first in range(0, table.num_rows, ROWS):
            before = _processed(broadcasting, number, table.slice(first, ROWS), before)
    if before is None or before.state.null_count:
        return process
    return dataclasses.replace(process, broadcast_state=pa.RecordBatch.from_struct_array(before.state))


def _processed(call: ProcessTableCall, number: int, rows: pa.Table, before: Before | None) -> Before:
    """The state after these rows of a table, of which there is at least one."""
    process = call.process
    assert process is not None
    # The columns that an executor would receive: the table, the time, and a struct per table.
    struct = rows.to_struct_array().combine_chunks()
    names, columns = ["table"], [pa.array(np.full(rows.num_rows, number, np.int8))]
    if process.on_time:
        names.append("time")
        columns.append(rows.column(process.tables[number].time_column).combine_chunks())
    first = len(names)
    for index, table in enumerate(process.tables):
        names.append(f"row_{index}")
        columns.append(struct if index == number else pa.nulls(rows.num_rows, pa.struct(list(table.schema))))
    plan = ProcessPlan(
        call=call, keys=(), key_names=(), table=0, row_kind=None, time=1 if process.on_time else None,
        rows=tuple(range(first, len(names))), output=(), schema=pa.schema([]), by_key=False,
    )  # fmt: skip
    now = int(RUNTIME.now() * 1000)
    table = pa.Table.from_arrays(columns, names=names)
    segments = Segments(plan, table, np.zeros(1, np.int64), now, before)
    with contextlib.closing(segment_engine(plan, RUNTIME)) as engine:
        completed = engine.exchange(segments.batch())
        segments.require_success(completed)
        engine.finish()
    return after(completed.values[0])
