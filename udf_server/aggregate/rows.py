"""Bundles as Python segments, and Python results as arrays."""

import itertools
from collections.abc import Sequence
from typing import TypeVar

import pyarrow as pa

from remote_udf.errors import ErrorCode
from remote_udf.row_kinds import RowKind
from remote_udf.segments import AppliedField
from udf_server.aggregate.bundle import Bundle, Integers
from udf_server.aggregate.declaration import Aggregate
from udf_server.aggregate.segments import BundledKeySegment, BundledKeySegmentApplied
from udf_server.base.codecs import Codec
from udf_server.base.failures import describe
from udf_server.base.values import Key, ListCodec, codec_for_type
from udf_server.runners.returned import MalformedResult, WrongResult, require_length

__all__ = ["applied_arrays", "read_segments"]

T = TypeVar("T")
_KINDS = list(RowKind)


def read_segments(
    aggregate: Aggregate, arguments: Sequence[Codec], bundle: Bundle, fields: Sequence[AppliedField]
) -> list[BundledKeySegment]:
    """A segment per row of the bundle. `arguments` has the codec of each argument."""
    columns = [codec.decode(column) for codec, column in zip(arguments, bundle.columns, strict=False)]
    rows = list(zip(*columns, strict=True)) if columns else [()] * bundle.rows
    kinds = None if bundle.kinds is None else [_KINDS[code] for code in bundle.kinds.tolist()]
    accumulators = _cut(aggregate.accumulator.decode(bundle.accumulators), bundle.accumulator_offsets)
    keys = _keys(bundle)
    offsets = bundle.offsets.tolist()
    updated = AppliedField.UPDATED_VALUES in fields
    return [
        BundledKeySegment(key, rows[start:stop], before, updated, None if kinds is None else kinds[start:stop])
        for key, start, stop, before in zip(keys, offsets, offsets[1:], accumulators, strict=False)
    ]


def applied_arrays(
    aggregate: Aggregate,
    applied: Sequence[BundledKeySegmentApplied],
    segments: Sequence[BundledKeySegment],
    fields: Sequence[AppliedField],
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
                ErrorCode.RESULT_TYPE, f"expected a BundledKeySegmentApplied, got a value of type {type(each).__name__}"
            )
    codecs: dict[AppliedField, Codec] = {
        AppliedField.ACCUMULATOR: aggregate.accumulator,
        AppliedField.STARTING_VALUE: aggregate.result,
        AppliedField.FINAL_VALUE: aggregate.result,
        AppliedField.UPDATED_VALUES: ListCodec(aggregate.result),
    }
    arrays = {}
    for field in fields:
        values = [getattr(each, field.value) for each in applied]
        if field is AppliedField.UPDATED_VALUES:
            values = _updated(values, segments)
        try:
            arrays[field] = codecs[field].encode(values)
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
