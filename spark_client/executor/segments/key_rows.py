"""Rows sorted by key, in tables of whole keys. If a key has more rows than a bundle, it is returned in parts."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.effective_options import AggregateOptions
from spark_client.executor.segments.cutting import BUNDLE_BYTES, tables_of
from spark_client.executor.segments.keys import run_starts

__all__ = ["KeyRows", "rows_by_key"]

Integers = npt.NDArray[np.int64]
_ONE: Integers = np.zeros(1, np.int64)
"""The beginning of the rows of a single key."""


class KeyRows(NamedTuple):
    """Rows of whole keys, which begin at `starts`, or a part of the rows of one key."""

    table: pa.Table
    starts: Integers
    is_part: bool = False
    ends: bool = True
    """Whether no more rows of the last key follow. False only for a part that is not the last one."""


def rows_by_key(
    batches: Iterator[pa.RecordBatch], keys: Sequence[int], bounds: AggregateOptions, most_bytes: int = BUNDLE_BYTES,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[KeyRows]:  # fmt: skip
    """The same rows in the same order. No table is empty.

    Args:
        batches: Sorted by key.
        keys: Positions of the columns of the key; without any, all rows are of one key.
        bounds: Rows of a bundle, and how long the first of them may wait.
        most_bytes: Bytes of a bundle.
        clock: Measures how long rows wait.
    """
    held: pa.Table | None = None
    in_parts = False

    def room() -> int:
        # Together with `held` this is one row more than a bundle: a key ends within it, or one key fills a bundle.
        return bounds.size + 1 - (0 if held is None else held.num_rows)

    def whole(table: pa.Table, starts: Integers) -> Iterator[KeyRows]:
        nonlocal in_parts
        if in_parts and table.num_rows:
            in_parts = False
            end = int(starts[1]) if len(starts) > 1 else table.num_rows
            yield KeyRows(table.slice(0, end), _ONE, is_part=True)
            table, starts = table.slice(end), starts[1:] - end
        if table.num_rows:
            yield KeyRows(table, starts)

    for more in tables_of(batches, room, bounds.allow_latency, bundle_bytes=most_bytes, clock=clock):
        table = more if held is None else pa.concat_tables([held, more])
        starts = run_starts([table.column(key) for key in keys], table.num_rows)
        last = int(starts[-1])
        yield from whole(table.slice(0, last), starts[:-1])
        held = table.slice(last)
        if held.num_rows > 1 and (held.num_rows > bounds.size or held.nbytes >= most_bytes):
            # One row is kept, so that the last part of the key is not empty.
            yield KeyRows(held.slice(0, held.num_rows - 1), _ONE, is_part=True, ends=False)
            held, in_parts = held.slice(held.num_rows - 1), True
    if held is not None:
        yield from whole(held, _ONE)
