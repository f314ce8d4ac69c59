"""Group: one input batch on its way through its calls, and the rows of it that are complete."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from remote_udf.outcomes import RowError
from spark_client.executor.chunks import COMPACT_BELOW, IntArray, Rows, as_array

__all__ = ["Completed", "Group"]


@dataclass(frozen=True, slots=True)
class Completed:
    """Rows with an outcome of every call: input rows, and per call the values and the errors by row."""

    table: pa.Table
    values: Sequence[pa.Array]
    errors: Sequence[Mapping[int, RowError]]


class _Outcomes:
    """The outcomes of one call, as they come."""

    def __init__(self) -> None:
        self._rows: list[Rows] = []
        self._values: list[pa.Array] = []
        self.errors: dict[int, RowError] = {}

    def add(self, rows: Rows, values: pa.Array, errors: Mapping[int, RowError]) -> None:
        self._rows.append(rows)
        self._values.append(values)
        for index, error in errors.items():
            self.errors[int(rows[index])] = error

    def pick(self, rows: Rows) -> pa.Array:
        """The values of these rows, in this order; each must be there."""
        if len(self._rows) == 1 and _same(self._rows[0], rows):
            return self._values[0]
        if isinstance(rows, range) and all(isinstance(part, range) for part in self._rows):
            starts = sorted(range(len(self._rows)), key=lambda part: self._rows[part][0])
            return pa.concat_arrays([self._values[part] for part in starts])
        values = pa.concat_arrays(self._values)
        have = np.concatenate([as_array(part) for part in self._rows])
        order = np.argsort(have, kind="stable")
        return values.take(pa.array(order[np.searchsorted(have, as_array(rows), sorter=order)]))


class Group:
    """`sources` says, per call, which call of this batch it shares its outcomes with: itself, or an equal one."""

    def __init__(self, table: pa.Table, sources: Sequence[int]) -> None:
        self.rows = table.num_rows
        self.bytes = table.nbytes
        self._table = table
        self._sources = sources
        self._outcomes = {source: _Outcomes() for source in sources}
        self._owed = self.rows * len(self._outcomes)
        """Outcomes that have not come."""
        # With unordered output only.
        self._held: IntArray | None = None
        """The rows `_batch` holds; None for all."""
        self._missing: np.ndarray[tuple[int], np.dtype[np.int32]] | None = None
        """Calls each row still waits for; -1 once it has left. None until a row is asked for alone."""
        self._left = self.rows

    @property
    def complete(self) -> bool:
        """Every row has all its outcomes."""
        return not self._owed

    @property
    def done(self) -> bool:
        """Every row has left."""
        return not self._left

    def add(self, call: int, rows: Rows, values: pa.Array, errors: Mapping[int, RowError]) -> None:
        """Takes outcomes of one call."""
        self._outcomes[call].add(rows, values, errors)
        self._owed -= len(rows)
        if self._missing is not None:
            self._missing[as_array(rows)] -= 1

    def take_all(self) -> Completed:
        """Every row, in input order, once the group is complete."""
        self._left = 0
        return self._completed(self._table, range(self.rows))

    def track(self) -> None:
        """Rows of this group will be taken as they complete. To be called before outcomes come."""
        self._missing = np.full(self.rows, len(self._outcomes), np.int32)

    def take_complete(self) -> Completed | None:
        """The complete rows that have not left yet, in input order; None if there are none."""
        assert self._missing is not None
        rows = np.flatnonzero(self._missing == 0)
        if not len(rows):
            return None
        self._missing[rows] = -1
        self._left -= len(rows)
        table = self._table
        if len(rows) < table.num_rows:
            places = rows if self._held is None else np.searchsorted(self._held, rows)
            table = table.take(pa.array(places))
        return self._completed(table, rows)

    def compact(self) -> int:
        """Lets go of input rows that have left, once most have; returns the bytes that freed."""
        if not self._left or self._left * COMPACT_BELOW > self._table.num_rows:
            return 0
        assert self._missing is not None
        stay = self._missing >= 0 if self._held is None else self._missing[self._held] >= 0
        kept = np.flatnonzero(stay)
        self._table = self._table.take(pa.array(kept))
        self._held = kept if self._held is None else self._held[kept]
        before, self.bytes = self.bytes, self._table.nbytes
        return before - self.bytes

    def _completed(self, table: pa.Table, rows: Rows) -> Completed:
        values = {source: outcomes.pick(rows) for source, outcomes in self._outcomes.items()}
        errors: dict[int, Mapping[int, RowError]] = {
            source: outcomes.errors for source, outcomes in self._outcomes.items()
        }
        if not isinstance(rows, range) and any(errors.values()):
            place = {row: index for index, row in enumerate(rows.tolist())}
            errors = {
                source: {place[row]: error for row, error in found.items() if row in place}
                for source, found in errors.items()
            }
        return Completed(table, [values[s] for s in self._sources], [errors[s] for s in self._sources])


def _same(one: Rows, other: Rows) -> bool:
    if isinstance(one, range) and isinstance(other, range):
        return one == other
    return len(one) == len(other) and bool(np.array_equal(as_array(one), as_array(other)))
