"""Chunk has the rows of one message in flight. They are kept until they are answered, so they can be sent again.

Parts of a value that a server has sent before the answer are kept until then. If the server is lost first, they are
discarded, and none of them was passed on.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.arrow import read_columns
from remote_udf.errors import ProtocolViolation
from remote_udf.outcomes import RowError

__all__ = ["COMPACT_BELOW", "Answer", "Chunk", "IntArray", "Parts", "Rows", "as_array"]

MEMORY_BYTES = 1 << 20
COMPACT_BELOW = 4
"""Answered rows are released if at most one row in this many is unanswered."""

IntArray = npt.NDArray[np.int64]
Rows = range | IntArray
"""Positions of rows: a range if they are consecutive, as in most cases, otherwise an array."""


class Parts:
    """The parts of the value of one row, in the order of their arrival, in a temporary file if they are large."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES, dir=_folder())  # noqa: SIM115 - see close
        self._sizes: list[int] = []

    @property
    def count(self) -> int:
        return len(self._sizes)

    def add(self, number: int, data: memoryview) -> None:
        """Add the part of this number, as Arrow bytes. Raises ProtocolViolation unless it is the next one and valid."""
        if number != self.count + 1:
            raise ProtocolViolation(f"part {number} of a row came after part {self.count}")
        read_columns(data, self._schema, 1)
        self._file.write(data)
        self._sizes.append(len(data))

    def values(self) -> Iterator[pa.Array]:
        """An array of one value for each part. The file is closed after the last one."""
        self._file.seek(0)
        for size in self._sizes:
            yield read_columns(self._file.read(size), self._schema, 1)[-1]
        self.close()

    def close(self) -> None:
        """Close and delete the file. Safe to call twice."""
        self._file.close()


def _folder() -> str | None:
    """Spark's folder for data that does not fit in memory; None for the folder of the system."""
    folders = [each for each in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if each and Path(each).is_dir()]
    return folders[0] if folders else None


def as_array(rows: Rows) -> IntArray:
    """The positions as an array."""
    return np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows


@dataclass(frozen=True, slots=True)
class Answer:
    """Outcomes of some rows of one owner. `rows` are positions in it; `errors` has the indexes of `values`."""

    owner: Any
    rows: Rows
    values: pa.Array
    errors: Mapping[int, RowError]
    parts: Mapping[int, Parts] = field(default_factory=dict)
    """Index of a value that was sent in parts to the parts before it."""


@dataclass(slots=True)
class Chunk:
    """Rows of `owner`, which is any object. `columns` has their values, one column per argument."""

    owner: Any
    rows: Rows
    columns: Sequence[pa.ChunkedArray]
    bytes: int
    first_row: int = 0
    """Position in the stream on which it was sent last."""
    answered: int = 0
    replays: int = 0
    """Number of times that its rows were sent again."""
    sent_at: float = 0.0
    """When it, or the earlier chunk of its rows, was first sent; 0.0 before."""
    parts: dict[int, Parts] = field(default_factory=dict)
    """Unanswered row, counted from the first, to the received parts of its value."""
    _open: npt.NDArray[np.bool_] | None = None
    """True for unanswered rows; None if no row was answered, or all at once."""
    _held: IntArray | None = None
    """The rows in `columns` after compaction; None if all are there."""

    @property
    def unanswered(self) -> int:
        return len(self.rows) - self.answered

    def answer(self, inside: Rows) -> Rows:
        """Mark rows, counted from the chunk's first, as answered. Returns their positions in the owner.

        Raises ProtocolViolation if one was answered before.
        """
        if isinstance(inside, range) and len(inside) == len(self.rows) and not self.answered:
            self.answered = len(inside)
            return self.rows
        if self._open is None:
            self._open = np.ones(len(self.rows), np.bool_)
        chosen = slice(inside.start, inside.stop) if isinstance(inside, range) else inside
        if not self._open[chosen].all():
            raise ProtocolViolation("the server answered a row twice")
        self._open[chosen] = False
        self.answered += len(inside)
        if not isinstance(chosen, slice) and np.count_nonzero(self._open) != self.unanswered:
            raise ProtocolViolation("the server answered a row twice in one result")
        if not isinstance(self.rows, range):
            return self.rows[chosen]
        return self.rows[chosen] if isinstance(chosen, slice) else chosen + self.rows.start

    def part(self, start: int, rows: int) -> "Chunk":
        """Some consecutive rows of a chunk that was not sent."""
        columns = [column.slice(start, rows) for column in self.columns]
        size = self.bytes * rows // len(self.rows)
        return Chunk(
            self.owner, self.rows[start : start + rows], columns, size, replays=self.replays, sent_at=self.sent_at
        )

    def compact(self) -> int:
        """Release answered rows if most rows are answered. Returns the number of released bytes.

        Otherwise a single slow row would keep the memory of its whole chunk.
        """
        if self._open is None or not self.unanswered or self.unanswered * COMPACT_BELOW > self._holding:
            return 0
        before, self.bytes = self.bytes, self._open_bytes()
        self.columns, self._held = self._open_columns(), np.flatnonzero(self._open)
        return before - self.bytes

    def rest(self) -> "Chunk":
        """The unanswered rows, as a chunk to be sent again. The received parts of their values are discarded."""
        self.forget_parts(range(len(self.rows)))
        if self._open is None:
            again = (self.rows, self.columns, self.bytes)
        else:
            again = (as_array(self.rows)[self._open], self._open_columns(), self._open_bytes())
        return Chunk(self.owner, *again, replays=self.replays + 1, sent_at=self.sent_at)

    def awaits(self, inside: int) -> bool:
        """Whether this row, counted from the first, is unanswered."""
        return inside < len(self.rows) and (self._open is None or bool(self._open[inside])) and self.unanswered > 0

    def forget_parts(self, inside: Rows) -> None:
        """Discard the received parts of the values of these rows."""
        for row in [row for row in self.parts if row in inside]:
            self.parts.pop(row).close()

    @property
    def _holding(self) -> int:
        """Number of rows in `columns`."""
        return len(self.rows) if self._held is None else len(self._held)

    def _open_bytes(self) -> int:
        return self.bytes * self.unanswered // self._holding

    def _open_columns(self) -> Sequence[pa.ChunkedArray]:
        assert self._open is not None
        kept = np.flatnonzero(self._open if self._held is None else self._open[self._held])
        return [column.take(pa.array(kept)) for column in self.columns]
