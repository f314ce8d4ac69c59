"""Multisets: all values of a key with their numbers of occurrences, so that any row can be retracted."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

import udf_server as udf
from udf_aggregates.columns import Doubles, Integers, doubles_of, signs_of

__all__ = ["MultisetFunction", "Sorted"]

FIELDS = ("values", "counts")


class Sorted:
    """The values of each accumulator in rising order; NaN is the greatest, as in Spark."""

    def __init__(self, accumulators: pa.StructArray) -> None:
        """Skips a value that was retracted more often than added."""
        lists, counts = accumulators.flatten()[:2]
        self._values: Doubles = lists.flatten().to_numpy(zero_copy_only=False)
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        times = np.maximum(counts.flatten().to_numpy(zero_copy_only=False), 0)
        self._ends: Integers = np.cumsum(times)
        borders = np.concatenate(([0], self._ends))[np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))]
        self._firsts = borders[:-1]
        self.counts: Integers = np.diff(borders)
        """How many values each accumulator has."""

    def take(self, places: Integers) -> Doubles:
        """Returns the value at a place, from 0, of each accumulator; any value if the accumulator is empty."""
        if not len(self._values):
            return np.zeros(len(places))
        found = np.searchsorted(self._ends, self._firsts + places, side="right")
        return self._values[np.minimum(found, len(self._values) - 1)]


class MultisetFunction(udf.VectorizedAggregateFunction):
    """A function of the sorted values of a key."""

    parameters = "v double"
    returns = "double"
    nulls = "skip"
    # Sorted by value, without counts of zero. A count is negative if a row was retracted before it was added, as
    # happens in a part of a changelog; merging the accumulators restores it.
    accumulator = "struct<values:array<double>,counts:array<bigint>>"

    def supports_retracting(self) -> bool:
        return True

    def supports_merging(self) -> bool:
        return True

    def apply_bundle(self, bundle: udf.Bundle) -> pa.Array:
        lists, counts = bundle.accumulators.flatten()[:2]
        lengths = pc.list_value_length(lists).to_numpy(zero_copy_only=False)
        before = np.repeat(bundle.segment_of_accumulator, lengths)
        segments = np.concatenate((before, bundle.segment_of_row))
        values = np.concatenate((lists.flatten().to_numpy(zero_copy_only=False), doubles_of(bundle.columns[0])))
        times = np.concatenate((counts.flatten().to_numpy(zero_copy_only=False), signs_of(bundle)))
        return _multisets(segments, values, times, bundle.segments)


def _multisets(segments: Integers, values: Doubles, times: Integers, count: int) -> pa.Array:
    """Returns `count` accumulators of values that occur this many times in this many segments."""
    places = _places(values)
    order = np.lexsort((places, segments))
    segments, values, times, places = segments[order], values[order], times[order], places[order]
    changes = (segments[1:] != segments[:-1]) | (places[1:] != places[:-1])
    starts = np.flatnonzero(np.concatenate((np.ones(min(len(order), 1), np.bool_), changes)))
    totals = np.add.reduceat(times, starts) if len(starts) else times
    kept = starts[totals != 0]
    lengths = np.bincount(segments[kept], minlength=count)
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    lists = [pa.ListArray.from_arrays(offsets, pa.array(part)) for part in (values[kept], totals[totals != 0])]
    return pa.StructArray.from_arrays(lists, FIELDS)


def _places(values: Doubles) -> npt.NDArray[np.int64]:
    """Returns integers in the order of the values: the bits of each value, inverted for values below zero."""
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(2**63 - 1))
