"""Chunk: rows of one message under way, kept until they are answered, so that they can be sent again."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.errors import ProtocolViolation
from remote_udf.outcomes import RowError

__all__ = ["Answer", "Chunk", "IntArray"]

COMPACT_BELOW = 4
"""Rows are let go when fewer than one in so many is unanswered."""

IntArray = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class Chunk:
    """`rows` rows of `owner`, whatever that is, from its row `offset` on, or its rows `indexes`."""

    owner: Any
    offset: int
    rows: int
    columns: Sequence[pa.Array]
    bytes: int
    first_row: int = 0
    """Position in the stream it was last sent on."""
    indexes: IntArray | None = None
    unanswered: int = 0
    _open: np.ndarray[Any, np.dtype[np.bool_]] = field(init=False)
    """True for rows without an answer."""
    _held: IntArray | None = field(init=False, default=None)
    """The rows `columns` holds, after compaction; None for all."""

    def __post_init__(self) -> None:
        self.unanswered = self.rows
        self._open = np.ones(self.rows, np.bool_)

    def answer(self, rows: slice | IntArray) -> IntArray:
        """Marks rows of the chunk as answered; returns their rows in the owner. Raises ProtocolViolation if one was."""
        if not self._open[rows].all():
            raise ProtocolViolation("the server answered a row twice")
        self._open[rows] = False
        positions = np.arange(self.rows)[rows] if isinstance(rows, slice) else rows
        self.unanswered -= len(positions)
        return positions + self.offset if self.indexes is None else self.indexes[positions]

    def part(self, start: int, rows: int) -> "Chunk":
        """Some consecutive rows of a chunk that was not sent."""
        columns = [column.slice(start, rows) for column in self.columns]
        indexes = None if self.indexes is None else self.indexes[start : start + rows]
        return Chunk(self.owner, self.offset + start, rows, columns, self.bytes * rows // self.rows, indexes=indexes)

    def compact(self) -> int:
        """Lets go of rows that were answered, once most were; returns the bytes that freed.

        A single slow row would otherwise hold the memory of its whole chunk.
        """
        holding = self.rows if self._held is None else len(self._held)
        if not self.unanswered or self.unanswered * COMPACT_BELOW > holding:
            return 0
        self.columns, self._held = self._open_columns(), np.flatnonzero(self._open)
        before, self.bytes = self.bytes, self.bytes * self.unanswered // holding
        return before - self.bytes

    def rest(self) -> "Chunk":
        """The rows without an answer, as a chunk to be sent again."""
        rows = np.flatnonzero(self._open)
        indexes = rows + self.offset if self.indexes is None else self.indexes[rows]
        return Chunk(self.owner, int(indexes[0]), len(rows), self._open_columns(), self.bytes, indexes=indexes)

    def _open_columns(self) -> Sequence[pa.Array]:
        if self.unanswered == self.rows:
            return self.columns
        kept = np.flatnonzero(self._open) if self._held is None else np.flatnonzero(self._open[self._held])
        return [column.take(pa.array(kept)) for column in self.columns]


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcomes of some rows of one owner: `rows` are positions in it, `errors` is indexed like `values`."""

    owner: Any
    rows: IntArray
    values: pa.Array
    errors: dict[int, RowError]
