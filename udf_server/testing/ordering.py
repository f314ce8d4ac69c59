"""SortBuffer: rows of a table with ORDER BY, held until the watermark says that no earlier ones will come."""

from typing import Any

import pyarrow as pa

from remote_udf.process_calls import TableCall
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
        time = self._time(row)
        if watermark is None or (time is not None and time > watermark):
            self._held.append((row, kind))

    def due(self, watermark: int) -> list[Held]:
        """Release the rows up to the watermark, in order."""
        due = [held for held in self._held if (self._time(held[0]) or 0) <= watermark]
        self._held = [held for held in self._held if (self._time(held[0]) or 0) > watermark]
        for order in reversed(self._table.order_by):

            def rank(held: Held, column: int = order.column, descending: bool = order.descending,
                     nulls_last: bool = order.nulls_last) -> tuple[int, Any]:  # fmt: skip
                value = held[0].field(column)[0].as_py()
                # In a reversed sort the largest rank comes first.
                missing = (value is None) == nulls_last
                return (int(missing != descending), 0 if value is None else value)

            due.sort(key=rank, reverse=order.descending)
        return due

    def _time(self, row: pa.StructArray) -> int | None:
        found: int | None = row.field(self._table.order_by[0].column).cast(pa.int64())[0].as_py()
        return found
