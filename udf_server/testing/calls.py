"""Calls of a test: the columns and bundles that they send, as a client would, and what they bring.

What they bring are values, the errors of rows and segments without one, and metrics of plugins.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.ddl import parse_type
from remote_udf.functions import NullCall
from remote_udf.outcomes import RowError
from remote_udf.row_kinds import CODE_TYPE, ROW_KIND, RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, AppliedField, list_of
from remote_udf.v1 import message_pb2 as pb
from udf_server.aggregate.base import BundledKeySegment, BundledKeySegmentApplied
from udf_server.aggregate.declaration import Aggregate
from udf_server.declaring.functions import Function
from udf_server.plugins.metrics import PLUGIN_METRICS
from udf_server.values.values import Key, codec_for_type

__all__ = [
    "AppliedResult",
    "Rows",
    "RunResult",
    "applied_segments",
    "argument_column",
    "bundles_of",
    "metric_value",
    "segment_columns",
]

Rows = Sequence[Any]
"""Each row is a tuple of arguments, or the argument if there is only one."""


def argument_column(function: Function, position: int, values: Any) -> pa.Array:
    """The values in the first type of the parameter that can hold them, or else in the type that Arrow infers."""
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    function.spec.check_count(max(position + 1, function.spec.required_parameters))
    for codec in function.parameters[min(position, len(function.parameters) - 1)]:
        try:
            return codec.encode(list(values))
        except (TypeError, ValueError, OverflowError, pa.ArrowException):
            continue
    return pa.array(list(values))


def segment_columns(
    aggregate: Aggregate, segments: Sequence[BundledKeySegment], key: str | pa.DataType | None
) -> dict[str, pa.Array]:
    """The columns of a bundle; see message.proto. Columns that are empty or that the function does not see are skipped.

    If the function skips nulls, rows with a null argument are skipped.

    Raises:
        ValueError: Keys or rows have different widths.
    """
    columns = {}
    if aggregate.spec.sees_key and (keys := _keys([segment.key for segment in segments], key)).type.num_fields:
        columns[KEY] = keys
    if any(segment.accumulators for segment in segments):
        flat = aggregate.accumulator.encode([each for segment in segments for each in segment.accumulators])
        columns[ACCUMULATORS] = _lists(flat, [len(segment.accumulators) for segment in segments])
    if any(segment.rows for segment in segments) or ACCUMULATORS not in columns:
        columns[ROWS] = _rows(aggregate, segments)
    return columns


def _keys(keys: Sequence[Key], given: str | pa.DataType | None) -> pa.Array:
    width = len(keys[0]) if keys else 0
    if any(len(key) != width for key in keys):
        raise ValueError(f"keys of different widths: {sorted({len(key) for key in keys})}")
    if given is not None:
        type_ = parse_type(f"struct<{given}>") if isinstance(given, str) else given
        names = [field.name for field in type_]
        return codec_for_type(type_).encode([dict(zip(names, key, strict=True)) for key in keys])
    columns = [pa.array([key[index] for key in keys]) for index in range(width)]
    names = [f"key{index}" for index in range(width)]
    return pa.StructArray.from_arrays(columns, names) if columns else pa.array([{}] * len(keys), pa.struct([]))


def _rows(aggregate: Aggregate, segments: Sequence[BundledKeySegment]) -> pa.Array:
    kinds: list[int] = []
    rows: list[tuple[Any, ...]] = []
    lengths = []
    for segment in segments:
        present = [
            (kind, row)
            for kind, row in zip(segment.row_kinds or [RowKind.INSERT] * len(segment.rows), segment.rows, strict=True)
            if aggregate.spec.nulls is NullCall.CALL or None not in row
        ]
        lengths.append(len(present))
        kinds += [RowKind(kind).code for kind, _ in present]
        rows += [row for _, row in present]
    width = len(rows[0]) if rows else aggregate.spec.required_parameters
    if any(len(row) != width for row in rows):
        raise ValueError(f"rows of different widths: {sorted({len(row) for row in rows})}")
    columns = [argument_column(aggregate, index, [row[index] for row in rows]) for index in range(width)]
    fields = [pa.field(str(index), column.type) for index, column in enumerate(columns)]
    if any(segment.row_kinds is not None for segment in segments):
        columns, fields = [pa.array(kinds, CODE_TYPE), *columns], [pa.field(ROW_KIND, CODE_TYPE), *fields]
    if not columns:
        return _lists(pa.array([{}] * len(rows), pa.struct([])), lengths)
    return _lists(pa.StructArray.from_arrays(columns, fields=fields), lengths)


def _lists(flat: pa.Array, lengths: Sequence[int]) -> pa.Array:
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.ListArray.from_arrays(offsets, flat, type=list_of(flat.type))


def bundles_of(
    rows: Rows, keys: Sequence[Hashable] | None, row_kinds: Sequence[RowKind | str] | None, size: int | None
) -> Iterator[dict[Hashable, BundledKeySegment]]:
    """Yield the segments by key, for each `size` rows of the input; rows of a key keep their order."""
    for name, column in (("keys", keys), ("row_kinds", row_kinds)):
        if column is not None and len(column) != len(rows):
            raise ValueError(f"{len(rows)} rows, but {len(column)} {name}")
    step = size or max(len(rows), 1)
    for first in range(0, len(rows), step):
        bundle: dict[Hashable, BundledKeySegment] = {}
        for index in range(first, min(first + step, len(rows))):
            key = () if keys is None else keys[index]
            if key not in bundle:
                bundle[key] = BundledKeySegment((), [], row_kinds=None if row_kinds is None else [])
            segment, row = bundle[key], rows[index]
            segment.rows.append(row if isinstance(row, tuple) else (row,))  # type: ignore[attr-defined]
            if row_kinds is not None:
                segment.row_kinds.append(RowKind(row_kinds[index]))  # type: ignore[union-attr]
        yield bundle


@dataclass(frozen=True)
class RunResult:
    """Outcomes of rows. `values` has one value per row; that of a failed row is null, and `errors` has its error."""

    values: pa.Array
    errors: Mapping[int, RowError]
    counts: pb.StreamCounts

    def to_pylist(self) -> list[Any]:
        """Return the values. Raises AssertionError, with the first error, if a row failed."""
        _refuse_errors(self.errors, "row")
        return self.values.to_pylist(maps_as_pydicts="strict")


@dataclass(frozen=True)
class AppliedResult:
    """Outcomes of segments. `applied` has one per segment; that of a failed one is None, and `errors` has its error.

    Parts that were not requested are None.
    """

    applied: Sequence[BundledKeySegmentApplied | None]
    errors: Mapping[int, RowError]
    counts: pb.StreamCounts

    def to_list(self) -> list[BundledKeySegmentApplied]:
        """Return the applied segments. Raises AssertionError, with the first error, if a segment failed."""
        _refuse_errors(self.errors, "segment")
        return [each for each in self.applied if each is not None]


def applied_segments(
    aggregate: Aggregate, segments: Sequence[BundledKeySegment], wanted: Sequence[AppliedField], result: RunResult
) -> list[BundledKeySegmentApplied | None]:
    """The outcomes as the Python objects that an author would have returned. A failed segment has None."""
    applied: list[BundledKeySegmentApplied | None] = []
    for row, segment in enumerate(segments):
        if row in result.errors:
            applied.append(None)
            continue
        parts = result.values.slice(row, 1).flatten()
        each = BundledKeySegmentApplied(None)
        for field, part in zip(wanted, parts, strict=True):
            if field is not AppliedField.UPDATED_VALUES or segment.updated_values_after_each_row:
                setattr(each, field.value, aggregate.applied_codecs[field].decode(part)[0])
        applied.append(each)
    return applied


def _refuse_errors(errors: Mapping[int, RowError], what: str) -> None:
    for row, error in sorted(errors.items()):
        raise AssertionError(f"{what} {row}: {error.code}: {error.message}\n{error.traceback}")


def metric_value(sample: str, **labels: object) -> float:
    """The value of a metric of a plugin, in this process since its start. Compare the values before and after a call.

    Args:
        sample: A name as Prometheus has it: a counter's ends with `_total`, a histogram has `_count` and `_sum`.
        **labels: Values of labels, `function` and `version` among them. Series that differ in others are added.

    Returns:
        The sum; 0.0 if nothing was counted.
    """
    wanted = {label: str(value) for label, value in labels.items()}
    return sum(
        each.value
        for metric in PLUGIN_METRICS.collect()
        for each in metric.samples
        if each.name == sample and wanted.items() <= each.labels.items()
    )
