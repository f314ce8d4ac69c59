"""Cuts input batches to tables of a bundle's size."""

import time
from collections.abc import Callable, Iterator

import pyarrow as pa

__all__ = ["BUNDLE_BYTES", "tables_of"]

BUNDLE_BYTES = 16 << 20
"""Maximum bytes of the input of one bundle. It is well below the default message limit of a server."""


def tables_of(
    batches: Iterator[pa.RecordBatch],
    size: Callable[[], int],
    allow_latency: float,
    *,
    bundle_bytes: int = BUNDLE_BYTES,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[pa.Table]:
    """The same rows in the same order, in tables of `size()` rows; fewer at the end, or if a table gets too large.

    If the first row of a table has waited for `allow_latency` seconds, the table is returned with the next batch,
    even if it is small. Batches without rows are skipped.
    """
    held: list[pa.RecordBatch] = []
    rows = held_bytes = 0
    since = 0.0
    for batch in batches:
        rest = batch
        while rest.num_rows:
            if not held:
                since = clock()
            width = max(rest.nbytes / rest.num_rows, 1e-9)
            fitting = max(int((bundle_bytes - held_bytes) / width), 0 if held else 1)
            taken = min(rest.num_rows, max(size() - rows, 0 if held else 1), fitting)
            if taken:
                held.append(rest.slice(0, taken))
                rows += taken
                held_bytes += int(taken * width)
                rest = rest.slice(taken)
            if rows >= size() or rest.num_rows or clock() - since >= allow_latency:
                yield pa.Table.from_batches(held)
                held, rows, held_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)
