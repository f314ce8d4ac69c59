"""Partitions: tables of whole partitions from batches that are sorted by their columns."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_client.executor.aggregates.cutting import tables_of
from spark_client.executor.aggregates.keys import run_starts

__all__ = ["partitions_of"]

Integers = npt.NDArray[np.int64]
TABLE_ROWS = 65_536
"""Rows that are looked at together at least; a partition always is."""


def partitions_of(columns: Sequence[int], batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[pa.Table, Integers]]:
    """Tables of one or more whole partitions, and where in them each begins. Without columns all rows are one."""
    held: list[pa.Table] = []
    # Only the last row held is needed to see whether a table goes on with its partition.
    for table in tables_of(batches, lambda: TABLE_ROWS, float("inf")):
        before = held[-1].slice(held[-1].num_rows - 1) if held else table.slice(0, 0)
        starts = _starts(columns, pa.concat_tables([before, table])) - before.num_rows
        starts = starts[starts >= 0]
        if not len(starts):
            held.append(table)
            continue
        last = int(starts[-1])
        whole = pa.concat_tables([*held, table.slice(0, last)])
        if whole.num_rows:
            yield whole, _starts(columns, whole)
        held = [table.slice(last)]
    if held:
        whole = pa.concat_tables(held)
        yield whole, _starts(columns, whole)


def _starts(columns: Sequence[int], table: pa.Table) -> Integers:
    return run_starts([table.column(column) for column in columns], table.num_rows)
