"""Plans the accumulators of keys of a stream that are never removed: one for each key. See `executor.aggregate.kept`.

Spark's aggregation over the result keeps working in each output mode, with the latest accumulator of each key.
"""

from collections.abc import Iterator

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from spark_client.base.identifiers import hidden
from spark_client.executor.aggregate.bundles import PartialPlan
from spark_client.executor.aggregate.kept import KeptPlan, keep, pack_buckets
from spark_client.executor.aggregate.partial import merging_inputs
from spark_client.executor.packed_batches import unpacked
from spark_client.planning.aggregate.query import AggregateQuery, Remote, Strategy
from spark_client.planning.key_columns import sorts
from spark_client.planning.operators import apply_operator
from spark_client.windows.columns import WATERMARK

__all__ = ["keeps_one", "latest", "with_one_accumulator"]

BUCKETS = 16
"""Buckets of keys, which bounds the tasks that merge. It must not change: stored state depends on it."""
_VERSION = hidden("version")
_BUCKET, _ROWS = hidden("bucket"), hidden("rows")


def keeps_one(query: AggregateQuery, partial: DataFrame) -> bool:
    """Whether accumulators are merged into one for each key: on streams, if no watermark removes the key.

    Keys that Spark compares in another way than by their bytes keep a list.
    """
    if not query.frame.isStreaming or not any(remote.strategy is Strategy.PARTIAL for remote in query.remotes):
        return False
    fields = {field.name: field for field in partial.schema.fields}
    keys = [fields[key] for key in query.group_keys]
    return all(WATERMARK not in key.metadata and sorts(key.dataType) for key in keys)


def latest(remote: Remote) -> Column:
    """The latest accumulator of a key, as a list of one, in place of the list of all of them."""
    accumulator = F.max_by(remote.accumulator, _VERSION)
    return F.filter(F.array(accumulator), lambda each: each.isNotNull())


def with_one_accumulator(query: AggregateQuery, partial: DataFrame) -> DataFrame:
    """The rows of step (a), in which the accumulators of a key are merged with those of earlier micro-batches."""
    rows = partial.select("*", F.lit(None).cast("bigint").alias(_VERSION))
    remotes = [remote for remote in query.remotes if remote.strategy is Strategy.PARTIAL]
    place = {name: index for index, name in enumerate(rows.columns)}
    keys = [place[key] for key in query.group_keys]
    errors = [remote.error for remote in remotes if remote.keeps_errors]
    values = [place[name] for name in (*(remote.accumulator for remote in remotes), *errors)]
    names = tuple(rows.columns[index] for index in (*keys, *values))
    merging = PartialPlan(
        merging_inputs([remote.call for remote in remotes], len(keys)), tuple(range(len(keys))),
        query.shown_key_names, None, None, names,
    )  # fmt: skip
    plan = KeptPlan(tuple(keys), tuple(values), len(remotes), place[_VERSION], merging)
    bucket = F.pmod(F.xxhash64(*query.group_keys), F.lit(BUCKETS)).cast("int") if keys else F.lit(0)
    packed_type = T.StructType([T.StructField(_BUCKET, T.IntegerType()), T.StructField(_ROWS, T.BinaryType())])
    packed = apply_operator(rows.select(bucket.alias(_BUCKET), "*"), pack_buckets, (_BUCKET, _ROWS), packed_type)

    def merge(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        yield from keep(plan, frames, state)

    merged = packed.groupBy(_BUCKET).applyInPandasWithState(
        merge, f"`{_ROWS}` binary", "version bigint, keys binary", "append", GroupStateTimeout.NoTimeout
    )
    return merged.mapInArrow(unpacked, rows.schema)
