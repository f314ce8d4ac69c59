"""Runs bundles of a VectorizedAggregateFunction."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.segments import AppliedField, list_of
from remote_udf.types import spelled
from udf_server.aggregate.base import VectorizedAggregateFunction
from udf_server.aggregate.bundle import Bundle
from udf_server.aggregate.declaration import Aggregate
from udf_server.runners.calling import (
    MalformedResult,
    WrongResult,
    converted,
    from_foreign,
    require_length,
    validated,
)
from udf_server.values.codecs import Codec

__all__ = ["apply_vectorized"]

LONG_ROWS = 32
"""Segments with more rows than this have their values after each row by merging."""


def apply_vectorized(
    aggregate: Aggregate, bundle: Bundle, fields: Sequence[AppliedField]
) -> dict[AppliedField, pa.Array]:
    """The wanted parts per segment. Raises WrongResult for arrays of another length or type."""
    run = _Run(aggregate)
    arrays: dict[AppliedField, pa.Array] = {}
    before = None
    if AppliedField.STARTING_VALUE in fields or AppliedField.UPDATED_VALUES in fields:
        before = run.accumulators(bundle.without_rows())
    if AppliedField.STARTING_VALUE in fields:
        arrays[AppliedField.STARTING_VALUE] = run.values(before)
    if AppliedField.UPDATED_VALUES in fields:
        after, arrays[AppliedField.UPDATED_VALUES] = run.each_row(bundle, before)
    else:
        after = run.accumulators(bundle)
    arrays[AppliedField.ACCUMULATOR] = after
    if AppliedField.FINAL_VALUE in fields:
        arrays[AppliedField.FINAL_VALUE] = run.values(after)
    return arrays


class _Run:
    def __init__(self, aggregate: Aggregate) -> None:
        assert isinstance(aggregate.implementation, VectorizedAggregateFunction)
        self._function = aggregate.implementation
        self._accumulator, self._value = aggregate.accumulator, aggregate.result
        self._merges = aggregate.spec.supports_merging

    def accumulators(self, bundle: Bundle) -> pa.Array:
        result, of = self._function.apply_bundle(bundle), "accumulators, one per segment"
        return _converted(result, bundle.segments, self._accumulator, "apply_bundle", of)

    def values(self, accumulators: pa.Array) -> pa.Array:
        result, of = self._function.get_values(accumulators), "values, one per accumulator"
        return _converted(result, len(accumulators), self._value, "get_values", of)

    def each_row(self, bundle: Bundle, accumulators: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The accumulators after all rows, and the list of values after each row, per segment."""
        longest = int(np.diff(bundle.offsets).max(initial=0))
        if longest > LONG_ROWS and self._merges and bundle.retracts is None:
            return self._by_merging(bundle, accumulators, longest)
        return self._by_steps(bundle, accumulators)

    def _by_merging(self, bundle: Bundle, accumulators: pa.Array, longest: int) -> tuple[pa.Array, pa.Array]:
        """Each row by itself, then each merged with the one before it, those with the two before them, and so on.

        A segment of n rows takes log n calls instead of n (a prefix sum by Hillis and Steele).
        """
        rows = bundle.rows
        first = bundle.offsets[:-1][np.diff(bundle.offsets) > 0]
        begins = np.zeros(rows, np.int64)
        begins[first] = 1
        present = np.flatnonzero(np.diff(bundle.offsets) > 0)
        keys = bundle.key.take(pa.array(bundle.segment_of_row))
        alone = replace(
            bundle, segments=rows, key=keys, offsets=np.arange(rows + 1),
            accumulators=accumulators.take(pa.array(present)),
            accumulator_offsets=np.concatenate(([0], np.cumsum(begins))),
        )  # fmt: skip
        found = self.accumulators(alone)
        position = np.arange(rows) - bundle.offsets[:-1][bundle.segment_of_row]
        distance = 1
        while distance < longest:
            later = np.flatnonzero(position >= distance)
            pairs = np.stack((later - distance, later), axis=1).ravel()
            merged = self.accumulators(
                replace(
                    alone.without_rows(), segments=len(later), key=keys.take(pa.array(later)),
                    offsets=np.zeros(len(later) + 1, np.int64), accumulators=found.take(pa.array(pairs)),
                    accumulator_offsets=np.arange(0, 2 * len(later) + 1, 2),
                )
            )  # fmt: skip
            places = np.arange(rows)
            places[later] = rows + np.arange(len(later))
            found = pa.concat_arrays([found, merged]).take(pa.array(places))
            distance *= 2
        places = rows + np.arange(bundle.segments)
        places[present] = bundle.offsets[1:][present] - 1
        after = pa.concat_arrays([found, accumulators]).take(pa.array(places))
        return after, self._lists(bundle, self.values(found))

    def _by_steps(self, bundle: Bundle, accumulators: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The first rows of all segments together, then the second ones, and so on."""
        lengths = np.diff(bundle.offsets)
        parts: list[pa.Array] = []
        places: list[npt.NDArray[np.int64]] = []
        # Segments by falling length, so that those with a further row are always the first ones.
        order = np.argsort(-lengths, kind="stable")
        current = accumulators.take(pa.array(order))
        for step in range(int(lengths.max(initial=0))):
            chosen = order[: int(np.count_nonzero(lengths > step))]
            rows = bundle.offsets[chosen] + step
            changed = self.accumulators(bundle.row_of_each(chosen, rows, current.slice(0, len(chosen))))
            parts.append(self.values(changed))
            places.append(rows)
            rest = current.slice(len(chosen))
            current = pa.concat_arrays([changed, rest]) if len(rest) else changed
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        flat = pa.concat_arrays(parts) if parts else pa.array([], self._value.type)
        if places:
            flat = flat.take(pa.array(np.argsort(np.concatenate(places))))
        return current.take(pa.array(back)), self._lists(bundle, flat)

    def _lists(self, bundle: Bundle, values: pa.Array) -> pa.Array:
        """Values of rows as a list per segment."""
        offsets = pa.array(bundle.offsets.astype(np.int32))
        return pa.ListArray.from_arrays(offsets, values, type=list_of(self._value.type))


def _converted(result: Any, rows: int, codec: Codec, verb: str, of: str) -> pa.Array:
    """The array in its declared type, valid and of this length; `of` says what it has one of for each row."""
    type_ = codec.type
    try:
        if not isinstance(result, (pa.Array, pa.ChunkedArray)):
            result = _sized(result, type_)
        require_length(len(result), rows, of)
        array, failures = converted(validated(_array(result, codec)), codec)
        if not failures:
            # A copy: the next verb may write into the memory of the array again.
            return pa.concat_arrays([array])
        # If no value fits, calls for fewer segments are of no use.
        kind: type[WrongResult] = MalformedResult if array.null_count == len(array) else WrongResult
        error = next(iter(failures.values()))
    except WrongResult as wrong:
        raise type(wrong)(wrong.code, f"{verb}: {wrong}") from wrong
    except Exception as strange:
        # Attribute access on the author's records runs the author's code, which may raise anything.
        kind, error = WrongResult, strange
    found = spelled(result.type) if isinstance(result, (pa.Array, pa.ChunkedArray)) else type(result).__name__
    raise kind(ErrorCode.RESULT_TYPE, f"{verb}: expected {spelled(type_)}, got {found}: {error}") from error


def _array(result: Any, codec: Codec) -> Any:
    if isinstance(result, (pa.Array, pa.ChunkedArray)):
        return result
    if not isinstance(result, (list, tuple)):
        result = from_foreign(result)
        if isinstance(result, (pa.Array, pa.ChunkedArray)):
            return result
    # pyarrow would truncate 1.5 in a list to 1, and take a datetime without a zone for one in UTC.
    return codec.encode([each.as_py() if isinstance(each, pa.Scalar) else each for each in result])


def _sized(result: Any, type_: pa.DataType) -> Any:
    try:
        return result if hasattr(result, "__len__") else list(result)
    except TypeError as error:
        why = f"expected an array of {spelled(type_)}, got a value of type {type(result).__name__}"
        raise MalformedResult(ErrorCode.RESULT_TYPE, why) from error
