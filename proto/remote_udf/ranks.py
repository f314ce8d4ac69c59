"""Ranks of values in Spark's ascending order, by which rows that ORDER BY holds are sorted."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Integers", "ranks", "sort_keys"]

Integers = npt.NDArray[np.int64]


def sort_keys(array: pa.Array, *, descending: bool, nulls_last: bool) -> tuple[Integers, Integers]:
    """Two numbers for each value: sorted by both in ascending order, the values have this order."""
    found = ranks(array)
    return ((found == 0) == nulls_last).astype(np.int64), -found if descending else found


def ranks(array: pa.Array) -> Integers:
    """The rank of each value from 1, equal for equal values; 0 for null.

    As in Spark, NaN is the largest number, -0.0 equals 0.0, and structs and arrays are compared part by part with nulls
    first. Arrow does not sort arrays, ignores the nulls of structs, and places NaN last in either direction.
    """
    if isinstance(array.type, pa.StructType):
        parts = (ranks(part).tolist() for part in array.flatten())
        return _of_tuples(array, list(zip([0] * len(array), *parts, strict=True)))
    if isinstance(array.type, pa.ListType):
        elements = ranks(array.flatten()).tolist()
        ends = np.cumsum(pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)).tolist()
        return _of_tuples(array, [tuple(elements[start:end]) for start, end in zip([0, *ends], ends, strict=False)])
    if array.null_count == len(array):
        return np.zeros(len(array), np.int64)
    return _with_nulls(array, pc.rank(array, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64))


def _of_tuples(array: pa.Array, parts: list[tuple[int, ...]]) -> Integers:
    order = {value: rank for rank, value in enumerate(sorted(set(parts)), 1)}
    return _with_nulls(array, np.fromiter((order[part] for part in parts), np.int64, len(parts)))


def _with_nulls(array: pa.Array, found: Integers) -> Integers:
    return np.where(array.is_valid().to_numpy(zero_copy_only=False), found, 0)
