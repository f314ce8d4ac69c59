"""Short jobs: many short streams, rows that become dead letters, jobs that are cancelled."""

import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.scalar.dead_letter import DeadLetterWriter, Operator
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.chaos.jobs import Job, Tally

__all__ = ["given_up", "lettered", "short_streams"]

STREAMS = 20
BATCH_ROWS = 2_000


def short_streams(target, rows, rng):
    """Run tasks of one batch each, one after the other, as a query over small partitions does."""
    total = Tally(rows)
    for _ in range(STREAMS):
        tally = Job(target, "fast", rows // STREAMS, ordered=rng.random() < 0.5, tasks=1).start().wait()
        total.seconds += tally.seconds
        total.lost, total.doubled = total.lost + tally.lost, total.doubled + tally.doubled
        total.wrong, total.replays = total.wrong + tally.wrong, total.replays + tally.replays
        total.failures += tally.failures
    return total


def given_up(target, rows, rng):
    """Stop a job in the middle of its streams, as when Spark cancels a task. Its results are not checked."""
    job = Job(target, "slow", rows).start()
    time.sleep(rng.uniform(0.0, 0.2))
    job.stop()
    return Tally(rows, failures=[failure for failure in job.tally.failures if "Cancel" not in failure])


def lettered(target, rows, rng):
    """Every second row fails and is written as a dead letter."""
    tally, began = Tally(rows), time.monotonic()
    config, streams = ClientConfig(target, connect_seconds=60.0), []
    call = ScalarCall(list_functions(config).find("half_bad"), 1, {"max-attempts": "1"}, "chaos", config)

    def opening(call, schema):
        streams.append(CallStream(call, schema, TaskInfo(), transport_for(config)))
        return streams[-1]

    batches = (
        pa.record_batch({"x": pa.array(np.arange(start, min(start + BATCH_ROWS, rows)))})
        for start in range(0, rows, BATCH_ROWS)
    )
    with tempfile.TemporaryDirectory() as folder:
        writer = DeadLetterWriter(folder, Operator("operation"))
        try:
            for completed in RowEngine([PlannedCall(call, (0,))], Runtime(opening), ordered=True).run(batches):
                errors = completed.errors[0]
                failed = sorted(errors)
                if failed:
                    letters = pa.table(completed.table).take(failed)
                    writer.write(letters, ["half_bad@1"] * len(failed), [errors[row] for row in failed])
            writer.commit()
        except Exception as error:
            writer.abort()
            tally.failures.append(f"{type(error).__name__}: {error}"[:500])
        else:
            found = pq.read_table(folder)["x"].to_numpy()
            tally.lost, tally.doubled = rows // 2 - len(set(found)), len(found) - len(set(found))
            tally.wrong = int(np.count_nonzero(found % 2 == 0))
    tally.seconds, tally.replays = time.monotonic() - began, sum(stream.statistics.replays for stream in streams)
    return tally
