"""The suite of growth: the cost of a row as rows, keys, columns, tasks and servers increase, and of the first row."""

import contextlib
import time
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.memory import MEGABYTE, peak_memory
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.spark import local_spark, run_query
from benchmarks.timing import alternating, medians
from spark_client import connect

__all__ = ["run_growth"]

FUNCTIONS = Path(__file__).with_name("functions.py")
AVERAGES = Path(__file__).with_name("aggregate_functions.py")
MILLION = 1_000_000
ROWS = (1, 10, 100)
"""Millions."""
KEYS = (1_000, 100_000, 1_000_000, 10_000_000)
COLUMNS = (2, 20, 200)
BATCHES = (1_000, 10_000, 65_536)
SERVERS, TASKS = (1, 2, 4), (1, 2, 4, 8)
ARROW_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"


def run_growth(results: Results, quick: bool) -> None:
    """Measures wall-clock nanoseconds per row, which stay constant if nothing accumulates."""
    million = 2_000 if quick else MILLION
    repetitions = 1 if quick else 3
    with local_spark(max(TASKS)) as spark:
        _measure_first_row(results, spark)
        with server_process() as server, server_process(AVERAGES) as averages:
            vectorized = connect(spark, server.target).function("first_of_two")
            by_row = connect(spark, server.target).function("async_identity")

            def numbers(rows: int, tasks: int = 2) -> DataFrame:
                return spark.range(0, rows, 1, tasks).select(F.col("id").alias("a"), (F.col("id") * 2).alias("b"))

            for millions in ROWS:
                rows = millions * million
                for name, frame in {
                    "vectorized": numbers(rows).select(vectorized("a", "b")), "row": numbers(rows).select(by_row("a")),
                }.items():  # fmt: skip
                    _cost(results, f"{name}_{millions}m_rows", frame, rows, repetitions if millions < 100 else 1)
                    results.add(
                        f"{name}_{millions}m_rows_rss", peak_memory(server, frame) / MEGABYTE, "MB, server and workers"
                    )
            for count in COLUMNS:
                wide = numbers(million).select("*", *(F.col("a").alias(f"c{index}") for index in range(2, count)))
                frame = connect(spark, server.target).with_columns(wide, {"y": vectorized("a", "b")})
                _cost(results, f"whole_rows_{count}_columns", frame, million, repetitions)
            for size in BATCHES:
                spark.conf.set(ARROW_BATCH, str(size))
                frame = numbers(5 * million).select(vectorized("a", "b"))
                _cost(results, f"vectorized_{size}_rows_per_batch", frame, 5 * million, repetitions)
            spark.conf.unset(ARROW_BATCH)
            average = connect(spark, averages.target).function("vectorized_average")
            for keys in KEYS:
                frame = numbers(10 * million).select(
                    (F.col("a") % keys).alias("k"), F.col("b").cast("double").alias("v")
                )
                grouped = connect(spark, averages.target).group_by(frame, "k").agg(average("v"))
                _cost(results, f"average_{keys}_keys", grouped, 10 * million, 1)
            for tasks in TASKS:
                frame = numbers(5 * million, tasks).select(by_row("a"))
                _cost(results, f"row_{tasks}_tasks", frame, 5 * million, repetitions)
        _measure_servers(results, spark, million, repetitions)


def _cost(results: Results, name: str, frame: DataFrame, rows: int, repetitions: int) -> None:
    seconds = medians(alternating({name: partial(run_query, frame)}, repetitions))[name]
    results.add(f"{name}_ns_per_row", seconds / rows * 1e9, f"{rows:,} rows")


def _measure_first_row(results: Results, spark: SparkSession) -> None:
    """Measures the first row when Spark has started but the embedded server has not."""
    began = time.perf_counter()
    remote = connect(spark, plugins=[str(FUNCTIONS)])
    spark.range(1).select(remote.function("async_identity")("id")).collect()
    results.add("first_row_embedded_seconds", time.perf_counter() - began, "from connect to the first row, cold")
    began = time.perf_counter()
    spark.range(1).select(remote.function("async_identity")("id")).collect()
    results.add("first_row_warm_seconds", time.perf_counter() - began, "the same query again")


def _measure_servers(results: Results, spark: SparkSession, million: int, repetitions: int) -> None:
    """Shows that more servers cost nothing; they share the two cores with Spark, so they cannot be faster either."""
    for count in SERVERS:
        with contextlib.ExitStack() as stack:
            targets = [stack.enter_context(server_process()).target for _ in range(count)]
            remote = connect(spark, ",".join(targets))
            frame = spark.range(0, 5 * million, 1, 4).select(remote.function("async_identity")("id"))
            _cost(results, f"row_{count}_servers", frame, 5 * million, repetitions)
