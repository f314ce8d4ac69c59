"""Jobs by key without Spark: a task aggregates, or calls a process table function, and checks the results."""

import time
from collections import Counter

import pyarrow as pa

from remote_udf.process_planning import TableGiven, output_fields, plan_process_call
from remote_udf.segments import AppliedField
from spark_client.base.calls import AggregateCall, ProcessTableCall
from spark_client.base.config import ClientConfig
from spark_client.executor.aggregate.bundles import PartialPlan
from spark_client.executor.aggregate.partial import map_partial
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.process.plan import OutputSource, ProcessPlan
from spark_client.executor.process.processing import map_processed
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.chaos.jobs import Tally

__all__ = ["aggregated", "processed"]

BATCH_ROWS = 2_000
SIZE = {"size": "1000"}
"""The rows of a bundle: few, so that many bundles are in flight when a server is lost."""
ROW = pa.schema([("k", pa.int64()), ("x", pa.int64())])


def aggregated(target, rows, keys):
    """Compute sum and count by key of x = 0, 1, ... with k = x % keys. The count shows lost and doubled rows."""
    call, runtime, streams = _opened(target, "totals", AggregateCall, applied=(AppliedField.ACCUMULATOR,))
    plan = PartialPlan((AggregateInput(call, (1,)),), (0,), ("k",), None, None, ("k", "total"))
    batches = _batches([(x % keys, x) for x in range(rows)])

    def count(tally):
        sums, counts = Counter(), Counter()
        for batch in map_partial(plan, batches, runtime):
            for row in batch.to_pylist():
                sums[row["k"]] += row["total"][0]
                counts[row["k"]] += row["total"][1]
        for key in range(keys):
            values = range(key, rows, keys)
            tally.lost += max(len(values) - counts[key], 0)
            tally.doubled += max(counts[key] - len(values), 0)
            tally.wrong += sums[key] != sum(values)

    return _tally(rows, count, streams)


def processed(target, rows, keys):
    """Each row returns with its number within its key; at the end of the input a timer emits the number of rows."""
    call, runtime, streams = _opened(target, "numbered", ProcessTableCall)
    process = plan_process_call(call.spec, {"rows": TableGiven(ROW, ["k"], ())}, {}, [])
    call = ProcessTableCall(**{**vars(call), "process": process})
    plan = ProcessPlan(
        call=call, keys=(0,), key_names=("k",), table=None, row_kind=None, time=None, rows=(1,),
        output=((OutputSource.KEY, 0), (OutputSource.VALUE, 0), (OutputSource.VALUE, 1)),
        schema=pa.schema(output_fields(call.spec, process)),
    )  # fmt: skip
    values = sorted((x % keys, x) for x in range(rows))
    batches = (
        pa.RecordBatch.from_arrays([batch.column(0), batch.to_struct_array()], names=["key", "row"])
        for batch in _batches(values)
    )

    def count(tally):
        found = Counter()
        for batch in map_processed(plan, batches, runtime):
            found.update(tuple(row.values()) for row in batch.to_pylist())
        expected = Counter()
        for key in range(keys):
            own = range(key, rows, keys)
            expected.update((key, number, x) for number, x in enumerate(own, 1))
            expected[key, len(own), None] += 1
        tally.lost += (expected - found).total()
        extra = found - expected
        tally.doubled += sum(times for row, times in extra.items() if row in expected)
        tally.wrong += sum(times for row, times in extra.items() if row not in expected)

    return _tally(rows, count, streams)


def _opened(target, function, kind, **more):
    """The call, the runtime that opens its streams, and the list of opened streams."""
    config = ClientConfig(target, connect_seconds=60.0)
    spec, streams = list_functions(config).find(function), []

    def opening(call, schema):
        streams.append(CallStream(call, schema, TaskInfo(), transport_for(config)))
        return streams[-1]

    return kind(spec, 1, SIZE, "chaos", config, **more), Runtime(opening), streams


def _batches(rows):
    for start in range(0, len(rows), BATCH_ROWS):
        columns = zip(*rows[start : start + BATCH_ROWS], strict=True)
        yield pa.RecordBatch.from_arrays([pa.array(column, pa.int64()) for column in columns], schema=ROW)


def _tally(rows, count, streams):
    tally, began = Tally(rows), time.monotonic()
    try:
        count(tally)
    except Exception as error:
        tally.failures.append(f"{type(error).__name__}: {error}"[:500])
    tally.seconds = time.monotonic() - began
    tally.replays = sum(stream.statistics.replays for stream in streams)
    tally.reconnects = sum(stream.statistics.reconnects for stream in streams)
    return tally
