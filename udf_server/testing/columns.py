"""Converts the values of a test to Arrow columns and bundles, as a client would send them."""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.ddl import parse_type
from remote_udf.functions import NullCall
from remote_udf.row_kinds import CODE_TYPE, ROW_KIND, RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, list_of
from udf_server.aggregate.base import BundledKeySegment
from udf_server.aggregate.declaration import Aggregate
from udf_server.declaring.functions import Function
from udf_server.values.values import Key, codec_for_type

__all__ = ["Rows", "argument_column", "bundles_of", "segment_columns"]


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


Rows = Sequence[Any]
"""Each row is a tuple of arguments, or the argument if there is only one."""


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
