"""Process table functions on streams: a count with timeout over 100,000 keys in each micro-batch."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from benchmarks.process_functions import TIMEOUT_MS
from benchmarks.results import Results
from benchmarks.spark import TASKS
from benchmarks.timing import alternating, medians
from spark_client import RemoteSession

__all__ = ["measure_streams"]

KEYS = 100_000
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
RESULT = "k bigint, rows bigint, fired timestamp"
SCHEMA = "k bigint, ts timestamp"


def measure_streams(results: Results, spark: SparkSession, remote: RemoteSession, quick: bool) -> None:
    """Compares keys per second with Spark's two ways to run the same logic in the executor."""
    keys = KEYS // 500 if quick else KEYS
    spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    folder = Path(tempfile.mkdtemp(prefix="bench-stream-"))
    try:
        # Time does not advance, so that the state of every key is read and written and no timer fires.
        for batch in range(2):
            rows = spark.range(0, keys, 1, 1).select(
                F.col("id").alias("k"), F.timestamp_seconds(F.lit(100 + batch)).alias("ts")
            )
            rows.write.mode("append").parquet(str(folder / "in"))
        stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        stream = stream.withWatermark("ts", "10 seconds")
        ours = remote.process("count_with_timeout", stream, partition_by="k", on_time="ts")
        sides: dict[str, Callable[[], float]] = {
            "ours": partial(_second_batch, ours, folder),
            "apply_in_pandas_with_state": partial(_second_batch, _apply_in_pandas_with_state(stream), folder),
            "transform_with_state": partial(_second_batch, _transform_with_state(stream), folder),
        }
        time_ = medians(alternating(sides, 1, warm_up=False))
        for name in ("apply_in_pandas_with_state", "transform_with_state"):
            results.add(
                f"stream_vs_{name}", time_[name] / time_["ours"], f"keys/s over theirs, {keys:,} per micro-batch"
            )
        results.add("stream_keys_per_second", keys / time_["ours"], f"{keys:,} keys per micro-batch")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _second_batch(frame: DataFrame, folder: Path) -> float:
    """Seconds of the second micro-batch, which reads the state of the first one in warm processes."""
    checkpoint = tempfile.mkdtemp(dir=folder)
    query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
    started = query.trigger(availableNow=True).start()
    started.awaitTermination()
    batches = [each for each in started.recentProgress if each.numInputRows]
    return batches[1].durationMs["triggerExecution"] / 1000


def _apply_in_pandas_with_state(stream: DataFrame) -> DataFrame:
    def count(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        if state.hasTimedOut:
            (rows,) = state.get
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "rows": [rows], "fired": [pd.Timestamp(0)]})
            return
        rows, last = state.get[0] if state.exists else 0, 0
        for frame in frames:
            rows += len(frame)
            last = max(last, frame["ts"].max().value // 1_000_000)
        state.update((rows,))
        state.setTimeoutTimestamp(last + TIMEOUT_MS)

    return stream.groupBy("k").applyInPandasWithState(
        count, RESULT, "rows bigint", "append", GroupStateTimeout.EventTimeTimeout
    )


class _Count(StatefulProcessor):
    """The same count with a value and a timer per key."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._state = handle.getValueState("rows", "rows bigint, timer bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, timer = self._state.get() or (0, None)
        last = 0
        for row in rows:
            count += 1
            last = max(last, int(row.ts.timestamp() * 1000))
        if timer is not None:
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(last + TIMEOUT_MS)
        self._state.update((count, last + TIMEOUT_MS))
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
        count, _ = self._state.get()
        self._state.clear()
        yield Row(k=key[0], rows=count, fired=pd.Timestamp(expiredTimerInfo.getExpiryTimeInMs(), unit="ms"))

    def close(self) -> None:
        """Does nothing, but Spark requires it."""


def _transform_with_state(stream: DataFrame) -> DataFrame:
    return stream.groupBy("k").transformWithState(
        statefulProcessor=_Count(), outputStructType=RESULT, outputMode="Append", timeMode="EventTime"
    )
