"""Several scalar calls of one row: a chain of two against one call, and three calls against three local UDFs."""

from collections.abc import Callable
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from benchmarks.functions import LOOKUP_SECONDS
from benchmarks.results import Results
from benchmarks.server import ServerProcess
from benchmarks.spark import TASKS, run_query
from benchmarks.timing import alternating
from spark_client import connect

__all__ = ["measure_several_calls"]

CHAINED_ROWS = 1_000
PAIRS = (("a", "b"), ("b", "a"), ("a", "a"))
"""The arguments of the three calls, so that no two calls are equal."""


def measure_several_calls(results: Results, quick: bool, spark: SparkSession, server: ServerProcess) -> None:
    """Measures both comparisons."""
    _measure_chain(results, spark, server, 1 if quick else 5)
    _measure_three(results, spark, server, 100_000 if quick else 3_000_000, 1 if quick else 5)


def _measure_chain(results: Results, spark: SparkSession, server: ServerProcess, repetitions: int) -> None:
    remote = connect(spark, server.target)
    look_up = remote.function("look_up", kind="scalar")
    # All rows are in one task and in one batch of Spark.
    frame = spark.range(0, CHAINED_ROWS, 1, 1).withColumnRenamed("id", "x")
    sides = {
        "one": remote.with_columns(frame, {"y": look_up("x")}),
        "chain": remote.with_columns(frame, {"y": look_up(look_up("x"))}),
        "select": frame.select(look_up(look_up("x"))),
    }
    found = alternating({name: partial(run_query, side) for name, side in sides.items()}, repetitions)
    time_ = results.medians("chain", found)
    note = f"f(f(x)) over f(x), seconds: {CHAINED_ROWS} rows, {LOOKUP_SECONDS * 1000:g} ms per call, one task"
    results.add("chain_of_two_vs_one", time_["chain"] / time_["one"], f"{note}, with_columns")
    results.add("chain_of_two_in_select_vs_one", time_["select"] / time_["one"], f"{note}, Spark's own select")


def _measure_three(results: Results, spark: SparkSession, server: ServerProcess, rows: int, repetitions: int) -> None:
    remote = connect(spark, server.target)
    ours, local = remote.function("first_of_two", kind="scalar"), _local()
    frame = spark.range(0, rows, 1, TASKS).select(F.col("id").alias("a"), (F.col("id") * 2).alias("b"))
    sides = {
        "local": frame.select(*(local(*pair).alias(str(i)) for i, pair in enumerate(PAIRS))),
        "remote": remote.select(frame, *(ours(*pair).alias(str(i)) for i, pair in enumerate(PAIRS))),
        "in_select": frame.select(*(ours(*pair).alias(str(i)) for i, pair in enumerate(PAIRS))),
    }
    found = alternating({name: partial(run_query, side) for name, side in sides.items()}, repetitions)
    time_ = results.medians("three_calls", found)
    note = f"over three Arrow UDFs, which Spark fuses, seconds: {rows:,} rows of two longs"
    results.add("three_calls_vs_pyspark_three_udfs", time_["remote"] / time_["local"], f"{note}, remote.select")
    results.add(
        "three_calls_in_select_vs_pyspark_three_udfs", time_["in_select"] / time_["local"], "Spark's own select"
    )


def _local() -> Callable[..., Column]:
    def first(a: pa.Array, b: pa.Array) -> pa.Array:
        return a

    return F.arrow_udf(first, "bigint")  # type: ignore[call-overload]
