"""The suite of `read_parquet` and `write_parquet`: CPU time per row of queries over Parquet files, in all processes.

Spark reads the files for its own UDFs, and workers read them for remote calls. CPU time is compared and not the clock,
because other programs may use the machine.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.cpu import cpu_seconds, query_cpu_seconds
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.spark import TASKS, local_spark, run_query
from benchmarks.timing import alternating, seconds
from spark_client import RemoteSession, connect

__all__ = ["run_parquet"]

FUNCTIONS = Path(__file__).with_name("parquet_functions.py")
COLUMNAR_INPUT = "spark.sql.execution.arrow.pythonUDF.columnarInput.enabled"
KEYS = 100
BESIDE = ["c", "d", "e", "f"]


def run_parquet(results: Results, quick: bool) -> None:
    """Measures scalar calls over columns of numbers and of text, an average by key, and writing."""
    rows, repetitions = (100_000, 1) if quick else (10_000_000, 5)
    with (
        local_spark() as spark,
        server_process(FUNCTIONS) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        _write(spark, rows, folder)
        remote = connect(spark, server.target)
        _measure_scalar(results, spark, remote, folder, rows, repetitions)
        _measure_columnar_input(results, spark, remote, folder, rows, repetitions)
        _measure_average(results, spark, remote, folder, rows, repetitions)
        _measure_writing(results, spark, remote, folder, rows, repetitions)


def _write(spark: SparkSession, rows: int, folder: str) -> None:
    """Writes one file per task, so that both sides divide the work in the same way."""
    text = F.substring(F.md5(F.col("id").cast("string")), 1, 20)
    spark.range(0, rows, 1, TASKS).select(
        F.col("id").alias("a"), (F.col("id") * 2).alias("b"), text.alias("s"), (F.col("id") % KEYS).alias("k"),
        F.rand(1).alias("v"), (F.col("id") * 3).alias("c"), F.rand(2).alias("d"), (F.col("id") % 1000).alias("e"),
        F.rand(3).alias("f"),
    ).write.parquet(folder, mode="overwrite")  # fmt: skip


def _measure_scalar(
    results: Results, spark: SparkSession, remote: RemoteSession, folder: str, rows: int, repetitions: int
) -> None:
    theirs, ours = spark.read.parquet(folder), remote.read_parquet(folder)
    first, same = remote.function("first_of_two"), remote.function("same_text")
    queries: dict[str, dict[str, DataFrame]] = {
        "two_longs": {
            "local_arrow_udf": theirs.select(_first("bigint")("a", "b")),
            "ours_by_spark": theirs.select(first("a", "b")),
            "ours": remote.select(ours, first("a", "b").alias("y")),
        },
        "20_byte_strings": {
            "local_arrow_udf": theirs.select(_first("string")("s", "s")),
            "ours_by_spark": theirs.select(same("s")),
            "ours": remote.select(ours, same("s").alias("y")),
        },
        "four_columns_beside": {
            "local_arrow_udf": theirs.select(*BESIDE, _first("bigint")("a", "b")),
            "ours_by_spark": theirs.select(*BESIDE, first("a", "b")),
            "ours": remote.select(ours, *BESIDE, first("a", "b").alias("y")),
        },
    }
    for name, sides in queries.items():
        cpu = results.medians(name, alternating(_measured(query_cpu_seconds, sides), repetitions))
        results.add_all(
            {f"{side}_{name}_cpu_ns": seconds * 1e9 / rows for side, seconds in cpu.items()},
            "CPU ns per row, all processes",
        )
        note = "CPU of a local Arrow UDF over ours"
        results.add(f"local_arrow_udf_cpu_over_ours_{name}", cpu["local_arrow_udf"] / cpu["ours"], note)


def _measure_columnar_input(
    results: Results, spark: SparkSession, remote: RemoteSession, folder: str, rows: int, repetitions: int
) -> None:
    """Measures a call for which Spark reads the files, with and without a setting that Spark has on by default."""
    frame = spark.read.parquet(folder).select(remote.function("first_of_two")("a", "b"))

    def spent(enabled: str) -> float:
        spark.conf.set(COLUMNAR_INPUT, enabled)
        try:
            # A frame keeps the plan of its first run, which has the setting of that time.
            return query_cpu_seconds(frame.select("*"))
        finally:
            spark.conf.unset(COLUMNAR_INPUT)

    sides = {"on": partial(spent, "true"), "off": partial(spent, "false")}
    cpu = results.medians("columnar_input", alternating(sides, repetitions))
    results.add_all(
        {f"columnar_input_{side}_cpu_ns": seconds * 1e9 / rows for side, seconds in cpu.items()},
        "CPU ns per row, all processes, Spark reads the files",
    )
    results.add("columnar_input_on_over_off", cpu["on"] / cpu["off"], f"CPU with {COLUMNAR_INPUT} over without")


def _measure_average(
    results: Results, spark: SparkSession, remote: RemoteSession, folder: str, rows: int, repetitions: int
) -> None:
    theirs, ours = spark.read.parquet(folder).groupBy("k"), remote.read_parquet(folder)
    sides = {
        "builtin": theirs.agg(F.avg("v")),
        "pandas_udf": theirs.agg(_mean()("v")),
        "ours": remote.group_by(ours, "k").agg(remote.function("vectorized_average")("v")),
    }
    cpu = results.medians("average_100_keys_cpu", alternating(_measured(query_cpu_seconds, sides), repetitions))
    time = results.medians("average_100_keys", alternating(_measured(run_query, sides), repetitions))
    results.add_all(
        {f"{side}_average_100_keys_cpu_ns": seconds * 1e9 / rows for side, seconds in cpu.items()},
        "CPU ns per row, all processes",
    )
    results.add("average_100_keys_vs_builtin_cpu", cpu["builtin"] / cpu["ours"], "CPU of Spark's avg over ours")
    results.add("average_100_keys_vs_pandas_udf", time["pandas_udf"] / time["ours"], "rows/s over a pandas_udf's")
    results.add("average_100_keys_vs_pandas_udf_cpu", cpu["pandas_udf"] / cpu["ours"], "CPU of a pandas_udf over ours")


def _measure_writing(
    results: Results, spark: SparkSession, remote: RemoteSession, folder: str, rows: int, repetitions: int
) -> None:
    """Measures four columns and a call, from Parquet files to Parquet files."""
    theirs, ours = spark.read.parquet(folder), remote.read_parquet(folder)
    call = remote.select(ours, *BESIDE, remote.function("first_of_two")("a", "b").alias("y"))
    local = theirs.select(*BESIDE, _first("bigint")("a", "b").alias("y"))
    with tempfile.TemporaryDirectory() as written:
        works: dict[str, Callable[[], object]] = {
            "local_arrow_udf": lambda: local.write.parquet(f"{written}/local", mode="overwrite"),
            "ours_by_spark": lambda: call.write.parquet(f"{written}/spark", mode="overwrite"),
            "ours": lambda: remote.write_parquet(call, f"{written}/ours", mode="overwrite"),
        }
        cpu_sides = {name: partial(cpu_seconds, work) for name, work in works.items()}
        time_sides = {name: partial(seconds, work) for name, work in works.items()}
        cpu = results.medians("write_cpu", alternating(cpu_sides, repetitions))
        time = results.medians("write", alternating(time_sides, repetitions))
    results.add_all(
        {f"{side}_write_cpu_ns": spent * 1e9 / rows for side, spent in cpu.items()}, "CPU ns per row, all processes"
    )
    note = "of a local Arrow UDF whose rows Spark reads and writes, over ours"
    results.add("local_arrow_udf_cpu_over_ours_write", cpu["local_arrow_udf"] / cpu["ours"], f"CPU {note}")
    results.add("local_arrow_udf_time_over_ours_write", time["local_arrow_udf"] / time["ours"], f"time {note}")


def _measured(measure: Callable[[DataFrame], float], frames: Mapping[str, DataFrame]) -> dict[str, Callable[[], float]]:
    return {name: partial(measure, frame) for name, frame in frames.items()}


def _first(type_: str) -> Callable[..., Column]:
    """A local Arrow UDF that returns its first argument."""

    def first(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        for a, _ in batches:
            yield a

    return F.arrow_udf(first, type_)  # type: ignore[call-overload]


def _mean() -> Callable[..., Column]:
    def mean(v: pd.Series) -> float:
        return float(v.mean())

    return F.pandas_udf(mean, "double")  # type: ignore[call-overload]
