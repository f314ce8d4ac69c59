"""Distinguishes a sort direction, `F.col("x").desc()`, from a column that has a value."""

import re

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

__all__ = ["is_direction"]

_DIRECTION = re.compile(r" (ASC|DESC) NULLS (FIRST|LAST)$")


def is_direction(frame: DataFrame, column: Column | str) -> bool:
    """Whether the column can be used for sorting only, and not be selected.

    Spark has no public way to ask. If a direction is selected, classic Spark analyzes it as a column named
    "x DESC NULLS LAST" and fails at run time; Spark Connect rejects it at once.
    """
    if isinstance(column, str):
        return False
    try:
        return _DIRECTION.search(frame.select(column).columns[0]) is not None
    except PySparkException:
        return True
