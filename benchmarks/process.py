"""The suite of process table functions in batch: a count with timeout against the usual PySpark ways."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import LongType, StructField, StructType

from benchmarks.process_functions import TIMEOUT_MS
from benchmarks.process_stream import measure_streams
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.spark import TASKS, local_spark, run_query
from benchmarks.timing import alternating, medians
from spark_client import connect

__all__ = ["FUNCTIONS", "events", "run_process"]

FUNCTIONS = Path(__file__).with_name("process_functions.py")
ROWS, KEYS = 10_000_000, 1_000_000
RESULT = "k bigint, rows bigint, fired timestamp"


def run_process(results: Results, quick: bool) -> None:
    """Compares rows per second with `applyInPandas` and with `transformWithState`, which runs in the executor."""
    rows, keys = (ROWS // 2000, KEYS // 2000) if quick else (ROWS, KEYS)
    with local_spark() as spark, server_process(FUNCTIONS) as server:
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        # Spark requires this state store, in batch as well.
        spark.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
        frame = events(spark, rows, keys).cache()
        frame.count()
        remote = connect(spark, server.target)
        ours = remote.process("count_with_timeout", frame, partition_by="k", on_time="ts")
        theirs = {"apply_in_pandas": _apply_in_pandas(frame), "transform_with_state": _transform_with_state(frame)}
        time_ = medians(alternating({"ours": partial(run_query, ours), **_timed(theirs)}, 1, warm_up=not quick))
        for name in theirs:
            results.add(f"batch_vs_{name}", time_[name] / time_["ours"], f"rows/s over theirs, {rows:,} rows")
        results.add("batch_rows_per_second", rows / time_["ours"], f"{keys:,} keys")
        frame.unpersist()
        measure_streams(results, spark, remote, quick)


def _timed(sides: dict[str, DataFrame]) -> dict[str, Any]:
    return {name: partial(run_query, side) for name, side in sides.items()}


def events(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    """Rows of each key are one second apart."""
    numbers = spark.range(0, rows, 1, TASKS)
    seconds = (F.col("id") / keys).cast("bigint")
    return numbers.select(
        (F.col("id") % keys).alias("k"), F.timestamp_seconds(seconds).alias("ts"), F.rand(1).alias("v")
    )


def _apply_in_pandas(frame: DataFrame) -> DataFrame:
    """The same count, with a call per key."""

    def count(key: tuple[Any, ...], rows: pd.DataFrame) -> pd.DataFrame:
        fired = rows["ts"].max() + pd.Timedelta(TIMEOUT_MS, "ms")
        return pd.DataFrame({"k": [key[0]], "rows": [len(rows)], "fired": [fired]})

    return frame.groupBy("k").applyInPandas(count, RESULT)


class _CountProcessor(StatefulProcessor):
    """The same count with Spark's own state; timers do not fire in its batches, so the count is emitted immediately."""

    def init(self, handle: Any) -> None:
        self._count = handle.getValueState("count", StructType([StructField("rows", LongType())]))

    def handleInputRows(self, key: Any, rows: Iterator[Any], timer_values: Any) -> Iterator[Row]:  # noqa: N802 - Spark's
        count, last = 0, None
        for row in rows:
            count, last = count + 1, row.ts if last is None or row.ts > last else last
        self._count.update((count,))
        yield Row(k=key[0], rows=count, fired=last)

    def close(self) -> None:
        """Does nothing, but Spark requires it."""


def _transform_with_state(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").transformWithState(
        statefulProcessor=_CountProcessor(), outputStructType=RESULT, outputMode="Append", timeMode="None"
    )
