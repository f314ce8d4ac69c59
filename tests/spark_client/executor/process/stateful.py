"""Buckets of keys without Spark: a state store that is a dictionary, micro-batches one after another."""

import datetime
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from remote_udf.effective_options import canonical
from remote_udf.options import AGGREGATE_OPTIONS
from remote_udf.process_planning import TableGiven, output_fields, plan_process_call
from spark_client.base.calls import ErrorPolicy, ProcessTableCall
from spark_client.base.config import ClientConfig
from spark_client.executor.packed_batches import read
from spark_client.executor.process.plan import OutputSource, ProcessPlan, StatePlan
from spark_client.executor.process.state.entries import page_schema
from spark_client.executor.process.state.packing import PACKED_SCHEMA, packed, packed_with_visits
from spark_client.executor.process.state.processor import BucketProcessor
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from spark_client.testing import LocalTransport
from udf_server.process.declaration import declare_process

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
ROW = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us", "UTC"))])


def at(seconds):
    return EPOCH + datetime.timedelta(seconds=seconds)


def state_plan(
    function: Any, *, order_by: Any = (), buckets: int = 3, rows_first: bool = False, schema: pa.Schema = ROW,
    partition_by: Any = ("k",), time: str = "ts", **options: Any,
) -> tuple[StatePlan, Any]:  # fmt: skip
    """A call of a function with one table of `k`, `v`, `ts`, by key and time."""
    declared = declare_process(function)
    name = declared.spec.process.tables[0].name
    given = TableGiven(schema, list(partition_by), order_by)
    process = plan_process_call(declared.spec, {name: given}, {}, [time])
    call = ProcessTableCall(
        spec=declared.spec, arguments=1, options=canonical(options, source="test", known=(AGGREGATE_OPTIONS,)),
        operation_id="test", config=ClientConfig("test"), policy=ErrorPolicy(), process=process,
    )  # fmt: skip
    fields = declared.spec.result.num_fields
    output = ((OutputSource.KEY, 0), *((OutputSource.VALUE, i) for i in range(fields)), (OutputSource.TIME, 0))
    plan = ProcessPlan(
        call=call, keys=(0,), key_names=("k",), table=None, row_kind=None, time=1, rows=(2,), output=output,
        schema=pa.schema(output_fields(declared.spec, process)),
    )  # fmt: skip
    return StatePlan(plan, "test", buckets, 3, has_watermark=True, rows_first=rows_first), declared


def _known():
    from remote_udf.options import AGGREGATE_OPTIONS

    return (AGGREGATE_OPTIONS,)


class Store:
    """Spark's state: by bucket, values, maps and timers. Counts the requests."""

    def __init__(self) -> None:
        self.values: dict[Any, Any] = {}
        self.maps: dict[Any, dict[Any, Any]] = defaultdict(dict)
        self.timers: dict[Any, set[int]] = defaultdict(set)
        self.bucket: Any = None
        self.writes = 0

    def getValueState(self, name, schema):
        return self

    def getMapState(self, name, key, value):
        return self

    def get(self):
        return self.values.get(self.bucket)

    def update(self, value):
        self.values[self.bucket] = value

    def getValue(self, key):
        return self.maps[self.bucket].get(key)

    def updateValue(self, key, value):
        self.writes += 1
        self.maps[self.bucket][key] = value

    def removeKey(self, key):
        del self.maps[self.bucket][key]

    def registerTimer(self, time):
        self.timers[self.bucket].add(time)

    def deleteTimer(self, time):
        self.timers[self.bucket].remove(time)


class Times:
    def __init__(self, watermark: int, now: int) -> None:
        self.watermark, self.now = watermark, now

    def getCurrentWatermarkInMs(self):
        return self.watermark

    def getCurrentProcessingTimeInMs(self):
        return self.now


class Stream:
    """A query: micro-batches, each with a new processor, as after a restart."""

    def __init__(self, plan, declared):
        self.plan = plan
        self.transport = LocalTransport(declared)
        self.store = Store()
        self.micro_batches = 0

    def opened(self, call, arguments):
        return CallStream(call, arguments, TaskInfo(), self.transport)

    def micro_batch(self, rows, watermark=0, now=0):
        """Rows `(k, v, seconds)`, the watermark in milliseconds; gives back the rows of the result."""
        store, times, found = self.store, Times(watermark, now), []
        processor = BucketProcessor(self.plan, Runtime(self.opened))
        processor.init(store)
        for bucket, packed_batches in self._packed_batches(rows).items():
            store.bucket = bucket
            found += processor.handleInputRows((bucket,), iter(packed_batches), times)
        for bucket, pending in list(store.timers.items()):
            for time in sorted(pending):
                if time <= watermark:
                    store.bucket = bucket
                    found += processor.handleExpiredTimer((bucket,), times, None)
                    pending.discard(time)
        processor.close()
        return [tuple(row.values()) for each in found for batch in read(each.rows) for row in batch.to_pylist()]

    def _packed_batches(self, rows):
        by_bucket = defaultdict(list)
        if not rows:
            return by_bucket
        structs = [{"k": k, "v": v, "ts": None if s is None else at(s)} for k, v, s in rows]
        hashes = (np.array([(k or 0) + 1 for k, _, _ in rows], np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(
            np.int64
        )
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([k for k, _, _ in rows], pa.int64()), pa.array([s["ts"] for s in structs], ROW.types[2]),
                pa.array(structs, pa.struct(list(ROW))), pa.array(hashes),
            ],
            names=["key", "time", "row", "hash"],
        )  # fmt: skip
        self.micro_batches += 1
        pack = packed_with_visits if self.plan.expires else packed
        runtime = Runtime(self.opened, task=lambda: TaskInfo(micro_batch=self.micro_batches))
        for packed_batches in pack(self.plan.buckets, [batch], runtime):
            for each in packed_batches.to_pylist():
                by_bucket[each["bucket"]].append(Row(**{name: each[name] for name in PACKED_SCHEMA.names}))
        return by_bucket

    def keys(self):
        """Returns the number of keys in the store."""
        schema = page_schema(self.plan)
        pages = [value for pages in self.store.maps.values() for (value,) in pages.values()]
        return sum(pa.ipc.read_record_batch(pa.py_buffer(page), schema).num_rows for page in pages)
