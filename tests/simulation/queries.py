"""A simulated streaming query: micro-batches with dead letters and state, and its restart from the checkpoint."""

import copy
import datetime
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row

from spark_client.executor.packed_batches import read
from spark_client.executor.process.state.packing import PACKED_SCHEMA, packed
from spark_client.executor.process.state.processor import BucketProcessor
from spark_client.executor.scalar.rows import map_rows, of_partition
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from tests.simulation.application import Application, JobFailed, TaskAttempt
from tests.simulation.functions import value_of
from tests.simulation.jobs import EPOCH, Job, check_letters, process_plan, row_plan, time_of
from tests.simulation.keyed_functions import GAP_SECONDS
from tests.simulation.oracles import Violation
from tests.simulation.scenario import JobPlan
from tests.spark_client.executor.process.stateful import ROW, Store, Times

__all__ = ["Query"]

BUCKETS = 3
DELAY_SECONDS = 5
"""How far the watermark is behind the latest row."""
END_SECONDS = 1e6
"""The watermark of the last micro-batch, which has no rows."""
MOST_RESTARTS = 4
RESTART_SECONDS = 1.0
WRITE_SECONDS = 0.01
Passed = tuple[int, datetime.datetime, int]
"""Key, time and x of a row that has no dead letter."""


class Query(Job):
    """Rows get values or dead letters; then `Counted` numbers them by key, with state in the checkpoint.

    The checkpoint is what a restart finds: `committed` micro-batches, the `versions` of the state, and `sink`.
    """

    def __init__(self, world: Any, plan: JobPlan, number: int) -> None:
        super().__init__(world, plan, number)
        self.committed = 0
        self.versions: dict[tuple[int, int], Store] = {}
        """By partition and by the number of micro-batches before."""
        self.sink: dict[int, list[Any]] = {}
        self.passed: dict[int, list[list[Passed]]] = {}
        """The rows of each micro-batch that reached the second stage, by partition of the first."""
        self._times = {x: time_of(plan, x) for x in self.xs}
        self._restarts = 0

    def _run(self, application: Application) -> None:
        while True:
            # Each run plans the query anew, and may divide its input otherwise.
            partitions = 1 + (self.plan.partitions + self.submissions + self._restarts) % 2
            run = f"{self.name}-{self.submissions}-{self._restarts}"
            try:
                while self.committed <= self.plan.micro_batches:
                    self._micro_batch(application, run, self.committed, partitions)
                return
            except JobFailed:
                self._restarts += 1
                if self._restarts > MOST_RESTARTS:
                    raise
                application.threads.sleep(RESTART_SECONDS)

    def _micro_batch(self, application: Application, run: str, number: int, partitions: int) -> None:
        threads, plan = application.threads, self.plan
        info = TaskInfo(job=run, stage=0, micro_batch=number, query=self.name, query_run=run)
        xs = self._input(number)
        rows = row_plan(plan, ["x", "k", "ts"], self.operation, application.process.name)
        bodies = [self._map_side(rows, xs[partition::partitions]) for partition in range(partitions)]
        mapped = application.run_stage(bodies, info, plan.speculates_after) if xs else []
        arrived = list(itertools.chain.from_iterable(packed_rows for _, packed_rows in mapped))
        state = process_plan(plan, BUCKETS)
        watermark = self._watermark(number)
        bodies = []
        for partition in range(plan.reducers):
            buckets: dict[int, list[Row]] = {}
            for each in arrived:
                if each.bucket % plan.reducers == partition:
                    buckets.setdefault(each.bucket, []).append(each)
            bodies.append(self._reduce_side(state, buckets, number, watermark))
        info = TaskInfo(job=run, stage=1, micro_batch=number, query=self.name, query_run=run)
        found = application.run_stage(bodies, info, plan.speculates_after)
        # A sink that replaces what it has of a micro-batch; then the query writes that it is done.
        threads.sleep(WRITE_SECONDS)
        self.sink[number] = list(itertools.chain.from_iterable(found))
        self.passed[number] = [passed for passed, _ in mapped]
        threads.sleep(WRITE_SECONDS)
        self.committed = number + 1
        self.world.scheduler.note(self.name, f"micro-batch {number} is committed")

    def _map_side(self, rows: Any, xs: Sequence[int]) -> Any:
        columns = {
            "x": pa.array(list(xs), pa.int64()), "k": pa.array([x % self.plan.keys for x in xs], pa.int64()),
            "ts": pa.array([self._times[x] for x in xs], ROW.types[2]),
        }  # fmt: skip

        def body(runtime: Runtime, attempt: TaskAttempt) -> Any:
            passed: list[Passed] = []
            own = of_partition(rows, attempt.info.partition)
            for batch in map_rows(own, self._batches(attempt, columns), runtime):
                for x, k, ts, *values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    if values != [value_of(x)] * len(values):
                        raise Violation(f"{self.name}: row {x} has {values}")
                    passed.append((k, ts, x))
                    attempt.passed.append(x)
            packed_rows = [
                Row(**{name: each[name] for name in PACKED_SCHEMA.names})
                for batch in packed(BUCKETS, [_hashed(passed)], runtime) for each in batch.to_pylist()
            ]  # fmt: skip
            return passed, packed_rows

        return body

    def _reduce_side(self, state: Any, buckets: dict[int, list[Row]], number: int, watermark: int) -> Any:
        def body(runtime: Runtime, attempt: TaskAttempt) -> list[Any]:
            partition, random = attempt.info.partition, attempt.worker.random
            store: Any = copy.deepcopy(self.versions.get((partition, number)) or Store())
            times: Any = Times(watermark, 0)
            fired: Any = None
            found: list[Any] = []
            processor = BucketProcessor(state, runtime)
            processor.init(store)
            for bucket, rows in sorted(buckets.items()):
                store.bucket = bucket
                # The parts of a shuffle arrive in any order.
                found += processor.handleInputRows((bucket,), iter(random.sample(rows, len(rows))), times)
            for bucket, timers in sorted(store.timers.items()):
                for timer in sorted(timers):
                    if timer <= watermark:
                        store.bucket = bucket
                        found += processor.handleExpiredTimer((bucket,), times, fired)
                        timers.discard(timer)
            processor.close()
            runtime.threads.event().wait(WRITE_SECONDS)
            self.versions[partition, number + 1] = store
            return [tuple(row.values())[:3] for each in found for batch in read(each.rows) for row in batch.to_pylist()]

        return body

    def _input(self, number: int) -> list[int]:
        """The rows of a micro-batch: those of the source in turn; none in the last one."""
        size = -(-len(self.xs) // self.plan.micro_batches)
        return list(self.xs[number * size : (number + 1) * size]) if number < self.plan.micro_batches else []

    def _watermark(self, number: int) -> int:
        """Of a micro-batch, in milliseconds: by the rows of those before it, so that a restart has the same."""
        if number == self.plan.micro_batches:
            return int(END_SECONDS * 1000)
        seconds = [(self._times[x] - EPOCH).total_seconds() for n in range(number) for x in self._input(n)]
        return int(max(max(seconds, default=0.0) - DELAY_SECONDS, 0.0) * 1000)

    def check(self) -> None:
        state: dict[int, list[Any]] = {}
        for number in range(self.plan.micro_batches + 1):
            passed = self.passed[number]
            xs, rows = self._input(number), [[x for _, _, x in part] for part in passed]
            check_letters(self.world, self.name, xs, rows, self.name, number, lambda info: info.query)
            watermark = self._watermark(number)
            advanced = number > 0 and watermark > self._watermark(number - 1)
            arrived = list(itertools.chain.from_iterable(passed))
            expected = _model(state, arrived, watermark if advanced else 0)
            if Counter(self.sink[number]) != Counter(expected):
                more, fewer = Counter(self.sink[number]), Counter(expected)
                raise Violation(
                    f"{self.name}, micro-batch {number}: {dict(more - fewer)} too much, {dict(fewer - more)} missing"
                )


def _model(state: dict[int, list[Any]], rows: Sequence[Passed], watermark: int) -> list[Any]:
    """What `Counted` emits in a micro-batch. `state` has the number, the sum and the timer of each key.

    Timers fire if the watermark has advanced; otherwise it is 0.
    """
    found = []
    for key, (count, total, timer) in list(state.items()):
        if timer <= watermark:
            found.append((key, count, -total))
            del state[key]
    for key, time, x in rows:
        count, total, _ = state.get(key, (0, 0, 0))
        timer = int((time - EPOCH).total_seconds() + GAP_SECONDS) * 1000
        state[key] = [count + 1, total + x, timer]
        found.append((key, count + 1, x))
    return found


def _hashed(rows: Sequence[Passed]) -> pa.RecordBatch:
    """The columns that the planner makes of rows: key, time, row, and the hash of the key."""
    hashes = (np.array([k + 1 for k, _, _ in rows], np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    structs = [{"k": k, "v": x, "ts": ts} for k, ts, x in rows]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([k for k, _, _ in rows], pa.int64()), pa.array([ts for _, ts, _ in rows], ROW.types[2]),
            pa.array(structs, pa.struct(list(ROW))), pa.array(hashes),
        ],
        names=["key", "time", "row", "hash"],
    )  # fmt: skip
