"""Groupings by Spark whose result has the keys, as our own plans need them, whatever the session says about it."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_client.base.settings import all_settings, read_once

__all__ = ["grouped", "retains_keys"]

_SETTING = "spark.sql.retainGroupColumns"


def grouped(frame: DataFrame, keys: Sequence[str | Column], values: Sequence[Column]) -> DataFrame:
    """The keys, then the values of each group. The name of a key identifies one column of the frame."""
    kept = not keys or read_once(frame.sparkSession, retains_keys)
    own = [] if kept else [F.col(key) if isinstance(key, str) else key for key in keys]
    return frame.groupBy(*keys).agg(*own, *values)


def retains_keys(spark: SparkSession) -> bool:
    """Whether the result of Spark's own `groupBy(...).agg(...)` has the keys. On Connect it has them always."""
    if read_once(spark, all_settings).get(_SETTING, "").lower() != "false":
        return True
    return len(spark.range(1).groupBy("id").agg(F.count("*")).columns) > 1
