"""Buckets of windows inside Spark's operators: rows packed by window and bucket, then the state of one bucket."""

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState

from spark_client.base.identifiers import hidden
from spark_client.executor.aggregate.fired import FiredBucket, FirePlan, Step
from spark_client.executor.aggregate.segment_columns import group_by_key
from spark_client.executor.packed_batches import read, written

__all__ = ["BUCKET", "LAST", "OVER", "ROWS", "fired", "packed_windows"]

LAST, OVER, BUCKET, ROWS = (hidden(name) for name in ("last", "over", "bucket", "rows"))
"""Columns of what Spark groups: a window's last millisecond, when it is over, the bucket of the key, its rows."""


def packed_windows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of a window and bucket as one packed batch: the columns LAST, OVER, BUCKET and ROWS.

    The first three columns of the batches are LAST, OVER and BUCKET.
    """
    for batch in batches:
        if not batch.num_rows:
            continue
        table = pa.Table.from_batches([batch])
        grouping = group_by_key([table.column(0), table.column(2)], table.num_rows)
        ordered = table if grouping.order is None else table.take(pa.array(grouping.order))
        rows = ordered.select(range(3, table.num_columns))
        packed_batches = [
            written(rows.slice(start, end - start).to_batches())
            for start, end in zip(grouping.offsets[:-1], grouping.offsets[1:], strict=True)
        ]
        heads = table.take(pa.array(grouping.first_rows())).select(range(3))
        whole = heads.append_column(ROWS, pa.array(packed_batches, pa.binary()))
        yield from whole.rename_columns([LAST, OVER, BUCKET, ROWS]).combine_chunks().to_batches()


def fired(plan: FirePlan, last: int, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The changes of one bucket of one window in one micro-batch, if any: a packed batch in the column ROWS.

    `last` is the window's last millisecond. State and timeout are set in Spark's `state`.
    """
    packed_batches = [] if state.hasTimedOut else [bytes(each) for frame in frames for each in frame[ROWS]]
    batches = [batch for each in packed_batches for batch in read(each)]
    step = Step(last, state.getCurrentWatermarkMs(), state.getCurrentProcessingTimeMs())
    saved = bytes(state.get[0]) if state.exists else None
    bucket = FiredBucket(plan, saved)
    changes = bucket.changes(step, pa.Table.from_batches(batches) if batches else None)
    after = bucket.saved
    if after is None:
        if state.exists:
            state.remove()
    else:
        if after != saved:
            state.update((after,))
        if plan.options.needs_clock:
            # The watermark may pass the window's end at any time, and the clock wakes by time alone.
            state.setTimeoutDuration(1)
        else:
            # Spark wakes what is before the watermark, not what is at it.
            due = last if step.watermark < last else last + plan.options.lateness
            state.setTimeoutTimestamp(due - 1)
    if changes is not None:
        yield pd.DataFrame({ROWS: [written(changes.to_batches())]})
