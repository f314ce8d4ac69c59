"""A table of ten rows, and functions by their names in SQL."""

import contextlib
from collections.abc import Iterator

from pyspark.sql import SparkSession

from spark_client import RemoteSession, connect
from tests.conftest import serving
from udf_server.declaring.functions import Function

__all__ = ["ten_rows"]


@contextlib.contextmanager
def ten_rows(spark: SparkSession, *functions: Function) -> Iterator[RemoteSession]:
    """Six of the ten rows have v > 0."""
    with serving(*functions) as server:
        spark.range(10).selectExpr("id AS k", "id % 3 AS v", "struct(id AS a) AS s").createOrReplaceTempView("ten")
        remote = connect(spark, server.target)
        remote.register(*(function.spec.name for function in functions))
        yield remote
        spark.catalog.dropTempView("ten")
