"""Shared parts of the tests of RowEngine: an engine over a transport, numbers through it, and their outcomes."""

import pyarrow as pa

import udf_server as udf
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import Runtime
from tests.spark_client.scripted import (
    stream_of,
)

__all__ = ["all_outcomes", "numbered", "outcomes", "plus_one", "through"]


@udf.scalar(buffer_capacity=7)
async def plus_one(x: int) -> int:
    return x + 1


def numbered(*sizes):
    """Batches of consecutive numbers `x`, and `y` ten times as large."""
    first = 0
    for size in sizes:
        x = range(first, first + size)
        yield pa.record_batch({"x": pa.array(x, pa.int64()), "y": pa.array([10 * n for n in x], pa.int64())})
        first += size


def through(transport, *calls, ordered=True, opened_calls=None):
    """An engine for these (call, columns) over one transport."""

    def open_stream(call, arguments):
        if opened_calls is not None:
            opened_calls.append(call)
        return stream_of(call, transport, arguments, sleep=lambda _: None)

    planned = [call if isinstance(call, PlannedCall) else PlannedCall(*call) for call in calls]
    return RowEngine(planned, Runtime(open_stream), ordered=ordered)


def outcomes(completed):
    """Per row: x, then per call its value or the code of its error."""
    found = []
    for index, x in enumerate(completed.table.column("x").to_pylist()):
        row = [x]
        for values, errors in zip(completed.values, completed.errors, strict=True):
            row.append(errors[index].code if index in errors else values[index].as_py())
        found.append(tuple(row))
    return found


def all_outcomes(engine, batches):
    return [row for completed in engine.run(batches) for row in outcomes(completed)]
