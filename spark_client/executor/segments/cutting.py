"""Cuts input batches to tables of a bundle's size, of whole keys or of whole partitions."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from remote_udf.effective_options import AggregateOptions
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.segments.keys import run_starts

__all__ = ["BUNDLE_BYTES", "KeyRows", "SortedTask", "partitions_of", "rows_by_key", "run_sorted", "tables_of"]

BUNDLE_BYTES = 16 << 20
"""Maximum bytes of the input of one bundle. It is well below the default message limit of a server."""
TABLE_ROWS = 65_536
"""Number of rows of partitions that are processed together. A larger partition is not split."""
_ONE: Integers = np.zeros(1, np.int64)
"""The beginning of the rows of a single key."""


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


class SortedTask(Protocol):
    """The work of one Spark task. `first` is the first batch with rows; `batches` are the following ones."""

    def run(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...
    def close(self) -> None: ...


def run_sorted(make: Callable[[], SortedTask], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The output of a task. If there are no rows, the task is not created and there is no output."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is not None:
        with closing(make()) as task:
            yield from task.run(first, batches)


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
        starts = _starts(keys, table)
        last = int(starts[-1])
        yield from whole(table.slice(0, last), starts[:-1])
        held = table.slice(last)
        if held.num_rows > 1 and (held.num_rows > bounds.size or held.nbytes >= most_bytes):
            # One row is kept, so that the last part of the key is not empty.
            yield KeyRows(held.slice(0, held.num_rows - 1), _ONE, is_part=True, ends=False)
            held, in_parts = held.slice(held.num_rows - 1), True
    if held is not None:
        yield from whole(held, _ONE)


def partitions_of(columns: Sequence[int], batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Table, Integers]]:
    """Tables of whole partitions, and the beginning of each in its table. Without columns there is one partition."""
    held: list[pa.Table] = []
    begins: list[Integers] = []
    """The beginnings of partitions in `held`."""
    rows = 0
    for table in tables_of(batches, lambda: TABLE_ROWS, float("inf")):
        # The last row of `held` shows whether a table continues its partition.
        before = held[-1].slice(held[-1].num_rows - 1) if held else table.slice(0, 0)
        starts = _starts(columns, pa.concat_tables([before, table])) - before.num_rows
        starts = starts[starts >= 0]
        if not len(starts):
            held.append(table)
            rows += table.num_rows
            continue
        last = int(starts[-1])
        if rows + last:
            yield pa.concat_tables([*held, table.slice(0, last)]), np.concatenate([*begins, starts[:-1] + rows])
        held, begins = [table.slice(last)], [np.zeros(1, np.int64)]
        rows = table.num_rows - last
    if held:
        yield pa.concat_tables(held), np.concatenate(begins)


def _starts(columns: Sequence[int], table: pa.Table) -> Integers:
    return run_starts([table.column(column) for column in columns], table.num_rows)
