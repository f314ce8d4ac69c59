"""Group is one input batch whose rows are in flight, with the outcomes received so far."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from remote_udf.outcomes import RowError
from spark_client.executor.engine.pieces import Integers, LongColumn, cuts
from spark_client.executor.stream.chunks import COMPACT_BELOW, IntArray, Parts, Rows, as_array

__all__ = ["Completed", "Group"]


@dataclass(frozen=True, slots=True)
class Completed:
    """Rows with an outcome of every call: the input rows, and per call the values and the errors by row."""

    table: pa.Table
    values: Sequence[pa.Array]
    errors: Sequence[Mapping[int, RowError]]
    first: int = 0
    """Position of the first of these rows in its batch."""
    parts: Mapping[int, Parts] = field(default_factory=dict)
    """Row to the parts that precede its value, in a piece of a batch."""


class _Picked(NamedTuple):
    """Outcomes of some rows. `errors` has the indexes of `values`."""

    values: pa.Array
    errors: Mapping[int, RowError]


class _CallOutcomes:
    """The outcomes of one call that were received and not passed on."""

    def __init__(self) -> None:
        self.bytes = 0
        """Approximate bytes of the values."""
        self._rows: list[Rows] = []
        self._values: list[pa.Array] = []
        self._errors: dict[int, RowError] = {}

    def add(self, rows: Rows, values: pa.Array, errors: Mapping[int, RowError]) -> None:
        self._rows.append(rows)
        self._values.append(values)
        self.bytes += values.nbytes
        for index, error in errors.items():
            self._errors[int(rows[index])] = error

    def column(self) -> tuple[LongColumn, Integers]:
        """The values of all rows, and the position of each row in them. Call when all were received."""
        return LongColumn(pa.chunked_array(self._values)), self._order()

    def values(self) -> pa.Array:
        """The values of all rows, in order. Call when all were received."""
        values = self._in_order()
        return _joined(self._values).take(pa.array(self._order())) if values is None else values

    def errors(self, start: int, end: int) -> dict[int, RowError]:
        """The errors of the rows from `start` to `end`, indexed from `start`."""
        return {row - start: error for row, error in self._errors.items() if start <= row < end}

    def all(self) -> _Picked:
        """The outcomes of all rows, in order. Call when all were received."""
        return _Picked(self.values(), self._errors)

    def take(self, rows: IntArray) -> _Picked:
        """Remove and return the outcomes of these rows, in this order. Each must have been received."""
        if len(rows) == sum(map(len, self._rows)) and (values := self._in_order()) is not None:
            self._rows, self._values = [], []
        else:
            have = np.concatenate([as_array(part) for part in self._rows])
            values = _joined(self._values)
            order = np.argsort(have, kind="stable")
            places = order[np.searchsorted(have, rows, sorter=order)]
            stay = np.ones(len(have), np.bool_)
            stay[places] = False
            self._rows, self._values = ([have[stay]], [values.filter(pa.array(stay))]) if stay.any() else ([], [])
            values = values.take(pa.array(places))
        self.bytes = sum(part.nbytes for part in self._values)
        errors: dict[int, RowError] = {}
        if self._errors:
            for place, row in enumerate(rows.tolist()):
                if row in self._errors:
                    errors[place] = self._errors.pop(row)
        return _Picked(values, errors)

    def _order(self) -> Integers:
        """The position of each row among the received ones. Call when all were received."""
        return np.argsort(np.concatenate([as_array(part) for part in self._rows]), kind="stable")

    def _in_order(self) -> pa.Array | None:
        """The values of the received rows, in order; None if a part of them is not a range."""
        if not all(isinstance(part, range) for part in self._rows):
            return None
        starts = sorted(range(len(self._rows)), key=lambda part: self._rows[part][0])
        return _joined([self._values[part] for part in starts])


class Group:
    """One input batch. `sources` has, per call, the call whose outcomes it uses: itself or an equal one."""

    def __init__(self, table: pa.Table, sources: Sequence[int], most_bytes: int | None = None) -> None:
        """If the values of a call have more than `most_bytes`, the rows are returned in pieces; None for never."""
        self.rows = table.num_rows
        self._most_bytes = most_bytes
        self._table = table
        self._table_bytes = table.nbytes
        self._sources = sources
        self._outcomes = {source: _CallOutcomes() for source in sources}
        self._owed = self.rows * len(self._outcomes)
        """Number of outcomes that were not received."""
        # The next two attributes are used with unordered output only.
        self._held: IntArray | None = None
        """The rows in `_table`; None for all."""
        self._missing: np.ndarray[tuple[int], np.dtype[np.int32]] | None = None
        """Number of calls that each row waits for; -1 once the row was returned. None before `track`."""
        self._left = self.rows

    @property
    def bytes(self) -> int:
        """Approximate bytes of its rows in memory: input and values."""
        return self._table_bytes + sum(outcomes.bytes for outcomes in self._outcomes.values()) if self._left else 0

    @property
    def complete(self) -> bool:
        """Whether every row has all its outcomes."""
        return not self._owed

    @property
    def done(self) -> bool:
        """Whether every row was returned."""
        return not self._left

    def add(
        self, call: int, rows: Rows, values: pa.Array, errors: Mapping[int, RowError],
        parts: Mapping[int, Parts] | None = None,
    ) -> None:  # fmt: skip
        """Add outcomes of one call. Only values of a PiecewiseGroup have parts."""
        self._outcomes[call].add(rows, values, errors)
        self._owed -= len(rows)
        if self._missing is not None:
            self._missing[slice(rows.start, rows.stop) if isinstance(rows, range) else rows] -= 1

    def values(self, call: int) -> pa.Array:
        """The values of one call for all rows, in order. Call when all were received, and before a row is returned."""
        return self._outcomes[call].values()

    def input(self, column: int, rows: Rows) -> pa.ChunkedArray:
        """A column of the input for these rows, none of which was returned."""
        whole = self._table.column(column)
        if isinstance(rows, range) and self._held is None:
            return whole.slice(rows.start, len(rows))
        places = as_array(rows)
        return whole.take(pa.array(places if self._held is None else np.searchsorted(self._held, places)))

    def take_front(self) -> Iterator[Completed]:
        """The rows that can be returned in input order: all, once the group is complete."""
        if not self.complete:
            return
        most = max((outcomes.bytes for outcomes in self._outcomes.values()), default=0)
        if self._most_bytes is None or most <= self._most_bytes:
            yield self.take_all()
        else:
            yield from self._take_pieces()

    def _take_pieces(self) -> Iterator[Completed]:
        columns = {source: outcomes.column() for source, outcomes in self._outcomes.items()}
        widths = sum((column.row_bytes()[places] for column, places in columns.values()), np.zeros(self.rows, np.int64))
        for start, end in cuts(widths):
            picked = {
                source: _Picked(column.take(places[start:end]), self._outcomes[source].errors(start, end))
                for source, (column, places) in columns.items()
            }
            self._left -= end - start
            yield self._completed(self._table.slice(start, end - start), picked, start)

    def take_all(self) -> Completed:
        """All rows in input order. Call when the group is complete."""
        self._left = 0
        return self._completed(self._table, {source: outcomes.all() for source, outcomes in self._outcomes.items()})

    def track(self) -> None:
        """Prepare for `take_complete`. Call before the first `add`."""
        self._missing = np.full(self.rows, len(self._outcomes), np.int32)

    def take_complete(self) -> Completed | None:
        """The complete rows that were not returned yet, in input order; None if there are none."""
        assert self._missing is not None
        if self.done:
            return None
        if self.complete and self._left == self.rows:
            return self.take_all()
        rows = np.flatnonzero(self._missing == 0)
        if not len(rows):
            return None
        self._missing[rows] = -1
        self._left -= len(rows)
        table = self._table
        if len(rows) < table.num_rows:
            places = rows if self._held is None else np.searchsorted(self._held, rows)
            together = places[-1] - places[0] + 1 == len(places)
            table = table.slice(places[0], len(places)) if together else table.take(pa.array(places))
        return self._completed(table, {source: outcomes.take(rows) for source, outcomes in self._outcomes.items()})

    def compact(self) -> None:
        """Release input rows that were returned, if most were."""
        if not self._left or self._left * COMPACT_BELOW > self._table.num_rows:
            return
        assert self._missing is not None
        stay = self._missing >= 0 if self._held is None else self._missing[self._held] >= 0
        kept = np.flatnonzero(stay)
        self._table = self._table.take(pa.array(kept))
        self._held = kept if self._held is None else self._held[kept]
        self._table_bytes = self._table.nbytes

    def _completed(self, table: pa.Table, picked: Mapping[int, _Picked], first: int = 0) -> Completed:
        chosen = [picked[source] for source in self._sources]
        return Completed(table, [part.values for part in chosen], [part.errors for part in chosen], first)


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
