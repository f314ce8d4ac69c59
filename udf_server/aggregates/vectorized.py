"""Runs bundles of a VectorizedAggregateFunction."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.segments import AppliedField, list_of
from remote_udf.types import spelled
from udf_server.aggregates.base import VectorizedAggregateFunction
from udf_server.aggregates.bundle import Bundle
from udf_server.aggregates.declaration import Aggregate
from udf_server.runners.isolation import WrongResult
from udf_server.values import Codec

__all__ = ["apply_vectorized"]


def apply_vectorized(
    function: VectorizedAggregateFunction, aggregate: Aggregate, bundle: Bundle, fields: Sequence[AppliedField]
) -> dict[AppliedField, pa.Array]:
    """The wanted parts per segment. Raises WrongResult for arrays of another length or type."""
    run = _Run(function, aggregate)
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
    def __init__(self, function: VectorizedAggregateFunction, aggregate: Aggregate) -> None:
        self._function = function
        self._accumulator, self._value = aggregate.accumulator, aggregate.result

    def accumulators(self, bundle: Bundle) -> pa.Array:
        return _converted(self._function.apply_bundle(bundle), bundle.segments, self._accumulator, "apply_bundle")

    def values(self, accumulators: pa.Array) -> pa.Array:
        return _converted(self._function.get_values(accumulators), len(accumulators), self._value, "get_values")

    def each_row(self, bundle: Bundle, accumulators: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The accumulators after all rows, and the list of values after each row, per segment.

        The first rows of all segments are applied together, then the second ones, and so on.
        """
        lengths = np.diff(bundle.offsets)
        parts: list[pa.Array] = []
        places: list[Any] = []
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
        offsets = pa.array(bundle.offsets.astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, flat, type=list_of(self._value.type))
        return current.take(pa.array(back)), lists


def _converted(result: Any, rows: int, codec: Codec, verb: str) -> pa.Array:
    """The array in its declared type."""
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    type_ = codec.type
    try:
        array = result if isinstance(result, pa.Array) else pa.array(result, type_)
        if array.type != type_:
            array = array.cast(type_)
    except (pa.ArrowException, TypeError, ValueError) as error:
        found = spelled(result.type) if isinstance(result, pa.Array) else type(result).__name__
        raise WrongResult(ErrorCode.RESULT_TYPE, f"{verb}: expected {spelled(type_)}, got {found}: {error}") from error
    if len(array) != rows:
        raise WrongResult(ErrorCode.RESULT_LENGTH, f"{verb}: expected {rows} values, got {len(array)}")
    return array
