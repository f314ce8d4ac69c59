"""Adds ticks to the rows of a stream while its source has nothing to read: rows with only a time, which is the clock's.

    rows, seconds of a clock ─ packed by task ─ groupBy(bucket).applyInPandasWithState ─ rows, ticks

The rows of each task pass through a bucket of their own, without state. The bucket CLOCK learns in each micro-batch
whether any task had rows, and keeps since when there were none. A run of a query begins to measure when it starts,
because what its source got before is not an idle source's.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState

from spark_client.executor.packed_batches import read, written
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["PACKED", "STATE", "IdleClock", "packed_by_task", "with_ticks"]

PACKED = T.StructType([
    T.StructField("bucket", T.IntegerType()), T.StructField("place", T.LongType()),
    T.StructField("rows", T.BinaryType()),
])  # fmt: skip
STATE = "since long, run string"
"""Since when there were no rows, in milliseconds, and the run of the query that measured it."""
CLOCK = -1
HAD_ROWS = b""
"""What CLOCK gets of a task with rows. Of a task with seconds it gets one of them."""
_SCHEMA = pa.schema([("bucket", pa.int32()), ("place", pa.int64()), ("rows", pa.binary())])


@dataclass(frozen=True)
class IdleClock:
    """`timeout` is how many milliseconds without rows pass before ticks begin, `time` the position of their column."""

    timeout: int
    time: int

    def tick(self, second: bytes, now: int) -> bytes:
        """A second of the clock, which has no values, with a time: that of the timeout ago."""
        (batch,) = read(second)
        field = batch.schema.field(self.time)
        value = pa.array([(now - self.timeout) * 1000], pa.int64()).cast(field.type)
        return written([batch.set_column(self.time, field, value)])


def packed_by_task(batches: Iterable[pa.RecordBatch], runtime: Runtime = RUNTIME) -> Iterator[pa.RecordBatch]:
    """Packs rows, whose last column tells whether they are seconds of the clock, in the columns of PACKED."""
    bucket, had_rows, had_seconds = runtime.task().partition, False, False
    for place, batch in enumerate(batches):
        is_second = batch.column(batch.num_columns - 1)
        rows, seconds = batch.filter(pc.invert(is_second)), batch.filter(is_second)
        parts: list[tuple[int, bytes]] = []
        if rows.num_rows:
            parts += [(bucket, written([rows])), *([] if had_rows else [(CLOCK, HAD_ROWS)])]
            had_rows = True
        if seconds.num_rows and not had_seconds:
            parts.append((CLOCK, written([seconds.slice(0, 1)])))
            had_seconds = True
        yield pa.RecordBatch.from_arrays(
            [
                pa.array([each for each, _ in parts], pa.int32()),
                pa.array([place] * len(parts), pa.int64()),
                pa.array([packed for _, packed in parts], pa.binary()),
            ],
            schema=_SCHEMA,
        )


def with_ticks(
    clock: IdleClock, bucket: int, frames: Iterator[pd.DataFrame], state: GroupState, runtime: Runtime = RUNTIME
) -> Iterator[pd.DataFrame]:
    """The packed rows of a bucket in their order; those of CLOCK are a tick if there were no rows for the timeout."""
    packed = sorted(
        (place, bytes(rows)) for frame in frames for place, rows in zip(frame["place"], frame["rows"], strict=True)
    )
    if bucket != CLOCK:
        yield pd.DataFrame({"rows": [rows for _, rows in packed]})
        return
    # The time of the micro-batch, which is the same if it runs again.
    now, run = state.getCurrentProcessingTimeMs(), runtime.task().query_run
    since, measured_by = state.get if state.exists else (now, None)
    if run != measured_by or any(rows == HAD_ROWS for _, rows in packed):
        state.update((now, run))
    elif now - since >= clock.timeout:
        yield pd.DataFrame({"rows": [clock.tick(packed[0][1], now)]})
