"""Scalar functions called from Spark against the usual PySpark ways, in the same run."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.functions import LOOKUP_SECONDS, STRAGGLER_SECONDS
from benchmarks.results import Results
from benchmarks.server import ServerProcess
from benchmarks.spark import TASKS, run_query
from benchmarks.timing import alternating
from spark_client import RemoteSession, connect

__all__ = [
    "MESSAGE_ROWS",
    "gathering",
    "local_identity",
    "measure_look_ups",
    "measure_stragglers",
    "measure_vectorized",
]

CONCURRENCY_LEVEL = "spark.sql.execution.pythonUDF.arrow.concurrency.level"
MESSAGE_ROWS = {"": 10_000, "_64k": 65_536}
"""The number of rows per batch of Spark: its default, and one that suits cheap functions."""


def measure_vectorized(results: Results, quick: bool, spark: SparkSession, server: ServerProcess) -> None:
    """Two longs in, one out, without work: the cost of leaving the process on top of leaving the JVM."""
    rows, repetitions = (200_000, 1) if quick else (5_000_000, 7)
    frame = spark.range(0, rows, 1, TASKS).select(F.col("id").alias("a"), (F.col("id") * 2).alias("b"))
    remote = connect(spark, server.target).function("first_of_two")
    for suffix, batch in MESSAGE_ROWS.items():
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(batch))
        sides = {"local": frame.select(local_identity()("a", "b")), "remote": frame.select(remote("a", "b"))}
        time_ = results.medians(f"vectorized{suffix}", alternating(_timed(sides), repetitions))
        note = f"rows/s of ours over a local Arrow UDF's, {batch} rows at a time"
        results.add(f"vectorized_vs_local_arrow_udf{suffix}", time_["local"] / time_["remote"], note)
        results.add(f"vectorized_rows_per_second{suffix}", rows / time_["remote"], "in Spark")
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def measure_look_ups(results: Results, quick: bool, spark: SparkSession, server: ServerProcess) -> dict[str, float]:
    """Lookups of 10 ms on two tasks, in rows/s: one at a time, gathered, by threads, and by a remote function."""
    rows, repetitions = (2_000, 1) if quick else (20_000, 3)
    remote = connect(spark, server.target)
    look_up = remote.function("look_up", buffer_capacity=1000)
    frame = _numbers(spark, rows)
    # A twentieth of the rows takes as long as all rows take in the other ways.
    few = _numbers(spark, rows // 20)
    sides = {
        "blocking_udf": few.select(F.udf(partial(_blocking, LOOKUP_SECONDS), "bigint", useArrow=False)("x")),
        "pandas_gather_100": frame.select(gathering(100)("x")),
        "pandas_gather_1000": frame.select(gathering(1000)("x")),
        "map_in_pandas_100": frame.mapInPandas(_threads_per_partition(100), "x bigint"),
        "arrow_concurrency_level_100": frame.select(
            F.udf(partial(_blocking, LOOKUP_SECONDS), "bigint", useArrow=True)("x")
        ),
        "remote_ordered": frame.select(look_up("x")),
        "remote_unordered": _unordered(remote, frame, look_up("x")),
    }
    counts = dict.fromkeys(sides, rows) | {"blocking_udf": rows // 20}
    spark.conf.set(CONCURRENCY_LEVEL, "100")  # only Arrow UDFs with a row per call read it
    time_ = results.medians("look_ups", alternating(_timed(sides), repetitions))
    spark.conf.unset(CONCURRENCY_LEVEL)
    rates = {name: counts[name] / time_[name] for name in sides}
    results.add_all(
        {f"look_ups_{name}": rate for name, rate in rates.items()}, f"rows/s, {rows} lookups of 10 ms, {TASKS} tasks"
    )
    results.add("look_ups_vs_pandas_gather_100", rates["remote_ordered"] / rates["pandas_gather_100"], "ours, ordered")
    return rates


def measure_stragglers(results: Results, quick: bool, spark: SparkSession, server: ServerProcess) -> None:
    """One row in a hundred takes fifty times as long, with 100 calls in flight."""
    rows, repetitions = (1_000, 1) if quick else (20_000, 3)
    remote = connect(spark, server.target)
    straggle = remote.function("straggle", buffer_capacity=100)
    frame = _numbers(spark, rows)
    sides = {
        "ordered": remote.with_columns(frame, {"y": straggle("x")}, output_mode="ordered"),
        "unordered": _unordered(remote, frame, straggle("x")),
    }
    time_ = results.medians("stragglers", alternating(_timed(sides), repetitions))
    note = f"rows/s of unordered over ordered, {LOOKUP_SECONDS * 1000:g} ms, stragglers {STRAGGLER_SECONDS * 1000:g} ms"
    results.add("unordered_vs_ordered_1pct_stragglers", time_["ordered"] / time_["unordered"], note)


def _timed(frames: Mapping[str, DataFrame]) -> dict[str, Callable[[], float]]:
    return {name: partial(run_query, frame) for name, frame in frames.items()}


def _unordered(remote: RemoteSession, frame: DataFrame, call: Column) -> DataFrame:
    return remote.with_columns(frame, {"y": call}, output_mode="unordered")


def _numbers(spark: SparkSession, rows: int) -> DataFrame:
    return spark.range(0, rows, 1, TASKS).withColumnRenamed("id", "x")


def local_identity() -> Callable[..., Column]:
    def first(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        for a, _ in batches:
            yield a

    return F.arrow_udf(first, "bigint")  # type: ignore[call-overload]


def _blocking(seconds: float, x: int) -> int:
    time.sleep(seconds)
    return x


def _threads_per_partition(at_once: int) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """The careful manual way: `mapInPandas` with one client per partition, here a pool of threads."""

    def mapped(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        with ThreadPoolExecutor(at_once) as threads:
            for frame in frames:
                yield pd.DataFrame({"x": list(threads.map(partial(_blocking, LOOKUP_SECONDS), frame["x"]))})

    return mapped


def gathering(at_once: int) -> Callable[..., Column]:
    """A manual pandas UDF that gathers this many requests, waits for all of them, and continues."""

    async def one(x: int) -> int:
        await asyncio.sleep(0.01)
        return x

    async def every(values: list[int]) -> list[int]:
        found: list[int] = []
        for first in range(0, len(values), at_once):
            found += await asyncio.gather(*map(one, values[first : first + at_once]))
        return found

    def gathering(x: pd.Series) -> pd.Series:
        return pd.Series(asyncio.run(every(x.tolist())))

    return F.pandas_udf(gathering, "bigint")  # type: ignore[call-overload]
