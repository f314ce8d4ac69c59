"""What our plans add to Spark's own groupings, such as a description of what a stream keeps for them.

Spark compares the types of the columns of a stream's state with those of the query that continues from a checkpoint,
and nothing else. But collect_list and collect_set keep their values there as bytes, which a query with other types,
functions or columns would misread; columns of one type may be swapped; and windows depend on the time zone. So a null
is beside them whose type describes them: its field has the description as its name, which Spark's error shows. The type
of the field depends on the description, because Spark ignores names.
"""

import hashlib
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from spark_client.base.settings import all_settings, read_once

__all__ = ["described", "described_rows", "grouped", "retains_keys"]

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
