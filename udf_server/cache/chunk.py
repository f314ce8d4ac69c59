"""Chunk holds outcomes that were kept together, column by column, so that a row costs no object of its own."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from udf_server.cache.store import ENTRY_BYTES
from udf_server.runners.selection import Indexes

__all__ = ["Chunk", "Recalled", "Rows"]

CHUNK_BYTES = 1_000
"""Approximate bytes that a chunk takes in addition to its rows."""
ROW_BYTES = 90
"""Those of ENTRY_BYTES that the chunk of a row takes, for its key and times: they stay when the row was replaced."""

Times = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Outcomes of one function by position."""

    function: str
    keys: Sequence[bytes]
    values: pa.Array
    """Values of the function, or entries as bytes."""
    written: Times
    """When each value was written, in seconds since 1970. Entries have that time themselves."""
    until: Times
    """When each one expires."""
    entries: bool
    """Whether `values` has entries."""

    def joins(self, other: "Rows") -> bool:
        """Whether both can be in one chunk."""
        same = self.function == other.function and self.entries is other.entries
        return same and self.values.type == other.values.type

    def and_(self, other: "Rows") -> "Rows":
        """These rows, then others."""
        return Rows(
            self.function, [*self.keys, *other.keys], pa.concat_arrays([self.values, other.values]),
            np.concatenate([self.written, other.written]), np.concatenate([self.until, other.until]), self.entries,
        )  # fmt: skip

    def take(self, places: Indexes) -> "Rows":
        return Rows(
            self.function, [*map(self.keys.__getitem__, places.tolist())], self.values.take(pa.array(places)),
            self.written[places], self.until[places], self.entries,
        )  # fmt: skip


class Chunk:
    """Rows with consecutive numbers, in the order of their last use. Some of them may have been replaced or moved."""

    def __init__(self, first: int, rows: Rows, live: int, numbers: Indexes | None = None) -> None:
        """`first` is the number of the first row. `numbers` has those of all rows, unless they are consecutive."""
        self.first = first
        self.rows = rows
        self.live = live
        """Number of rows that are found under their key."""
        self._numbers = numbers
        self.end = first + len(rows.keys) if numbers is None else int(numbers[-1]) + 1
        """All numbers are smaller than this."""
        self.value_bytes: int = rows.values.nbytes

    @property
    def size(self) -> int:
        """Approximate bytes that it takes."""
        return self.value_bytes + ROW_BYTES * self.count + (ENTRY_BYTES - ROW_BYTES) * self.live + CHUNK_BYTES

    @property
    def count(self) -> int:
        """Number of rows, also those that are not found under their key."""
        return len(self.rows.keys)

    @property
    def consecutive(self) -> bool:
        return self._numbers is None

    @property
    def numbers(self) -> Iterable[int]:
        """The number of each row."""
        return range(self.first, self.end) if self._numbers is None else self._numbers.tolist()

    def places(self, numbers: Indexes) -> Indexes:
        """The position of each number."""
        return numbers - self.first if self._numbers is None else np.searchsorted(self._numbers, numbers)

    def found(self, places: Mapping[bytes, int]) -> Indexes:
        """The positions of the rows that are found under their key in `places`, which has the numbers of keys."""
        same = map(operator.eq, map(places.get, self.rows.keys), self.numbers)
        return np.flatnonzero(np.fromiter(same, np.bool_, self.count))

    def part(self, chosen: Indexes) -> "Chunk":
        """The rows at some positions, with their numbers. All of them are found under their key."""
        numbers = np.fromiter(self.numbers, np.int64, self.count)[chosen]
        return Chunk(self.first, self.rows.take(chosen), len(chosen), numbers)


@dataclass(slots=True)
class Recalled:
    """Rows of one chunk that were looked up."""

    rows: Indexes
    """Their positions among the keys that were looked up."""
    numbers: Indexes
    chunk: Chunk
    places: Indexes
    """Their positions in the chunk."""
    _taken: Rows | None = None

    @property
    def size(self) -> int:
        """Approximate bytes of their values."""
        return self.chunk.value_bytes * len(self.places) // self.chunk.count

    def taken(self) -> Rows:
        """The rows. The first call copies them, on any thread."""
        if self._taken is None:
            self._taken = self.chunk.rows.take(self.places)
        return self._taken
