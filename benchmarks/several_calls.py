"""Several scalar calls of one row: two in a chain, three against three local UDFs, and forty in `select` and in SQL."""

from collections.abc import Callable
from functools import partial
from itertools import islice, product

import pyarrow as pa
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from benchmarks.functions import LOOKUP_SECONDS
from benchmarks.results import Results
from benchmarks.server import ServerProcess
from benchmarks.spark import TASKS, run_query
from benchmarks.timing import alternating, seconds
from spark_client import connect

__all__ = ["measure_several_calls"]

CHAINED_ROWS = 1_000
PAIRS = (("a", "b"), ("b", "a"), ("a", "a"))
"""The arguments of the three calls, so that no two calls are equal."""
MANY = list(islice(product([f"x{number}" for number in range(7)], repeat=2), 40))
"""The arguments of the forty calls."""


def measure_several_calls(results: Results, quick: bool, spark: SparkSession, server: ServerProcess) -> None:
    """Measures the three comparisons."""
    _measure_chain(results, spark, server, 1 if quick else 5)
    _measure_three(results, spark, server, 100_000 if quick else 3_000_000, 1 if quick else 5)
    _measure_forty(results, spark, server, 20_000 if quick else 200_000, 1 if quick else 5)


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


def _measure_forty(results: Results, spark: SparkSession, server: ServerProcess, rows: int, repetitions: int) -> None:
    remote = connect(spark, server.target)
    ours = remote.function("first_of_two", kind="scalar")
    frame = spark.range(0, rows, 1, TASKS).select(*((F.col("id") + i).alias(f"x{i}") for i in range(7)))
    text = ", ".join(f"first_of_two({a}, {b}) AS y{i}" for i, (a, b) in enumerate(MANY))

    def select() -> None:
        run_query(remote.select(frame, *(ours(*pair).alias(f"y{i}") for i, pair in enumerate(MANY))))

    def sql() -> None:
        run_query(remote.sql(f"SELECT {text} FROM {{frame}}", frame=frame))

    sides = {"select": partial(seconds, select), "sql": partial(seconds, sql)}
    time_ = results.medians("forty_calls", alternating(sides, repetitions))
    note = f"remote.select over remote.sql, seconds with planning: {rows:,} rows, 40 calls"
    results.add("forty_calls_select_vs_sql", time_["select"] / time_["sql"], note)


def _local() -> Callable[..., Column]:
    def first(a: pa.Array, b: pa.Array) -> pa.Array:
        return a

    return F.arrow_udf(first, "bigint")  # type: ignore[call-overload]
