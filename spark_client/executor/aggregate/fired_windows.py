"""Runs buckets of windows in Spark's operators: packs rows by window and bucket, then updates the state of a bucket."""

from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState

from spark_client.base.identifiers import hidden
from spark_client.executor.aggregate.fired import FiredBucket, Step
from spark_client.executor.aggregate.fired_state import FirePlan
from spark_client.executor.aggregate.segment_columns import group_by_key
from spark_client.executor.packed_batches import read, written

__all__ = ["BUCKET", "LAST", "OVER", "ROWS", "fired", "packed_windows"]

LAST, OVER, BUCKET, ROWS = (hidden(name) for name in ("last", "over", "bucket", "rows"))
"""The columns by which Spark groups: a window's last millisecond, the time when it ends, the bucket, and the rows."""


def packed_windows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of each window and bucket as one packed batch, in the columns LAST, OVER, BUCKET and ROWS.

    The first three columns of the input batches are LAST, OVER and BUCKET.
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

    `last` is the window's last millisecond. The new state and its timeout are set in Spark's `state`.
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
            # With a processing time timeout, Spark does not react to the watermark, which may pass the window at any
            # time.
            state.setTimeoutDuration(1)
        else:
            # Spark fires timeouts that are before the watermark, not those that are equal to it.
            due = last if step.watermark < last else last + plan.options.lateness
            state.setTimeoutTimestamp(due - 1)
    if changes is not None:
        yield pd.DataFrame({ROWS: [written(changes.to_batches())]})
