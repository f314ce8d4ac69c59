"""The suite of planning: the time from the call to the rows of a small query of each kind, against a local UDF."""

import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.spark import TASKS, local_spark
from benchmarks.timing import alternating, medians, seconds
from spark_client import RemoteSession, connect

__all__ = ["run_planning"]

FUNCTIONS = Path(__file__).with_name("planning_functions.py")
ROWS = 100
KEYS = 3
VIEW = "planned_rows"

Queries = Mapping[str, Callable[[], DataFrame]]


def run_planning(results: Results, quick: bool) -> None:
    """Measures a warm session, then cold starts, each in a process of its own."""
    with server_process(FUNCTIONS) as server:
        with local_spark() as spark:
            _measure_warm(results, spark, connect(spark, server.target), 1 if quick else 9)
        for kind in ("scalar",) if quick else ("scalar", "aggregate", "process"):
            cold = {side: _in_new_process(side, kind, server.target) for side in ("local", "remote")}
            results.add(f"cold_seconds_{kind}", cold["remote"], "connect(spark) and the first query of a new session")
            results.add(f"cold_extra_seconds_{kind}", cold["remote"] - cold["local"], "more than with a local UDF")


def _measure_warm(results: Results, spark: SparkSession, remote: RemoteSession, repetitions: int) -> None:
    _make_view(spark)
    local, ours = _local(spark), _remote(spark, remote)
    pairs: dict[str, Callable[[], float]] = {}
    for name in ours:
        pairs[f"local_{name}"] = partial(_all_rows, local[name])
        pairs[f"remote_{name}"] = partial(_all_rows, ours[name])
    # The JVM compiles what planning runs only after tens of queries.
    found = alternating(pairs, repetitions, warm_up=True)
    for name in ours:
        ours_, theirs = found[f"remote_{name}"], found[f"local_{name}"]
        extra = statistics.median(ours_) - statistics.median(theirs)
        results.add(f"extra_seconds_{name}", extra, f"{ROWS} rows in a warm session, more than a local UDF (medians)")
        results.add(f"seconds_{name}", statistics.median(ours_), "from the call to the rows")
    planned = {"remote": ours["aggregate_in_agg"], "local": local["aggregate_in_agg"]}
    times = medians(alternating({side: partial(seconds, plan) for side, plan in planned.items()}, 5 * repetitions))
    ratio = times["remote"] / times["local"]
    results.add("aggregate_seconds_ratio", ratio, "planning of a keyed aggregate over that of a pandas_udf")
    for name, query in ours.items():
        results.add(f"planning_seconds_{name}", statistics.median(seconds(query) for _ in range(repetitions)), "")


def _all_rows(query: Callable[[], DataFrame]) -> float:
    # Not `first`: Spark ends a Python worker whose output is not read to its end, and the next query starts another.
    return seconds(lambda: query().collect())


def _make_view(spark: SparkSession) -> None:
    spark.range(0, ROWS, 1, TASKS).selectExpr("id AS x", f"id % {KEYS} AS k").createOrReplaceTempView(VIEW)
    spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))


def _remote(spark: SparkSession, remote: RemoteSession) -> Queries:
    frame = spark.table(VIEW)
    plus_one = remote.function("plus_one", kind="scalar")
    total = remote.function("total", kind="aggregate")
    return {
        "scalar": lambda: remote.sql(f"SELECT plus_one(x) FROM {VIEW}"),
        "scalar_in_select": lambda: frame.select(plus_one("x")),
        "scalar_with_columns": lambda: remote.with_columns(frame, {"y": plus_one("x")}),
        "aggregate": lambda: remote.sql(f"SELECT k, total(x) FROM {VIEW} GROUP BY k"),
        "aggregate_in_agg": lambda: remote.group_by(frame, "k").agg(total("x")),
        "process": lambda: remote.sql("SELECT * FROM repeated('word', 3)"),
    }


def _local(spark: SparkSession) -> Queries:
    def plus_one(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for x in batches:
            yield pc.add(x, 1)

    def total(x: pd.Series) -> int:
        return int(x.sum())

    class Repeated:
        def eval(self, word: str, times: int) -> Iterator[tuple[str]]:
            for _ in range(times):
                yield (word,)

    scalar = F.arrow_udf(plus_one, "bigint")  # type: ignore[call-overload]
    aggregate = F.pandas_udf(total, "bigint")  # type: ignore[call-overload]
    spark.udf.register("local_plus_one", scalar)
    spark.udf.register("local_total", aggregate)
    spark.udtf.register("local_repeated", F.udtf(Repeated, returnType="word string"))  # type: ignore[arg-type]
    frame = spark.table(VIEW)
    return {
        "scalar": lambda: spark.sql(f"SELECT local_plus_one(x) FROM {VIEW}"),
        "scalar_in_select": lambda: frame.select(scalar("x")),
        "scalar_with_columns": lambda: frame.withColumn("y", scalar("x")),
        "aggregate": lambda: spark.sql(f"SELECT k, local_total(x) FROM {VIEW} GROUP BY k"),
        "aggregate_in_agg": lambda: frame.groupBy("k").agg(aggregate("x")),
        "process": lambda: spark.sql("SELECT * FROM local_repeated('word', 3)"),
    }


def _in_new_process(side: str, kind: str, target: str) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_cold_start, (side, kind, target))


def _cold_start(side: str, kind: str, target: str) -> float:
    """Seconds of the first query of a Spark session that has run another query without Python."""
    with local_spark() as spark:
        _make_view(spark)
        spark.table(VIEW).groupBy("k").count().collect()
        start = time.perf_counter()
        queries = _local(spark) if side == "local" else _remote(spark, connect(spark, target))
        queries[kind]().collect()
        return time.perf_counter() - start
