"""Blocks hold outcomes that were kept together, column by column, so that a row costs no object of its own."""

import bisect
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from udf_server.base.key_value_store import ENTRY_BYTES

__all__ = ["Block", "Blocks", "Indexes", "Recalled", "StoredRows"]

BLOCK_BYTES = 1_000
"""Approximate bytes that a block takes in addition to its rows."""
ROW_BYTES = 90
"""Those of ENTRY_BYTES that the block of a row takes, for its key and times: they stay when the row was replaced."""
MERGED_ROWS, MERGED_PART = 8_192, 64
"""Neighbouring blocks are merged up to this number of rows, and up to this part of the bytes of the store."""
MERGED_BYTES = 1 << 20
"""At most this many bytes of values are merged, because that holds up the event loop."""
SPARSE_PART = 4
"""A block of which at most this part is left is written again, so that the others take no room."""

Indexes = NDArray[np.int64]
Times = NDArray[np.float64]
Places = Mapping[str, Mapping[bytes, int]]
"""The number of each key, by function."""


@dataclass(frozen=True, slots=True)
class StoredRows:
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

    def joins(self, other: "StoredRows") -> bool:
        """Whether both can be in one block."""
        same = self.function == other.function and self.entries is other.entries
        return same and self.values.type == other.values.type

    def and_(self, other: "StoredRows") -> "StoredRows":
        """These rows, then others."""
        return StoredRows(
            self.function, [*self.keys, *other.keys], pa.concat_arrays([self.values, other.values]),
            np.concatenate([self.written, other.written]), np.concatenate([self.until, other.until]), self.entries,
        )  # fmt: skip

    def take(self, places: Indexes) -> "StoredRows":
        return StoredRows(
            self.function, [*map(self.keys.__getitem__, places.tolist())], self.values.take(pa.array(places)),
            self.written[places], self.until[places], self.entries,
        )  # fmt: skip


class Block:
    """Rows with consecutive numbers, in the order of their last use. Some of them may have been replaced or moved."""

    def __init__(self, first: int, rows: StoredRows, live: int, numbers: Indexes | None = None) -> None:
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
        return self.value_bytes + ROW_BYTES * self.count + (ENTRY_BYTES - ROW_BYTES) * self.live + BLOCK_BYTES

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

    def part(self, chosen: Indexes) -> "Block":
        """The rows at some positions, with their numbers. All of them are found under their key."""
        numbers = np.fromiter(self.numbers, np.int64, self.count)[chosen]
        return Block(self.first, self.rows.take(chosen), len(chosen), numbers)


@dataclass(slots=True)
class Recalled:
    """Rows of one block that were looked up."""

    rows: Indexes
    """Their positions among the keys that were looked up."""
    numbers: Indexes
    block: Block
    places: Indexes
    """Their positions in the block."""
    _taken: StoredRows | None = None

    @property
    def size(self) -> int:
        """Approximate bytes of their values."""
        return self.block.value_bytes * len(self.places) // self.block.count

    def taken(self) -> StoredRows:
        """The rows. The first call copies them, on any thread."""
        if self._taken is None:
            self._taken = self.block.rows.take(self.places)
        return self._taken


class Blocks:
    """Blocks in the order of their numbers, which is that of use. None is without rows that are found."""

    def __init__(self, places: Places, max_bytes: int) -> None:
        self._places = places
        self._merged_bytes = min(MERGED_BYTES, max_bytes // MERGED_PART)
        self._blocks: list[Block] = []
        self.bytes = 0
        """Approximate bytes of all that is kept."""

    def __len__(self) -> int:
        return len(self._blocks)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._blocks.copy())

    def add(self, first: int, rows: StoredRows, live: int) -> None:
        """Add rows, which have the next numbers. `live` of them are found, or were until now."""
        self._blocks.append(block := Block(first, rows, live))
        self.bytes += block.size
        while len(self._blocks) > 1 and self._merges(*self._blocks[-2:]):
            one, two = self._blocks[-2:]
            self._blocks[-2:] = [merged := Block(one.first, one.rows.and_(two.rows), one.live + two.live)]
            self.bytes += merged.size - one.size - two.size

    def of(self, numbers: Indexes) -> Iterator[tuple[Block, Indexes]]:
        """The blocks of numbers, each with the positions of its numbers."""
        order = np.argsort(numbers, kind="stable")
        ordered, start = numbers[order], 0
        while start < len(ordered):
            block = self._blocks[self._index(int(ordered[start]))]
            end = int(np.searchsorted(ordered, block.end))
            yield block, order[start:end]
            start = end

    def lose(self, numbers: Indexes) -> None:
        """Count rows no more that are not found under their key."""
        for block, chosen in list(self.of(numbers)):
            before = block.size
            block.live -= len(chosen)
            self.bytes += block.size - before
            if not block.live:
                del self._blocks[self._index(block.first)]
                self.bytes -= block.size
            elif block.live * SPARSE_PART < block.count:
                self._reduce(block, block.found(self._places[block.rows.function]))

    def take(self, limit: int) -> Iterator[tuple[str, list[bytes]]]:
        """Remove the rows that were not used for longest, until the others have at most this many bytes.

        Yields the function and keys of those that are found, block by block. Leave these keys out of the places.
        """
        while self.bytes > limit and self._blocks:
            block = self._blocks[0]
            count, function = block.count, block.rows.function
            evicted = min(-(-(self.bytes - limit) * count // block.size), count)
            found = block.found(self._places[function])
            left = found[found >= evicted]
            yield function, [*map(block.rows.keys.__getitem__, found[: len(found) - len(left)].tolist())]
            if len(left):
                self._reduce(block, left)
            else:
                del self._blocks[0]
                self.bytes -= block.size

    def _merges(self, before: Block, last: Block) -> bool:
        """Whether to merge neighbours. Each row is copied a few times only, because the first is not much larger."""
        count, added = before.count, last.count
        return (
            count <= 2 * added
            and count + added <= MERGED_ROWS
            and before.value_bytes + last.value_bytes <= self._merged_bytes
            and before.consecutive and last.consecutive and before.end == last.first
            and before.rows.joins(last.rows)
        )  # fmt: skip

    def _index(self, number: int) -> int:
        """The position of the block of a number."""
        return bisect.bisect_right(self._blocks, number, key=operator.attrgetter("first")) - 1

    def _reduce(self, block: Block, places: Indexes) -> None:
        """Leave only some rows in a block, all of which are found under their key."""
        self._blocks[self._index(block.first)] = reduced = block.part(places)
        self.bytes += reduced.size - block.size
