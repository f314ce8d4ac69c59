"""Packs the rows of one bucket in one input batch."""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from spark_client.executor.engine.pieces import Integers
from spark_client.executor.packed_batches import written
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["DESCRIPTION_BUCKET", "PACKED_SCHEMA", "bucket_of", "packed", "packed_for_call", "packed_with_visits"]

DESCRIPTION_BUCKET = -1
"""A bucket without keys, which has the description of the call. Each task sends it a row with its first rows, so that
another call is refused even if its keys are in buckets without state."""

PACKED_SCHEMA = pa.schema([
    pa.field("bucket", pa.int32()), pa.field("part", pa.int32()), pa.field("place", pa.int64()),
    pa.field("rows", pa.binary()),
])  # fmt: skip
"""`part` and `place` are the partition of the input and the number of the batch in it."""
VISITED_EVERY = 8
"""Each bucket is visited once in this number of micro-batches, to remove expired state of keys without rows."""


def bucket_of(hashes: Integers, buckets: int) -> Integers:
    """The bucket of each key, by the upper half of its hash; the lower half is used for pages."""
    return (hashes.view(np.uint64) >> np.uint64(32)).astype(np.int64) % buckets


def packed_for_call(call: tuple[str, int, bool], batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`packed` for the call with this id, and this number of buckets; with visits if its state expires.

    The id makes the plans of several calls over the same rows differ. Otherwise Spark would shuffle the rows once for
    all of them, and all but the first one would get no watermark, because it looks for that below the shuffle.
    """
    _, buckets, expires = call
    return (packed_with_visits if expires else packed)(buckets, batches)


def packed_with_visits(
    buckets: int, batches: Iterable[pa.RecordBatch], runtime: Runtime = RUNTIME
) -> Iterator[pa.RecordBatch]:
    """Pack rows like `packed`. The first rows are also preceded by empty rows for the buckets that are visited now."""
    task = runtime.task()
    for number, batch in enumerate(packed(buckets, batches, runtime)):
        yield batch
        if not number:
            visited = range(task.micro_batch % VISITED_EVERY, buckets, VISITED_EVERY)
            yield _empty_rows(visited, task.partition)


def packed(buckets: int, batches: Iterable[pa.RecordBatch], runtime: Runtime = RUNTIME) -> Iterator[pa.RecordBatch]:
    """Pack rows, whose last column is the hash of their key, by bucket. Rows of a bucket keep their order.

    The first rows are preceded by an empty row for DESCRIPTION_BUCKET.
    """
    part, described = runtime.task().partition, False
    for place, batch in enumerate(batches):
        if not batch.num_rows:
            continue
        if not described:
            described = True
            yield _empty_rows([DESCRIPTION_BUCKET], part)
        codes = bucket_of(batch.columns[-1].to_numpy(), buckets)
        order = np.argsort(codes, kind="stable")
        present, starts = np.unique(codes[order], return_index=True)
        ordered = batch.take(pa.array(order)) if len(present) > 1 else batch
        bounds = np.append(starts, batch.num_rows)
        packed_rows = [written([ordered.slice(a, b - a)]) for a, b in itertools.pairwise(bounds)]
        count = len(present)
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(present.astype(np.int32)), pa.array(np.full(count, part, np.int32)),
                pa.array(np.full(count, place, np.int64)), pa.array(packed_rows, pa.binary()),
            ],
            schema=PACKED_SCHEMA,
        )  # fmt: skip


def _empty_rows(buckets: Iterable[int], part: int) -> pa.RecordBatch:
    rows = [{"bucket": bucket, "part": part, "place": -1, "rows": b""} for bucket in buckets]
    return pa.RecordBatch.from_pylist(rows, schema=PACKED_SCHEMA)
