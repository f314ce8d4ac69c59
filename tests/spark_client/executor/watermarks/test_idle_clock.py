"""The clock of an idle source: ticks come only after a time of micro-batches without rows, in one run of a query."""

import datetime as dt

import pandas as pd
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.packed_batches import read
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from spark_client.executor.watermarks.idle_clock import IdleClock, packed_by_task, with_ticks
from tests.properties import examples

SCHEMA = pa.schema([("v", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("tick", pa.bool_())])
TIMEOUT = 5_000
CLOCK = IdleClock(TIMEOUT, time=1)


class State:
    """Spark's state of a bucket, and the time of the micro-batch."""

    def __init__(self):
        self.get, self.now = None, 0

    @property
    def exists(self):
        return self.get is not None

    def update(self, value):
        self.get = value

    def getCurrentProcessingTimeMs(self):
        return self.now


class Query:
    """Micro-batches, each of a task of the source for each list of values, and of one of the clock."""

    def __init__(self):
        self.states, self.run = {}, "first"

    def micro_batch(self, now, tasks, seconds=1):
        packed = []
        for part, values in enumerate([*tasks, None]):
            rows = [{"tick": True}] * seconds if values is None else [{"v": v, "tick": False} for v in values]
            batches = [pa.RecordBatch.from_pylist([row], SCHEMA) for row in rows]
            packed += (
                [pa.Table.from_batches(packed_by_task(batches, self._runtime(part))).to_pandas()] if batches else []
            )
        found = pd.concat(packed) if packed else pd.DataFrame({"bucket": []})
        rows = []
        for bucket, frame in found.groupby("bucket"):
            state = self.states.setdefault(bucket, State())
            state.now = now
            for result in with_ticks(CLOCK, int(bucket), iter([frame.iloc[::-1]]), state, self._runtime(0)):
                rows += [row for each in result["rows"] for batch in read(each) for row in batch.to_pylist()]
        assert all(not state.exists for bucket, state in self.states.items() if bucket >= 0)
        return [row["v"] for row in rows if not row["tick"]], [row["at"] for row in rows if row["tick"]]

    def _runtime(self, part):
        return Runtime(task=lambda: TaskInfo(partition=part, query_run=self.run))


def at(milliseconds):
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)


def test_a_tick_comes_when_no_task_had_rows_for_the_timeout():
    query = Query()
    assert query.micro_batch(1_000, [[1, 2], [3]]) == ([1, 2, 3], [])
    assert query.micro_batch(5_999, [[], []]) == ([], [])
    assert query.micro_batch(6_000, [], seconds=3) == ([], [at(1_000)])
    assert query.micro_batch(7_000, [[], [4]]) == ([4], [])
    assert query.micro_batch(11_000, []) == ([], [])
    assert query.micro_batch(12_000, []) == ([], [at(7_000)])


def test_a_run_that_continues_after_a_pause_waits_for_the_timeout_again():
    """The first micro-batch may be one that was planned before the pause, when the source had nothing yet."""
    query = Query()
    query.micro_batch(0, [[1]])
    query.run = "second"
    assert query.micro_batch(60_000, []) == ([], [])
    assert query.micro_batch(64_999, []) == ([], [])
    assert query.micro_batch(65_000, []) == ([], [at(60_000)])


STEPS = st.lists(
    st.tuples(st.integers(1, 6_000), st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), st.booleans())
)


@given(STEPS)
@examples(50)
def test_ticks_never_overtake_a_backlog_and_rows_keep_their_order(steps):
    query, now, idle_since = Query(), 0, None
    for number, (ahead, tasks, restarts) in enumerate(steps):
        now += ahead
        if restarts:
            query.run, idle_since = str(number), None
        values, ticks = query.micro_batch(now, tasks)
        assert values == [v for task in tasks for v in task]
        if values or idle_since is None:
            idle_since = now
        assert ticks == ([at(now - TIMEOUT)] if now - idle_since >= TIMEOUT else [])
