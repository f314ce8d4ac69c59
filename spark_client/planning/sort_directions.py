"""Telling a sort direction, `F.col("x").desc()`, from a column that has a value."""

import re

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame

__all__ = ["is_direction"]

_DIRECTION = re.compile(r" (ASC|DESC) NULLS (FIRST|LAST)$")


def is_direction(frame: DataFrame, column: Column | str) -> bool:
    """Whether the column can be sorted by and not selected.

    Spark has no public way to ask. Classic analyzes a select of a direction as if it were a column of the
    name "x DESC NULLS LAST", and fails when it runs; Connect refuses it at once.
    """
    if isinstance(column, str):
        return False
    try:
        return _DIRECTION.search(frame.select(column).columns[0]) is not None
    except PySparkException:
        return True
