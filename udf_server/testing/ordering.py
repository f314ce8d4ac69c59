"""SortBuffer: rows of a table with ORDER BY, held until the watermark says that no earlier ones will come."""

import math

import numpy as np
import pyarrow as pa

from remote_udf.process_calls import TableCall
from remote_udf.ranks import Integers, sort_keys
from remote_udf.row_kinds import RowKind

__all__ = ["SortBuffer"]

Held = tuple[pa.StructArray, RowKind]


class SortBuffer:
    """Rows of one table. A row that arrives at or before the watermark is late and is dropped (FLIP-440).

    On a stream, Spark's watermark is a time that rows may still have: a row exactly at it is on time there.
    """

    def __init__(self, table: TableCall, held: list[Held] | None = None) -> None:
        self._table = table
        self._held = held or []

    def copied(self) -> "SortBuffer":
        return SortBuffer(self._table, list(self._held))

    def add(self, row: pa.StructArray, kind: RowKind, watermark: int | None) -> None:
        if watermark is None or self.time_of(row) > watermark:
            self._held.append((row, kind))

    def due(self, watermark: int) -> list[Held]:
        """Release the rows up to the watermark, in order."""
        due = [held for held in self._held if self.time_of(held[0]) <= watermark]
        self._held = [held for held in self._held if self.time_of(held[0]) > watermark]
        if not due:
            return []
        rows = pa.concat_arrays([row for row, _ in due])
        keys: list[Integers] = []
        for order in self._table.order_by:
            keys += sort_keys(rows.field(order.column), descending=order.descending, nulls_last=order.nulls_last)
        # The last key is the primary one.
        return [due[place] for place in np.lexsort(keys[::-1])]

    def time_of(self, row: pa.StructArray) -> float:
        """The time of a row; without one it is the earliest."""
        found: int | None = row.field(self._table.order_by[0].column).cast(pa.int64())[0].as_py()
        return -math.inf if found is None else found
