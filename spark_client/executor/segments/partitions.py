"""Tables of whole partitions, from batches sorted by the partition columns."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from spark_client.executor.segments.cutting import tables_of
from spark_client.executor.segments.keys import run_starts

__all__ = ["partitions_of"]

Integers = npt.NDArray[np.int64]
TABLE_ROWS = 65_536
"""Number of rows that are processed together. A larger partition is not split."""


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
