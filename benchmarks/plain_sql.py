"""The suite of plain Spark: a remote aggregate as Spark's own, against `remote.group_by` and a local `arrow_udf`."""

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.aggregate import FUNCTIONS, per_group
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
                "arrow_udf": partial(_collected, lambda rows: per_group(rows)["arrow_udf"], frame),
            }
            time_ = results.medians(f"group_by_{keys}_keys", alternating(sides, 1 if quick else 7, warm_up=not quick))
            _add(results, keys, time_)
            frame.unpersist()


def _add(results: Results, keys: int, time_: Mapping[str, float]) -> None:
    for other in ("remote_group_by", "arrow_udf"):
        what = f"rows/s over theirs, {ROWS:,} rows, planning included"
        results.add(f"group_by_{keys}_keys_vs_{other}", time_[other] / time_["column"], what)


def _collected(plan: Callable[[DataFrame], DataFrame], frame: DataFrame) -> float:
    return seconds(lambda: plan(frame).collect())
