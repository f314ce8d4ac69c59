"""A table of sales, and functions for queries that tests of SQL share."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

import udf_server as udf
from spark_client import RemoteSession

__all__ = ["Longest", "countries", "create_sales", "found", "words"]


@udf.scalar(rows=True, deterministic=False, returns="word string, at int")
def words(text: str, least: int = 0) -> Iterator[dict[str, Any]]:
    for at, word in enumerate((text or "none").split()):
        if len(word) >= least:
            yield {"word": word, "at": at}


@udf.scalar(rows=True, returns="code string")
def countries(only: str = "") -> list[dict[str, Any]]:
    return [{"code": code} for code in ("no", "fr") if only in ("", code)]


class Longest(udf.AggregateFunction):
    """The longest text."""

    def create_accumulator(self) -> str:
        return ""

    def accumulate(self, accumulator: str, text: str) -> str:
        return max(accumulator, text, key=len)

    def get_value(self, accumulator: str) -> str:
        return accumulator


def create_sales(spark: SparkSession) -> None:
    """Create the view `sales` of five rows."""
    spark.sql(
        "SELECT * FROM VALUES (1, 'pears', 1), (2, 'nut', 2), (3, NULL, NULL), (4, 'figs', 7), (4, 'figs', 3)"
        " AS t(n, item, customer)"
    ).createOrReplaceTempView("sales")


def found(session: RemoteSession, text: str, *args: Any, **fields: Any) -> list[tuple[Any, ...]]:
    """The rows of a query, in an order that does not depend on the plan."""
    return sorted((tuple(row) for row in session.sql(text, *args, **fields).collect()), key=repr)
