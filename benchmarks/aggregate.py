"""The suite of aggregate functions: one average, implemented here in three ways, against the usual PySpark ways."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.memory import MEGABYTE, peak_memory
from benchmarks.results import Results
from benchmarks.server import ServerProcess, server_process
from benchmarks.spark import TASKS, local_spark, run_query
from benchmarks.timing import alternating, seconds
from spark_client import RemoteSession, connect

__all__ = ["FUNCTIONS", "per_group", "run_aggregate"]

FUNCTIONS = Path(__file__).with_name("aggregate_functions.py")
OURS = ("vectorized", "bundled", "classic")
SHAPES = {"100k_keys": (2_000_000, 100_000), "100_keys": (2_000_000, 100), "20m_rows_1m_keys": (20_000_000, 1_000_000)}
"""Rows and keys."""
LOCAL = ("pandas_udf", "arrow_udf", "apply_in_arrow")
"""The ways of Python code that Spark calls for each group."""


def run_aggregate(results: Results, quick: bool) -> None:
    """Measures every shape, then one key with very many rows."""
    with local_spark() as spark, server_process(FUNCTIONS) as server:
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        remote = connect(spark, server.target)
        for shape, (rows, keys) in SHAPES.items():
            size = (rows // 1000, keys // 1000 or 1) if quick else (rows, keys)
            _measure_shape(results, spark, remote, shape, size, quick)
        _measure_few_rows(results, spark, remote, quick)
        _measure_unique_keys(results, spark, remote, quick)
        _measure_hot_key(results, spark, server, remote, quick)


def _measure_shape(
    results: Results, spark: SparkSession, remote: RemoteSession, shape: str, size: tuple[int, int], quick: bool
) -> None:
    rows, keys = size
    large = shape == "20m_rows_1m_keys"
    frame = spark.range(0, rows, 1, TASKS).select((F.col("id") % keys).alias("k"), F.rand(1).alias("v"))
    frame = frame.cache()
    frame.count()
    ours = OURS[:1] if large else OURS
    sides = {name: remote.group_by(frame, "k").agg(remote.function(f"{name}_average")("v")) for name in ours}
    sides |= _native(frame) | per_group(frame, *(["pandas_udf"] if large else LOCAL))
    # This takes minutes, so it runs once; Spark's Python workers are warm by then.
    once = {"pandas_udf": sides.pop("pandas_udf")} if large else {}
    repetitions = 1 if quick else 9 if shape == "100_keys" else 3
    found = alternating({name: partial(run_query, side) for name, side in sides.items()}, repetitions)
    time_ = results.medians(shape, found) | {name: run_query(side) for name, side in once.items()}
    for name in ours:
        for other in sorted(time_.keys() - set(ours)):
            results.add(f"{name}_{shape}_vs_{other}", time_[other] / time_[name], f"rows/s over theirs, {rows:,} rows")
        results.add(f"{name}_{shape}_rows_per_second", rows / time_[name], "")
    frame.unpersist()


def _measure_few_rows(results: Results, spark: SparkSession, remote: RemoteSession, quick: bool) -> None:
    """Measures planning and running together, which for few rows take similar times."""
    rows, keys = (2_000, 10) if quick else (20_000, 100)
    frame = spark.range(0, rows, 1, TASKS).select((F.col("id") % keys).alias("k"), F.rand(1).alias("v")).cache()
    frame.count()
    average = remote.function("vectorized_average")
    sides: dict[str, Callable[[], DataFrame]] = {
        "vectorized": lambda: remote.group_by(frame, "k").agg(average("v")),
        "arrow_udf": lambda: per_group(frame, "arrow_udf")["arrow_udf"],
        "pandas_udf": lambda: per_group(frame, "pandas_udf")["pandas_udf"],
    }

    def run(plan: Callable[[], DataFrame]) -> float:
        return seconds(lambda: plan().collect())

    found = alternating({name: partial(run, plan) for name, plan in sides.items()}, 1 if quick else 15)
    time_ = results.medians("20k_rows_100_keys", found)
    for other in ("arrow_udf", "pandas_udf"):
        ratio = time_[other] / time_["vectorized"]
        results.add(f"vectorized_20k_rows_100_keys_vs_{other}", ratio, "rows/s over theirs, planning included")
    frame.unpersist()


def _measure_unique_keys(results: Results, spark: SparkSession, remote: RemoteSession, quick: bool) -> None:
    """Measures rows that each have a key of their own, under the plan of `auto` and under `sorted`."""
    rows = 6_000 if quick else 6_000_000
    # A row's place tells nothing of its key.
    frame = spark.range(0, rows, 1, TASKS).select(F.xxhash64("id").alias("k"), F.rand(1).alias("v")).cache()
    frame.count()
    average = remote.function("vectorized_average", kind="aggregate")
    sides = {
        "vectorized": remote.group_by(frame, "k").agg(average("v")),
        "sorted": remote.group_by(frame, "k").agg(average.with_options(aggregate_plan="sorted")("v")),
        "builtin": _native(frame)["builtin"],
    }
    found = alternating({name: partial(run_query, side) for name, side in sides.items()}, 1 if quick else 5)
    time_ = results.medians("unique_keys", found)
    for name in ("vectorized", "sorted"):
        ratio = time_["builtin"] / time_[name]
        results.add(f"{name}_unique_keys_vs_builtin", ratio, f"rows/s over theirs, {rows:,} rows, each its own key")
    frame.unpersist()


def _native(frame: DataFrame) -> dict[str, DataFrame]:
    """The same average by Spark itself, and `map_in_arrow_identity`: the round trip to Python without any work."""

    def identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return {
        "builtin": frame.groupBy("k").agg(F.avg("v")),
        "map_in_arrow_identity": frame.mapInArrow(identity, frame.schema),
    }


def per_group(frame: DataFrame, *names: str) -> dict[str, DataFrame]:
    """The same average by Python code that Spark calls for each group, in the ways of these names."""

    def mean_pandas(v: pd.Series) -> float:
        return float(v.mean())

    def mean_arrow(v: pa.Array) -> float:
        return float(pc.mean(v).as_py())

    def mean_group(table: pa.Table) -> pa.Table:
        return pa.table({"k": table["k"].slice(0, 1), "v": pa.array([pc.mean(table["v"]).as_py()])})

    grouped = frame.groupBy("k")
    ways = {
        "pandas_udf": lambda: grouped.agg(F.pandas_udf(mean_pandas, "double")("v")),  # type: ignore[call-overload]
        "arrow_udf": lambda: grouped.agg(F.arrow_udf(mean_arrow, "double")("v")),  # type: ignore[call-overload]
        "apply_in_arrow": lambda: grouped.applyInArrow(mean_group, frame.schema),
    }
    return {name: ways[name]() for name in names}


def _measure_hot_key(
    results: Results, spark: SparkSession, server: ServerProcess, remote: RemoteSession, quick: bool
) -> None:
    """Measures one key, whose rows must not accumulate in any process."""
    few, many = (20_000, 100_000) if quick else (5_000_000, 50_000_000)
    average = remote.function("vectorized_average")

    def query(rows: int) -> DataFrame:
        frame = spark.range(0, rows, 1, TASKS).select(F.lit(1).alias("k"), (F.col("id") * 1.0).alias("v"))
        return remote.group_by(frame, "k").agg(average("v"))

    before = max(peak_memory(server, query(few)) for _ in range(2))
    after = peak_memory(server, query(many))
    results.add("hot_key_5m_rows_rss", before / MEGABYTE, "MB, Python workers and server at their peak, one key")
    results.add("hot_key_50m_rows_rss", after / MEGABYTE, "MB, the same, ten times the rows")
    results.add("hot_key_50m_rows_rss_growth", (after - before) / MEGABYTE, "MB that 50M rows take more than 5M")
