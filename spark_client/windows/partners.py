"""Semi join of two streams: rows that have a partner, once each, by an inner join.

Spark's own keeps no row of the right side whose window ends with the micro-batch it comes in, and since 4.3 it looks
at the left side after that (SPARK-55973): windows that an aggregate gives out at their end would find no partner.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_client.base.identifiers import column_named
from spark_client.windows.columns import hidden

__all__ = ["each_once", "told_apart", "without_repeats"]

_ROW = hidden("row")


def without_repeats(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """The columns of that name, equal rows once; among them the time with the watermark, which frees the state.

    A row on the left has one partner at most if these are compared for equality and nothing else is.
    """
    return frame.select(*map(column_named, names)).dropDuplicates(list(names))


def told_apart(frame: DataFrame) -> DataFrame:
    """The left frame with a column that `each_once` knows its rows by, where a row may have several partners."""
    return frame.select("*", F.expr("uuid()").alias(_ROW))


def each_once(joined: DataFrame, time: str) -> DataFrame:
    """The rows of `told_apart`, of each but one, without its column. `time` is the column with the watermark."""
    return joined.dropDuplicates([_ROW, time]).drop(_ROW)
