"""Finds the rows of a batch that have equal keys, without a Python loop over rows where possible."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_client.executor.engine.pieces import WHOLE_BYTES, Integers

__all__ = ["key_codes", "run_starts"]


NEAR = 4
"""Integers are near each other if their range is less than this many times their number."""


def key_codes(columns: Sequence[pa.ChunkedArray], rows: int) -> tuple[Integers, int]:
    """A code per row, from 0 up, which is equal for equal keys, and the number of distinct codes.

    Nulls are equal to each other, and so are NaNs, and -0.0 and 0.0, as in Spark's GROUP BY; in lists and
    maps the last two are distinguished. Without columns all rows have one key.
    """
    codes, count = np.zeros(rows, np.int64), 1 if rows else 0
    for column in columns:
        more, distinct = _column_codes(column.combine_chunks())
        if count <= 1:
            codes, count = more, distinct
        elif distinct > 1:
            codes, count = _compact(codes * distinct + more, count * distinct)
    return codes, count


def run_starts(columns: Sequence[pa.ChunkedArray], rows: int) -> Integers:
    """The positions, including 0, at which a new key begins in rows sorted by key."""
    if not rows:
        return np.zeros(0, np.int64)
    # Rows are processed in one piece unless it is too large for one array. A piece begins with the last row before it.
    pieces = 1 + sum(column.nbytes for column in columns) // WHOLE_BYTES
    step = max(rows // pieces, 1)
    found = [np.zeros(1, np.int64)]
    for begin in range(0, rows, step):
        first = max(begin - 1, 0)
        parts = [column.slice(first, begin + step - first) for column in columns]
        codes, _ = key_codes(parts, min(begin + step, rows) - first)
        found.append(np.flatnonzero(codes[1:] != codes[:-1]) + first + 1)
    return np.concatenate(found)


def _column_codes(column: pa.Array) -> tuple[Integers, int]:
    if pa.types.is_struct(column.type):
        return _struct_codes(column)
    if pa.types.is_nested(column.type):
        return _codes_of_objects(column.to_pylist())
    if pa.types.is_null(column.type):
        return np.zeros(len(column), np.int64), 1
    if pa.types.is_floating(column.type):
        # NaNs become one NaN and -0.0 becomes 0.0, because Arrow compares their bits.
        column = pc.if_else(
            pc.is_nan(column), pa.scalar(float("nan"), column.type), pc.add(column, pa.scalar(0.0, column.type))
        )
    if pa.types.is_signed_integer(column.type) and (found := _codes_of_near(column)) is not None:
        return found
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), max(len(encoded.dictionary), 1)


def _struct_codes(column: pa.Array) -> tuple[Integers, int]:
    """Codes of structs, by their fields. A null struct differs from a struct of nulls."""
    present = column.is_valid().to_numpy(zero_copy_only=False).astype(np.int64)
    codes, count = present, 2
    for part in column.flatten():
        more, distinct = _column_codes(part)
        codes, count = _compact(codes * distinct + more, count * distinct)
    return codes, count


def _codes_of_near(column: pa.Array) -> tuple[Integers, int] | None:
    """Codes of integers that are near each other, such as customer numbers, without hashing. None for others."""
    bounds = pc.min_max(column)
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is None or high - low >= NEAR * len(column):
        return None
    codes = pc.subtract(column.cast(pa.int64()), pa.scalar(low, pa.int64()))
    if column.null_count:
        return _compact(pc.fill_null(codes, high - low + 1).to_numpy(), high - low + 2)
    return _compact(codes.to_numpy(), high - low + 1)


def _codes_of_objects(values: list[object]) -> tuple[Integers, int]:
    known: dict[str, int] = {}
    codes = np.fromiter((known.setdefault(repr(value), len(known)) for value in values), np.int64, len(values))
    return codes, len(known)


def _compact(codes: Integers, bound: int) -> tuple[Integers, int]:
    """The same distinctions with consecutive codes from 0 up. All given codes are below `bound`.

    So another column can be added without overflow, and every code is that of an existing key.
    """
    if bound <= NEAR * len(codes) + 2:
        present = np.bincount(codes, minlength=bound) > 0
        count = int(np.count_nonzero(present))
        return (codes, count) if count == bound else ((np.cumsum(present) - 1)[codes], count)
    encoded = pc.dictionary_encode(pa.array(codes))
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
