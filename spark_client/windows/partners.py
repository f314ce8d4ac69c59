"""A semi join of two streams: each row that has a partner is returned once, by an inner join.

Spark's semi join does not keep a row of the right side if its window ends in the same micro-batch, and since 4.3 it
joins the left side after that (SPARK-55973). So windows that an aggregate emits at their end would find no partner.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_client.base.identifiers import column_named
from spark_client.windows.columns import hidden

__all__ = ["each_once", "with_row_ids", "without_repeats"]

_ROW = hidden("row")


def without_repeats(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    """These columns without repeated rows. They include the time with the watermark, so that the state is dropped.

    If only these columns are compared, and for equality, a row on the left has at most one partner.
    """
    return frame.select(*map(column_named, names)).dropDuplicates(list(names))


def with_row_ids(frame: DataFrame) -> DataFrame:
    """The left frame with a column by which `each_once` identifies its rows if they may have several partners."""
    return frame.select("*", F.expr("uuid()").alias(_ROW))


def each_once(joined: DataFrame, time: str) -> DataFrame:
    """Each row of `with_row_ids` once, without the added column. `time` is the column with the watermark."""
    return joined.dropDuplicates([_ROW, time]).drop(_ROW)
