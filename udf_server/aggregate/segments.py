"""Segments as objects of Python: read from a bundle, applied by the classic methods, and written as Arrow arrays."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.row_kinds import RowKind
from remote_udf.segments import ROWS, AppliedField
from udf_server.aggregate.base import BundledKeySegment, BundledKeySegmentApplied
from udf_server.aggregate.bundle import Bundle, Integers
from udf_server.aggregate.declaration import Aggregate
from udf_server.base.failures import describe
from udf_server.runners.calling import MalformedResult, WrongResult, require_length
from udf_server.values.codecs import Codec
from udf_server.values.records import StructCodec, is_frozen
from udf_server.values.values import Key, codec_for_type

__all__ = ["SegmentObjects"]

T = TypeVar("T")
_KINDS = list(RowKind)


class SegmentObjects:
    """The segments of one stream, and what is wanted of each."""

    def __init__(self, aggregate: Aggregate, schema: pa.Schema, fields: Sequence[AppliedField]) -> None:
        self._aggregate, self._fields = aggregate, fields
        self._methods = _ClassicMethods(aggregate, fields)
        row = list(schema.field(ROWS).type.value_type) if ROWS in schema.names else []
        types = [part.type for part in row if part.name.isdecimal()]
        self._arguments = [aggregate.codec_for(position, type_) for position, type_ in enumerate(types)]
        """A codec per argument, in the type the caller sends it."""

    def read(self, bundle: Bundle) -> list[BundledKeySegment]:
        """A segment per row of the bundle."""
        columns = [codec.decode(column) for codec, column in zip(self._arguments, bundle.columns, strict=False)]
        rows = list(zip(*columns, strict=True)) if columns else [()] * bundle.rows
        kinds = None if bundle.kinds is None else [_KINDS[code] for code in bundle.kinds.tolist()]
        accumulators = _cut(self._aggregate.accumulator.decode(bundle.accumulators), bundle.accumulator_offsets)
        keys = _keys(bundle)
        offsets = bundle.offsets.tolist()
        updated = AppliedField.UPDATED_VALUES in self._fields
        return [
            BundledKeySegment(key, rows[start:stop], before, updated, None if kinds is None else kinds[start:stop])
            for key, start, stop, before in zip(keys, offsets, offsets[1:], accumulators, strict=False)
        ]

    def apply_classic(self, segments: Sequence[BundledKeySegment]) -> list[BundledKeySegmentApplied]:
        """One result per segment, by the classic methods. Only the requested values are computed."""
        return [self._methods.apply(segment) for segment in segments]

    def arrays(
        self, applied: Sequence[BundledKeySegmentApplied], segments: Sequence[BundledKeySegment]
    ) -> dict[AppliedField, pa.Array]:
        """The wanted parts of each result. Raises WrongResult for what is not one result per segment, in its types."""
        if not isinstance(applied, (list, tuple)):
            raise MalformedResult(
                ErrorCode.RESULT_TYPE,
                f"expected a list of {len(segments)} applied segments, got a value of type {type(applied).__name__}",
            )
        require_length(len(applied), len(segments), "applied segments, one per segment")
        for each in applied:
            if not isinstance(each, BundledKeySegmentApplied):
                raise WrongResult(
                    ErrorCode.RESULT_TYPE,
                    f"expected a BundledKeySegmentApplied, got a value of type {type(each).__name__}",
                )
        arrays = {}
        for field in self._fields:
            values = [getattr(each, field.value) for each in applied]
            if field is AppliedField.UPDATED_VALUES:
                values = _updated(values, segments)
            try:
                arrays[field] = self._aggregate.applied_codecs[field].encode(values)
            except Exception as error:
                raise WrongResult(ErrorCode.RESULT_TYPE, f"{field.value}: {describe(error)}") from error
        return arrays


def _updated(values: Sequence[Sequence[T]], segments: Sequence[BundledKeySegment]) -> list[list[T]]:
    lists = []
    for each, segment in zip(values, segments, strict=True):
        if not isinstance(each, (list, tuple)):
            raise WrongResult(
                ErrorCode.RESULT_TYPE,
                f"updated_values_after_each_row: expected a list, got a value of type {type(each).__name__}",
            )
        found = list(each)
        if len(found) != len(segment.rows):
            raise WrongResult(
                ErrorCode.RESULT_LENGTH,
                f"expected {len(segment.rows)} updated_values_after_each_row, one per row, got {len(found)}",
            )
        lists.append(found)
    return lists


def _keys(bundle: Bundle) -> list[Key]:
    if not bundle.key.type.num_fields:
        return [()] * bundle.segments
    return list(zip(*(codec_for_type(part.type).decode(part) for part in bundle.key.flatten()), strict=True))


def _cut(items: list[T], offsets: Integers) -> list[list[T]]:
    ends = offsets.tolist()
    return [items[start:stop] for start, stop in itertools.pairwise(ends)]


class _ClassicMethods:
    def __init__(self, aggregate: Aggregate, fields: Sequence[AppliedField]) -> None:
        self._function = aggregate.implementation
        self._name = aggregate.spec.key
        # A forgotten `return` would lose rows silently.
        self._returned = not _changes_in_place(aggregate.accumulator)
        self._starting = AppliedField.STARTING_VALUE in fields
        self._final = AppliedField.FINAL_VALUE in fields
        self._copied = aggregate.result.copied

    def apply(self, segment: BundledKeySegment) -> BundledKeySegmentApplied:
        function = self._function
        accumulator = self._before(segment.accumulators)
        starting = self._value(accumulator) if self._starting else None
        updated = []
        if segment.row_kinds is None and not segment.updated_values_after_each_row:
            accumulate = function.accumulate
            for row in segment.rows:
                changed = accumulate(accumulator, *row)
                if changed is not None:
                    accumulator = changed
                elif self._returned:
                    self._missing("accumulate")
        else:
            for adds, row in segment.changes():
                accumulator = self._changed(function.accumulate if adds else function.retract, accumulator, *row)
                if segment.updated_values_after_each_row:
                    updated.append(self._value(accumulator))
        final = self._value(accumulator) if self._final else None
        return BundledKeySegmentApplied(accumulator, starting, final, updated)

    def _value(self, accumulator: Any) -> Any:
        # Values are encoded after the last row, and `get_value` may return the accumulator itself.
        return self._copied(self._function.get_value(accumulator))

    def _before(self, accumulators: Sequence[Any]) -> Any:
        if not accumulators:
            return self._function.create_accumulator()
        if len(accumulators) == 1:
            return accumulators[0]
        return self._changed(self._function.merge, accumulators[0], list(accumulators[1:]))

    def _changed(self, verb: Callable[..., Any], accumulator: Any, *arguments: Any) -> Any:
        """The accumulator after a verb, which returned it or changed it in place."""
        changed = verb(accumulator, *arguments)
        if changed is None and self._returned:
            self._missing(verb.__name__)
        return accumulator if changed is None else changed

    def _missing(self, verb: str) -> None:
        raise TypeError(
            f"function {self._name}: {verb} returned None; an accumulator that cannot be changed in place must be "
            "returned"
        )


def _changes_in_place(accumulator: Codec) -> bool:
    if isinstance(accumulator, StructCodec) and accumulator.record is not None:
        return not is_frozen(accumulator.record)
    return pa.types.is_nested(accumulator.type)
