"""Takes rows of columns in pieces of bounded size: Arrow's offsets end at 2 GB, and `take` may repeat long values."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["PIECE_BYTES", "WHOLE_BYTES", "Integers", "LongColumn", "at_rows", "cuts", "row_bytes"]

Integers = npt.NDArray[np.int64]
PIECE_BYTES = 32 << 20
"""Maximum bytes of a piece, unless a single row has more."""
_TEXTS = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
WHOLE_BYTES = 1 << 29
"""Smaller columns are joined to one chunk, because taking rows from it is fastest."""


def row_bytes(array: pa.Array) -> Integers:
    """The approximate bytes of each value."""
    type_ = array.type
    if pa.types.is_struct(type_):
        return sum((row_bytes(part) for part in array.flatten()), np.ones(len(array), np.int64))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_) or pa.types.is_map(type_):
        inner = row_bytes(array.keys) + row_bytes(array.items) if pa.types.is_map(type_) else row_bytes(array.values)
        offsets = array.offsets.to_numpy()
        # Offsets count from the beginning of the child.
        return np.diff(np.concatenate(([0], np.cumsum(inner)))[offsets]) + 4
    if any(check(type_) for check in _TEXTS):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64) + 4
    return np.full(len(array), max(array.nbytes // max(len(array), 1), 1), np.int64)


def cuts(widths: Integers, most: int = PIECE_BYTES) -> Iterator[tuple[int, int]]:
    """Ranges of rows, each with at most about `most` bytes and at least one row."""
    ends = np.cumsum(widths)
    begin = 0
    while begin < len(widths):
        before = int(ends[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(ends, before + most, side="right")), begin + 1)
        yield begin, end
        begin = end


def at_rows(values: pa.Array, rows: Integers, count: int) -> pa.Array:
    """A column of `count` rows with these values at these positions (the last of a position) and null elsewhere."""
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(values))
    return values.take(pa.array(places, mask=places < 0))


class LongColumn:
    """A column of any size from which rows are taken many times. The rows of one `take` must fit one array."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        chunks = [chunk for chunk in column.chunks if len(chunk)]
        if len(chunks) != 1 and column.nbytes < WHOLE_BYTES:
            chunks = [pa.concat_arrays(chunks)] if chunks else [pa.array([], column.type)]
        self._chunks = chunks
        self._starts = np.cumsum([0, *map(len, chunks)])[:-1]
        self.bytes: int = column.nbytes

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    def row_bytes(self) -> Integers:
        """The approximate bytes of each row."""
        return np.concatenate([row_bytes(chunk) for chunk in self._chunks])

    def take(self, rows: Integers) -> pa.Array:
        """These rows, in this order."""
        if len(self._chunks) == 1:
            return self._chunks[0].take(pa.array(rows))
        chunk = np.searchsorted(self._starts, rows, side="right") - 1
        order = np.argsort(chunk, kind="stable")
        present, firsts = np.unique(chunk[order], return_index=True)
        parts = [
            self._chunks[number].take(pa.array(rows[places] - self._starts[number]))
            for number, places in zip(present.tolist(), np.split(order, firsts[1:]), strict=False)
        ]
        found = pa.concat_arrays(parts) if parts else self._chunks[0].slice(0, 0)
        if len(present) <= 1:
            return found
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return found.take(pa.array(back))
