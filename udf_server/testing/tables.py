"""The tables of a harness: their description as a query would give it, and rows that ORDER BY holds."""

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from remote_udf.process_calls import TableCall
from remote_udf.process_planning import TableGiven
from remote_udf.ranks import Integers, sort_keys
from remote_udf.row_kinds import ChangelogMode, RowKind
from udf_server.declaring.annotations import type_given

__all__ = ["SortBuffer", "table"]


def table(
    columns: str | pa.Schema, *, partition_by: str | Sequence[str] | None = None, order_by: str | Sequence[str] = (),
    changelog_mode: ChangelogMode | None = None,
) -> TableGiven:  # fmt: skip
    """Describe a table as a query would pass it.

    Args:
        columns: The columns, as DDL or as an Arrow schema.
        partition_by: Names of the key's columns. None means no PARTITION BY.
        order_by: Names of columns, each optionally followed by " DESC" and " NULLS FIRST" or " NULLS LAST".
        changelog_mode: The kinds of change in the table. By default there are only inserts.
    """
    if isinstance(columns, str):
        struct = type_given(f"struct<{columns}>", "table")
        assert struct is not None
        columns = pa.schema(list(struct))
    keys = [partition_by] if isinstance(partition_by, str) else partition_by
    order = [order_by] if isinstance(order_by, str) else list(order_by)
    return TableGiven(columns, keys, [_ordered(each) for each in order], changelog_mode or ChangelogMode())


def _ordered(text: str) -> tuple[str, bool, bool]:
    name, *words = text.split()
    directions = " ".join(words).upper()
    descending = directions.startswith("DESC")
    return name, descending, directions.endswith("LAST") or (descending and not directions.endswith("FIRST"))


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
