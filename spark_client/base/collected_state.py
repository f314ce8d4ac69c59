"""Has Spark compare what a stream keeps in its state with what a query that continues from a checkpoint expects.

Spark compares the types of the columns of the state, and nothing else. But collect_list and collect_set keep their
values there as bytes, which a query with other types, functions or columns would misread; columns of one type may be
swapped; and windows depend on the time zone. So a null is beside them whose type describes them: its field has the
description as its name, which Spark's error shows. The type of the field depends on the description, because Spark
ignores names.
"""

import hashlib

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

__all__ = ["described", "described_rows"]


def described(aggregated: Column, description: str) -> Column:
    """The aggregated value. The state of a stream then fits only queries whose values have the same description."""
    # An aggregate that the value does not need would not be computed.
    return F.when(F.max(_null(description)).isNull(), aggregated)


def described_rows(description: str) -> Column:
    """A null for rows that a join keeps, in each of its tables. Its condition must read both, or Spark removes it."""
    # Spark does not simplify what is nondeterministic; this is always null.
    return F.when(F.randn() > 1e9, _null(description))


def _null(description: str) -> Column:
    digest = hashlib.sha256(description.lower().encode()).digest()
    types = [T.DecimalType(19 + digest[place] % 20, digest[place + 1] % 20) for place in range(0, 8, 2)]
    mark = T.StructType([T.StructField(str(index), type_) for index, type_ in enumerate(types)])
    return F.lit(None).cast(T.StructType([T.StructField(description, mark)]))
