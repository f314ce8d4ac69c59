"""The suite of plain Spark: aggregates and table functions of Spark against `remote.group_by` and `remote.sql`."""

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.aggregate import FUNCTIONS, per_group
from benchmarks.process import FUNCTIONS as PROCESS_FUNCTIONS
from benchmarks.process import events
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.spark import TASKS, local_spark
from benchmarks.timing import alternating, seconds
from spark_client import connect

__all__ = ["run_plain_sql"]

ROWS, KEYS = 20_000, (1, 10, 100, 1000)


def run_plain_sql(results: Results, quick: bool) -> None:
    """Measures planning and running together, by the number of keys."""
    with local_spark() as spark, server_process(FUNCTIONS) as server:
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        remote = connect(spark, server.target)
        average = remote.function("vectorized_average", kind="aggregate")
        for keys in KEYS[:3] if quick else KEYS:
            frame = spark.range(0, ROWS, 1, TASKS).select((F.col("id") % keys).alias("k"), F.rand(1).alias("v")).cache()
            frame.count()
            sides = {
                "column": partial(_collected, lambda rows: rows.groupBy("k").agg(average.column("v")), frame),
                "remote_group_by": partial(
                    _collected, lambda rows: remote.group_by(rows, "k").agg(average("v")), frame
                ),
                "arrow_udf": partial(_collected, lambda rows: per_group(rows, "arrow_udf")["arrow_udf"], frame),
            }
            time_ = results.medians(f"group_by_{keys}_keys", alternating(sides, 1 if quick else 7, warm_up=not quick))
            _add(results, keys, time_)
            frame.unpersist()
        _table_functions(results, spark, quick)


def _table_functions(results: Results, spark: SparkSession, quick: bool) -> None:
    with server_process(PROCESS_FUNCTIONS) as server:
        remote = connect(spark, server.target)
        remote.register("steps")
        call = "SELECT v, step FROM steps(TABLE(plain_rows) PARTITION BY k ORDER BY ts)"
        for keys in KEYS[:3] if quick else KEYS:
            frame = events(spark, ROWS, keys).cache()
            frame.createOrReplaceTempView("plain_rows")
            frame.count()
            sides = {
                "table_function": lambda: seconds(lambda: spark.sql(call).collect()),
                "remote_sql": lambda: seconds(lambda: remote.sql(call).collect()),
            }
            name = f"table_function_{keys}_keys"
            time_ = results.medians(name, alternating(sides, 1 if quick else 7, warm_up=not quick))
            # The ratio that the documentation quotes has no number in its name.
            ratio = "table_function_vs_remote_sql" if keys == 100 else f"{name}_vs_remote_sql"
            what = f"rows/s over those of remote.sql, {ROWS:,} rows, {keys:,} keys, planning included"
            results.add(ratio, time_["remote_sql"] / time_["table_function"], what)
            frame.unpersist()


def _add(results: Results, keys: int, time_: Mapping[str, float]) -> None:
    for other in ("remote_group_by", "arrow_udf"):
        what = f"rows/s over theirs, {ROWS:,} rows, planning included"
        results.add(f"group_by_{keys}_keys_vs_{other}", time_[other] / time_["column"], what)


def _collected(plan: Callable[[DataFrame], DataFrame], frame: DataFrame) -> float:
    return seconds(lambda: plan(frame).collect())
