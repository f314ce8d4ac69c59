"""Group: one input batch on its way through its calls, and the rows of it that are complete."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from remote_udf.outcomes import RowError
from spark_client.executor.chunks import COMPACT_BELOW, IntArray

__all__ = ["Completed", "Group"]


@dataclass(frozen=True, slots=True)
class Completed:
    """Rows with an outcome of every call: input rows, and per call the values and the errors by row."""

    batch: pa.RecordBatch
    values: Sequence[pa.Array]
    errors: Sequence[dict[int, RowError]]


class _Column:
    """The outcomes of one call, as they come."""

    def __init__(self) -> None:
        self.rows: list[IntArray] = []
        self.values: list[pa.Array] = []
        self.errors: dict[int, RowError] = {}

    def add(self, rows: IntArray, values: pa.Array, errors: dict[int, RowError]) -> None:
        self.rows.append(rows)
        self.values.append(values)
        for index, error in errors.items():
            self.errors[int(rows[index])] = error

    def pick(self, rows: IntArray) -> pa.Array:
        """The values of these rows, in this order; each must be there."""
        have = self.rows[0] if len(self.rows) == 1 else np.concatenate(self.rows)
        values = self.values[0] if len(self.values) == 1 else pa.concat_arrays(self.values)
        if len(have) == len(rows) and np.array_equal(have, rows):
            return values
        order = np.argsort(have, kind="stable")
        return values.take(pa.array(order[np.searchsorted(have, rows, sorter=order)]))


class Group:
    """`sources` says, per call, which call of this batch it shares its outcomes with: itself, or an equal one."""

    def __init__(self, batch: pa.RecordBatch, sources: Sequence[int]) -> None:
        self.rows = batch.num_rows
        self.bytes = batch.nbytes
        self._batch = batch
        self._held: IntArray = np.arange(self.rows)
        """The rows `_batch` holds."""
        self._sources = sources
        self._columns = {source: _Column() for source in sources}
        self._missing = np.full(self.rows, len(self._columns), np.int32)
        """Calls each row still waits for; -1 once the row has left."""
        self._left = self.rows

    @property
    def done(self) -> bool:
        """Every row has left."""
        return not self._left

    @property
    def complete(self) -> bool:
        """Every row has all its outcomes."""
        return not np.any(self._missing > 0)

    def add(self, call: int, rows: IntArray, values: pa.Array, errors: dict[int, RowError]) -> None:
        """Takes outcomes of one call."""
        self._columns[call].add(rows, values, errors)
        self._missing[rows] -= 1

    def take_complete(self) -> Completed | None:
        """The complete rows that have not left yet, in input order; None if there are none."""
        rows = np.flatnonzero(self._missing == 0)
        if not len(rows) and self.rows:
            return None
        picked = {source: column.pick(rows) for source, column in self._columns.items()} if self.rows else {}
        any_failed = any(column.errors for column in self._columns.values())
        place = {int(row): index for index, row in enumerate(rows)} if any_failed else {}
        errors = {
            source: {place[row]: error for row, error in column.errors.items() if row in place}
            for source, column in self._columns.items()
        }
        batch = self._batch
        if len(rows) < batch.num_rows:
            batch = batch.take(pa.array(np.searchsorted(self._held, rows)))
        self._missing[rows] = -1
        self._left -= len(rows)
        return Completed(batch, [picked[s] for s in self._sources], [errors[s] for s in self._sources])

    def compact(self) -> int:
        """Lets go of input rows that have left, once most have; returns the bytes that freed."""
        if not self._left or self._left * COMPACT_BELOW > len(self._held):
            return 0
        kept = np.flatnonzero(self._missing[self._held] >= 0)
        self._batch = self._batch.take(pa.array(kept))
        self._held = self._held[kept]
        before, self.bytes = self.bytes, self._batch.nbytes
        return before - self.bytes
