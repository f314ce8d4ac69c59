"""Converts between an Arrow array and bytes per row, column by column instead of value by value.

The bytes of a row have one segment per buffer of the type: which elements are null (empty if none is), lengths of texts
and lists, and data. A header has the length of each segment. Equal values have equal bytes, and bytes of different
values of a type differ. The bytes of elements that are null are zero.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.raw_texts import as_list

__all__ = ["Malformed", "bytes_of_rows", "row_sizes", "rows_of_bytes"]

_Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
_Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


class Malformed(Exception):
    """The bytes are not those of rows of the type."""


def bytes_of_rows(array: pa.Array) -> pa.Array:
    """The bytes of each row, as a large_binary array without nulls. Raises TypeError for a type without equality."""
    rows = len(array)
    segments = list(_segments(array, np.arange(rows + 1)))
    if not segments:
        return pa.array([b""] * rows, pa.large_binary())
    header = np.stack([np.diff(offsets) for _, offsets in segments], axis=1).astype("<u4")
    width = header.shape[1] * 4
    parts = [(header.reshape(-1).view(np.uint8), np.arange(rows + 1) * width), *segments]
    return pc.binary_join_element_wise(*(_binary(*part) for part in parts), pa.scalar(b"", pa.large_binary()))


def row_sizes(array: pa.Array) -> _Ints:
    """The length of the bytes of each row, without making them."""
    segments = list(_segments(array, np.arange(len(array) + 1)))
    return sum((np.diff(offsets) for _, offsets in segments), np.full(len(array), 4 * len(segments), np.int64))


def rows_of_bytes(rows: Sequence[bytes], type_: pa.DataType) -> pa.Array:
    """The array of these rows. Raises Malformed unless `bytes_of_rows` made them from an array of the type."""
    count = _segment_count(type_)
    if not count:
        return pa.nulls(len(rows), type_)
    sizes = np.fromiter(map(len, rows), np.int64, len(rows))
    if sizes.min(initial=4 * count) < 4 * count:
        raise Malformed(f"a row of {sizes.min()} bytes has no header")
    data = np.frombuffer(b"".join(rows), np.uint8)
    starts = np.cumsum(sizes) - sizes
    header = data[starts[:, None] + np.arange(4 * count)].view("<u4").astype(np.int64)
    if np.any(header.sum(axis=1) + 4 * count != sizes):
        raise Malformed("the lengths in a header do not add up")
    # All headers and segments lie one after the other, so that they are the values of one binary array.
    lengths = np.concatenate([np.full((len(rows), 1), 4 * count), header], axis=1)
    values = _binary(data, np.concatenate([[0], np.cumsum(lengths)]))
    places = np.arange(len(rows), dtype=np.int64) * (count + 1)
    segments = [values.take(pa.array(places + number + 1)) for number in range(count)]
    array = _array(type_, np.ones(len(rows), np.int64), iter(segments))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Malformed(str(error)) from None
    return array


def _binary(data: _Bytes, offsets: _Ints) -> pa.Array:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _parts(array: pa.Array) -> tuple[_Bytes, _Ints]:
    """The bytes of a large_binary array without nulls, and its offsets, which need not begin at 0."""
    _, ends, data = array.buffers()
    offsets = np.frombuffer(ends, np.int64)[array.offset : array.offset + len(array) + 1]
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return held[offsets[0] : offsets[-1]], offsets


def _width(type_: pa.DataType) -> int:
    return 1 if pa.types.is_boolean(type_) else type_.bit_width // 8


def _segments(array: pa.Array, bounds: _Ints) -> Iterator[tuple[_Bytes, _Ints]]:
    """The segments of rows. Row i has the elements `bounds[i]` to `bounds[i + 1]`."""
    type_ = array.type
    if pa.types.is_null(type_):
        return
    if pa.types.is_union(type_):
        raise TypeError("values of a union have no canonical bytes")
    if pa.types.is_map(type_):
        yield from _segments(as_list(array), bounds)
        return
    yield _nulls(array, bounds)
    if pa.types.is_struct(type_):
        for child in array.flatten():
            yield from _segments(child, bounds)
    elif pa.types.is_list(type_):
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        yield lengths.astype("<u4").view(np.uint8), bounds * 4
        # `flatten` omits the elements of lists that are null.
        yield from _segments(array.flatten(), _ends(lengths)[bounds])
    elif pa.types.is_string(type_) or pa.types.is_binary(type_):
        plain = (pc.fill_null(array, "" if pa.types.is_string(type_) else b"")).cast(pa.large_binary())
        data, offsets = _parts(plain)
        yield np.diff(offsets).astype("<u4").view(np.uint8), bounds * 4
        yield data, offsets[bounds] - offsets[0]
    else:
        yield _fixed(array), bounds * _width(type_)


def _nulls(array: pa.Array, bounds: _Ints) -> tuple[_Bytes, _Ints]:
    """A byte per element of the rows that have a null, which is 0 for nulls."""
    if not array.null_count:
        return np.zeros(0, np.uint8), np.zeros(len(bounds), np.int64)
    valid = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    counts = np.diff(bounds)
    some = np.diff(_ends(1 - valid)[bounds]) > 0
    return valid[np.repeat(some, counts)], _ends(np.where(some, counts, 0))


def _fixed(array: pa.Array) -> _Bytes:
    if pa.types.is_boolean(array.type):
        return pc.fill_null(array, False).cast(pa.uint8()).to_numpy()
    width, start = _width(array.type), array.offset
    data = np.frombuffer(array.buffers()[1], np.uint8) if len(array) else np.zeros(0, np.uint8)
    data = data[start * width : (start + len(array)) * width]
    if not array.null_count:
        return data
    return (data.reshape(-1, width) * array.is_valid().to_numpy(zero_copy_only=False)[:, None]).reshape(-1)


def _ends(counts: np.ndarray[tuple[int], np.dtype[np.generic]]) -> _Ints:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _segment_count(type_: pa.DataType) -> int:
    if pa.types.is_null(type_):
        return 0
    if pa.types.is_map(type_):
        return 3 + _segment_count(type_.key_type) + _segment_count(type_.item_type)
    if pa.types.is_struct(type_):
        return 1 + sum(_segment_count(field.type) for field in type_)
    if pa.types.is_list(type_):
        return 2 + _segment_count(type_.value_type)
    return 3 if pa.types.is_string(type_) or pa.types.is_binary(type_) else 2


def _array(type_: pa.DataType, counts: _Ints, segments: Iterator[pa.Array]) -> pa.Array:
    """The array of rows that have `counts` elements each."""
    total = int(counts.sum())
    if pa.types.is_null(type_):
        return pa.nulls(total)
    valid = _validity(next(segments), counts)
    if pa.types.is_struct(type_):
        children = [_array(field.type, counts, segments) for field in type_]
        return pa.Array.from_buffers(type_, total, [valid], children=children)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        lengths = _content(next(segments), counts * 4).view("<u4").astype(np.int64)
        ends = _ends(lengths)
        inner = np.diff(ends[_ends(counts)])
        if ends[-1] >= 1 << 31:
            raise Malformed("a list is too long")
        if pa.types.is_list(type_):
            child = _array(type_.value_type, inner, segments)
        else:
            next(segments)  # entries are never null
            parts = [_array(each, inner, segments) for each in (type_.key_type, type_.item_type)]
            entries = pa.struct([pa.field("key", type_.key_type, nullable=False), pa.field("value", type_.item_type)])
            child = pa.Array.from_buffers(entries, int(ends[-1]), [None], children=parts)
        return pa.Array.from_buffers(type_, total, [valid, pa.py_buffer(ends.astype(np.int32))], children=[child])
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        lengths = _content(next(segments), counts * 4).view("<u4").astype(np.int64)
        ends = _ends(lengths)
        data = _content(next(segments), np.diff(ends[_ends(counts)]))
        if ends[-1] >= 1 << 31:
            raise Malformed("texts are too long")
        return pa.Array.from_buffers(type_, total, [valid, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)])
    data = _content(next(segments), counts * _width(type_))
    if pa.types.is_boolean(type_):
        data = np.packbits(data, bitorder="little")
    return pa.Array.from_buffers(type_, total, [valid, pa.py_buffer(data)])


def _content(segment: pa.Array, expected: _Ints) -> _Bytes:
    """The bytes of a segment of all rows. Raises Malformed unless each row has the expected number of bytes."""
    data, offsets = _parts(segment)
    if np.any(np.diff(offsets) != expected):
        raise Malformed("a segment has another length than its elements")
    return data.copy()


def _validity(segment: pa.Array, counts: _Ints) -> pa.Buffer | None:
    some = np.diff(_parts(segment)[1]) > 0
    if not some.any():
        return None
    content = _content(segment, np.where(some, counts, 0))
    valid = np.ones(int(counts.sum()), np.uint8)
    valid[np.repeat(some, counts)] = content
    return pa.py_buffer(np.packbits(valid, bitorder="little"))
