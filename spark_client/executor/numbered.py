"""Tells an operator which partition of its input it has.

The task does not tell: after `coalesce` one task runs the operator for several partitions, one after the other, and
after a union with itself two tasks run it for the same one.
"""

import itertools
from collections.abc import Iterator

import pyarrow as pa

__all__ = ["number_of", "without_number"]


def number_of(batches: Iterator[pa.RecordBatch]) -> tuple[int | None, Iterator[pa.RecordBatch]]:
    """The number in the first row's last column, and all batches; None if there are no rows."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return None, iter(())
    return first.column(first.num_columns - 1)[0].as_py(), itertools.chain([first], batches)


def without_number(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The batches without their last column."""
    return (batch.select(range(batch.num_columns - 1)) for batch in batches)
