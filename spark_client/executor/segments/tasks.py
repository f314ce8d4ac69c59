"""Runs tasks over rows sorted by key. Resources are acquired with the first row and released at the end."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import pyarrow as pa

__all__ = ["SortedTask", "run_sorted"]


class SortedTask(Protocol):
    """The work of one Spark task. `first` is the first batch with rows; `batches` are the following ones."""

    def run(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]: ...


def run_sorted(make: Callable[[ExitStack], SortedTask], batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The output of a task. If there are no rows, the task is not created and there is no output."""
    first = next((batch for batch in batches if batch.num_rows), None)
    if first is None:
        return
    with ExitStack() as cleanup:
        yield from make(cleanup).run(first, batches)
