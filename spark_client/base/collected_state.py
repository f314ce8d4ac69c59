"""Has Spark compare what a stream collects in its state with what a query that continues from a checkpoint expects.

Spark compares the types of the columns of the state. But collect_list and collect_set keep their values there as bytes,
which a query with other types, functions or columns would misread. So a null is beside them whose type describes them:
its field has the description as its name, which Spark's error shows. The type of the field depends on the description,
because Spark ignores names.
"""

import hashlib

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

__all__ = ["described"]


def described(collected: Column, description: str) -> Column:
    """The collected array. The state of a stream then fits only queries whose arrays have the same description."""
    digest = hashlib.sha256(description.lower().encode()).digest()
    types = [T.DecimalType(19 + digest[place] % 20, digest[place + 1] % 20) for place in range(0, 8, 2)]
    mark = T.StructType([T.StructField(str(index), type_) for index, type_ in enumerate(types)])
    null = F.lit(None).cast(T.StructType([T.StructField(description, mark)]))
    # An aggregate that the value does not need would not be computed.
    return F.when(F.max(null).isNull(), collected).otherwise(F.array())
