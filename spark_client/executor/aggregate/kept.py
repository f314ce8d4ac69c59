"""Keeps one accumulator for each key of a stream: those of a micro-batch are merged into the one that is stored.

Spark alone would keep the accumulators of all micro-batches, because only the function can merge them. Keys are stored
in buckets, each of which is one value of Spark's state: an Arrow table of keys and accumulators. Spark's aggregation
then takes the latest accumulator of each key.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.state import GroupState

from spark_client.executor.aggregate.bundles import PartialPlan
from spark_client.executor.aggregate.partial import merged_accumulators
from spark_client.executor.aggregate.segment_columns import packed_groups
from spark_client.executor.engine.pieces import Integers, at_rows
from spark_client.executor.packed_batches import read, written
from spark_client.executor.segments.keys import key_codes
from spark_client.executor.stream.runtime import RUNTIME

__all__ = ["KeptPlan", "keep", "pack_buckets"]


@dataclass(frozen=True)
class KeptPlan:
    """Positions of columns in the rows: `keys`, and `values`, which are the accumulators, then their errors.

    `merging` is the plan over a table of these columns that merges the accumulators of each key. `version` is the
    position of the column that gets the number of the micro-batch in the rows that have accumulators.
    """

    keys: tuple[int, ...]
    values: tuple[int, ...]
    accumulators: int
    version: int
    merging: PartialPlan


def pack_buckets(names: tuple[str, str], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of each bucket as one packed batch. The first column of the input is the bucket."""
    return packed_groups(names, (0,), batches)


def keep(plan: KeptPlan, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The rows of a bucket, in which only one row of each key has accumulators: the merged ones, and their version."""
    column = ""
    batches = []
    for frame in frames:
        column = str(frame.columns[-1])
        batches += [batch for packed in frame[column] for batch in read(bytes(packed))]
    rows = pa.Table.from_batches(batches)
    version, saved = state.get if state.exists else (0, None)
    stored = None if saved is None else pa.Table.from_batches(read(bytes(saved)))
    result, left = _kept(plan, rows, stored, version + 1)
    state.update((version + 1, written(left.to_batches()) if left.num_rows else None))
    yield pd.DataFrame({column: [written(result.to_batches())]})


def _kept(plan: KeptPlan, rows: pa.Table, stored: pa.Table | None, version: int) -> tuple[pa.Table, pa.Table]:
    """The rows with merged accumulators, and what is stored for the next micro-batch."""
    keys = len(plan.keys)
    own = rows.select([*plan.keys, *plan.values]).rename_columns(list(plan.merging.names))
    filled = np.logical_or.reduce([own.column(place).is_valid().to_numpy() for place in range(keys, own.num_columns)])
    places = np.flatnonzero(filled)
    new = own.take(pa.array(places))
    count = 0 if stored is None else stored.num_rows
    both = new if stored is None else pa.concat_tables([stored.cast(new.schema), new])
    codes = _codes(both, keys)
    touched = np.isin(codes[:count], codes[count:])
    chosen = np.concatenate((np.flatnonzero(touched), np.arange(count, len(codes))))
    merged = both.take(pa.array(chosen))
    if len(np.unique(codes[chosen])) < len(chosen):
        merged = merged_accumulators(plan.merging, merged, RUNTIME)
    # The first of the rows of a key gets its accumulators.
    again = _codes(pa.concat_tables([new, merged]), keys)
    first = np.full(again.max(initial=-1) + 1, -1, np.int64)
    first[again[: len(places)][::-1]] = places[::-1]
    at = first[again[len(places) :]]
    for place, column in zip(plan.values, range(keys, own.num_columns), strict=True):
        values = at_rows(merged.column(column).combine_chunks(), at, rows.num_rows)
        rows = rows.set_column(place, rows.field(place), values)
    versions = at_rows(pa.array(np.full(len(at), version)), at, rows.num_rows)
    rows = rows.set_column(plan.version, rows.field(plan.version), versions)
    # Errors are those of the micro-batch: Spark keeps the first one of each key.
    left = merged.select(range(keys + plan.accumulators))
    if stored is not None:
        rest = stored.filter(pa.array(~touched)).select(range(keys + plan.accumulators))
        left = pa.concat_tables([rest.cast(left.schema), left])
    for field in list(merged.schema)[keys + plan.accumulators :]:
        left = left.append_column(field, pa.nulls(left.num_rows, field.type))
    return rows, left.combine_chunks()


def _codes(table: pa.Table, keys: int) -> Integers:
    return key_codes(table.columns[:keys], table.num_rows)[0]
