"""BucketProcessor: Spark's stateful processor for buckets of keys of a process table function."""

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

from remote_udf.segments import KEY
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.engine.policy import check_policy
from spark_client.executor.engine.row_engine import RowEngine
from spark_client.executor.packed_batches import read, written
from spark_client.executor.process.plan import StatePlan
from spark_client.executor.process.segment_batches import key_structs, rows_of, segment_engine
from spark_client.executor.process.state.bucket import Arrived, BucketWork, Moment
from spark_client.executor.process.state.entries import page_schema
from spark_client.executor.process.state.packing import DESCRIPTION_BUCKET
from spark_client.executor.process.state.pages import NEVER, Pages
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["BucketProcessor"]

log = logging.getLogger(__name__)

ABOUT = "description string, pages int, bytes bigint, watermark bigint, alarm bigint, due binary"
"""The stored attributes of a bucket: its description, the number and size of its pages, the last watermark, the timer
set in Spark (milliseconds), and for each page its earliest due time; after these, if state has a time-to-live, for each
page when half of it has expired."""

PACKED_BYTES = 4 << 20


class BucketProcessor(StatefulProcessor):
    """Receives packed batches of rows of a bucket, and returns packed batches of rows of the result.

    Each bucket has one timer in Spark, for the earliest timer of its keys.
    """

    def __init__(self, plan: StatePlan, runtime: Runtime = RUNTIME) -> None:
        self._plan = plan
        self._runtime = runtime
        self._engine: RowEngine | None = None

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._about = handle.getValueState("remote_udf_bucket", ABOUT)
        self._pages = handle.getMapState("remote_udf_pages", "page int", "keys binary")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        if key[0] == DESCRIPTION_BUCKET:
            self._describe()
            return
        packed_batches = sorted(rows, key=lambda row: (row.part, row.place))
        batches = [batch for each in packed_batches if each.rows for batch in read(each.rows)]
        if batches:
            yield from self._process(pa.Table.from_batches(batches), timerValues)
        elif self._has_expired(timerValues):
            yield from self._process(None, timerValues)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: object,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        yield from self._process(None, timerValues, fired=True)

    def close(self) -> None:
        """End the stream and compare the counts. Raises AccountingMismatch."""
        if self._engine is not None:
            engine, self._engine = self._engine, None
            try:
                engine.finish()
            finally:
                engine.close()

    def _describe(self) -> None:
        """Compare the description in the checkpoint with this call, and store it. Raises StateMismatch."""
        found, description = self._about.get(), self._plan.description()
        if found is not None:
            self._plan.require_fit(found[0])
        if found is None or found[0] != description:
            self._about.update((description, 0, 0, None, None, b""))

    def _process(self, table: pa.Table | None, times: TimerValues, *, fired: bool = False) -> Iterator[Row]:
        engine = self._opened()
        try:
            for batches in _together(self._worked(engine, table, times, fired)):
                yield Row(rows=written(batches))
        except BaseException:
            self._engine = None
            engine.close()
            raise

    def _opened(self) -> RowEngine:
        if self._engine is None:
            self._engine = segment_engine(self._plan.plan, self._runtime)
            self._engine.open(self._plan.plan.segments)
        return self._engine

    def _worked(
        self, engine: RowEngine, table: pa.Table | None, times: TimerValues, fired: bool
    ) -> Iterator[pa.RecordBatch]:
        plan = self._plan
        found = self._about.get()
        if found is None:
            count, total, before, alarm, due = 1, 0, None, None, np.full(1, NEVER, np.int64)
            expiry = due.copy()
        else:
            description, count, total, before, alarm, packed_due = found
            plan.require_fit(description)
            due, expiry = self._due(packed_due, count)
        # Spark's watermark is at the beginning of 1970 until there is one.
        milliseconds = times.getCurrentWatermarkInMs() if plan.has_watermark else 0
        watermark = milliseconds * 1000 if milliseconds > 0 else None
        pages = Pages(self._pages, page_schema(plan), count, total)

        def exchange(batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> Iterator[Completed]:
            for completed in engine.exchange_pieces(batch):
                check_policy(plan.plan.call, completed.errors[0], keys, plan.plan.key_names, completed.first)
                yield completed

        moment = Moment(before, watermark, self._now(times))
        work = BucketWork(plan, pages, due, expiry, moment, engine.bundles().size, exchange)
        yield from work.run(self._arrived(table))
        if work.dropped:
            log.warning(
                "function %s, uid %r: ORDER BY dropped %d late rows of a micro-batch; a longer delay of withWatermark "
                "lets later rows be on time", plan.plan.call.spec.key, plan.uid, work.dropped,
            )  # fmt: skip
        # Spark itself removes the timer that fired.
        set_to = self._set_alarm(None if fired else alarm, int(work.due.min()), milliseconds)
        last = watermark if moment.advanced else before
        packed_due = work.due.tobytes() + (work.expiry.tobytes() if plan.expires else b"")
        self._about.update((plan.description(), pages.count, pages.total, last, set_to, packed_due))

    def _has_expired(self, times: TimerValues) -> bool:
        """Whether the bucket has a page to load because of expired state."""
        found = self._about.get()
        if found is None:
            return False
        _, expiry = self._due(found[5], found[1])
        return bool((expiry <= self._now(times)).any())

    def _due(self, packed_due: bytes, count: int) -> tuple[Integers, Integers]:
        """When each page is due, and when half of it has expired."""
        times = np.frombuffer(packed_due, np.int64).copy()
        if len(times) > count:
            return times[:count], times[count:]
        # A bucket of an older version may have expired state.
        return times, np.full(count, 0 if self._plan.expires else NEVER, np.int64)

    def _now(self, times: TimerValues) -> int:
        """The time in milliseconds. Without a watermark Spark provides none: the clock of this machine is used."""
        if self._plan.has_watermark:
            return int(times.getCurrentProcessingTimeInMs())
        return int(self._runtime.now() * 1000)

    def _arrived(self, table: pa.Table | None) -> Arrived:
        plan = self._plan.plan
        type_ = plan.segments.field(KEY).type
        if table is None:
            empty = pa.array([], plan.segments.field("rows").type.value_type)
            return Arrived(empty, pa.array([], type_), np.zeros(0, np.int64))
        keys = key_structs([table.column(key).combine_chunks() for key in plan.keys], type_, table.num_rows)
        hashes = table.column(self._plan.hash).to_numpy()
        return Arrived(rows_of(plan, table), keys, hashes)

    def _set_alarm(self, alarm: int | None, due: int, watermark: int) -> int | None:
        """Set Spark's timer of the bucket and return it. If a timer is due already, the next watermark fires it."""
        never = due == NEVER or not self._plan.has_watermark
        wanted = None if never else max(-(-due // 1000), watermark + 1)
        if wanted != alarm:
            if alarm is not None:
                self._handle.deleteTimer(alarm)
            if wanted is not None:
                self._handle.registerTimer(wanted)
        return wanted


def _together(batches: Iterator[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Join small batches, because Spark's operator moves few large rows best; yield at least one batch at a time."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) >= PACKED_BYTES:
            yield held
            held = []
    if held:
        yield held
