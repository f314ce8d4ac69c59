"""Converts columns of Arrow values to lists of Python values and back, a column at a time.

Converting value by value costs ten times as much. It is done only if a whole column has failed, to find the
rows that cause it. Encoding is stricter than pyarrow's own, which silently truncates 1.5 to 1, drops unknown
fields of a struct and ignores time zones: if a value does not have its declared type, its row gets
an error.
"""

import math
from collections.abc import Collection, Sequence, Sized
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from remote_udf.raw_texts import read_texts
from remote_udf.types import spelled
from udf_server.base.failures import WrongField
from udf_server.values.codecs import VALUE_BYTES, Codec, Leaf
from udf_server.values.records import StructCodec

__all__ = ["Failures", "Key", "ListCodec", "MapCodec", "canonical_key", "codec_for_type", "decode_rows", "encode_rows"]

T = TypeVar("T")
Key = tuple[Any, ...]
"""The values of a key of GROUP BY or PARTITION BY."""
Failures = dict[int, Exception]
"""Row index to the error of that row's value."""


class ListCodec(Codec):
    """The codec of lists. It also accepts tuples and numpy arrays."""

    def __init__(self, element: Codec) -> None:
        self.element = element
        self.type = pa.list_(pa.field("element", element.type))
        self.plain = element.plain

    def _decode(self, array: pa.Array) -> list[Any]:
        return _cut(array, self.element.decode(_inner(array, array.values)))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None and not isinstance(value, (list, tuple, np.ndarray)):
                raise TypeError(f"expected {spelled(self.type)}, got a value of type {type(value).__name__}")
        inner = self.element.encode(list(chain.from_iterable(value for value in values if value is not None)))
        return pa.ListArray.from_arrays(_offsets(values), inner, type=self.type)

    def _size(self, values: Collection[Any]) -> int:
        present = [value for value in values if value is not None]
        if self.element.width is not None:
            return VALUE_BYTES * len(values) + self.element.width * sum(map(len, present))
        return VALUE_BYTES * len(values) + self.element.size(list(chain.from_iterable(present)))

    def _copied(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple, np.ndarray)):
            return value
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            # A list of its values would take several times as much memory.
            return value.copy()
        return list(map(self.element.copied, value)) if self.element.mutable else list(value)


class MapCodec(Codec):
    """The codec of maps, whose values are dictionaries."""

    def __init__(self, key: Codec, item: Codec) -> None:
        self.key, self.item = key, item
        self.type = pa.map_(pa.field("key", key.type, nullable=False), pa.field("value", item.type))
        # pyarrow returns lists of pairs, not dictionaries.
        self.plain = False

    def _decode(self, array: pa.Array) -> list[Any]:
        keys = self.key.decode(_inner(array, array.keys))
        items = self.item.decode(_inner(array, array.items))
        if pa.types.is_floating(self.key.type):
            keys = list(map(canonical_key, keys))
        cut = _cut(array, list(zip(keys, items, strict=True)))
        try:
            return [None if pairs is None else dict(pairs) for pairs in cut]
        except TypeError as error:
            raise TypeError(
                f"a dictionary of Python cannot have the keys of {spelled(self.type)} ({error}): annotate structs as a "
                "NamedTuple, or use a vectorized function"
            ) from None

    def encode(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None and not isinstance(value, dict):
                raise TypeError(f"expected {spelled(self.type)}, got a value of type {type(value).__name__}")
        present = [value for value in values if value is not None]
        keys = self.key.encode(list(chain.from_iterable(present)))
        if keys.null_count:
            raise ValueError(f"{spelled(self.type)}: a key of a map cannot be None")
        items = self.item.encode(list(chain.from_iterable(value.values() for value in present)))
        return pa.MapArray.from_arrays(_offsets(values), keys, items, type=self.type)

    def _size(self, values: Collection[Any]) -> int:
        present = [value for value in values if value is not None]
        items = list(chain.from_iterable(value.values() for value in present))
        return VALUE_BYTES * len(values) + self.key.size(list(chain.from_iterable(present))) + self.item.size(items)

    def _copied(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {key: self.item.copied(item) for key, item in value.items()} if self.item.mutable else dict(value)


def canonical_key(key: Any) -> Any:
    """The key by which a dictionary finds a value. As in Spark, NaN equals NaN; in Python only one object does."""
    return math.nan if key != key else key  # noqa: PLR0124 - only NaN differs from itself


def codec_for_type(type_: pa.DataType) -> Codec:
    """The codec of a normalized Arrow type; structs are dictionaries."""
    if pa.types.is_list(type_):
        return ListCodec(codec_for_type(type_.value_type))
    if pa.types.is_map(type_):
        return MapCodec(codec_for_type(type_.key_type), codec_for_type(type_.item_type))
    if pa.types.is_struct(type_):
        return StructCodec({field.name: codec_for_type(field.type) for field in type_})
    return Leaf(type_)


def decode_rows(codec: Codec, array: pa.Array) -> tuple[list[Any], Failures]:
    """Python values by row, and the errors of rows whose value Python cannot represent; their value is None."""
    array, refused = read_texts(array)
    values, failures = _decoded(codec, array)
    for row, text in refused.items():
        values[row], failures[row] = None, WrongField(text.described)
    return values, failures


def _decoded(codec: Codec, array: pa.Array) -> tuple[list[Any], Failures]:
    try:
        return codec.decode(array), {}
    except Exception:
        # Creating the author's records runs the author's code, which may raise anything.
        values, failures = [], {}
        for row in range(len(array)):
            try:
                values.extend(codec.decode(array.slice(row, 1)))
            except Exception as error:
                values.append(None)
                failures[row] = error
        return values, failures


def encode_rows(codec: Codec, values: Sequence[Any]) -> tuple[pa.Array, Failures]:
    """The array, and the errors of rows whose value does not have the type; their value is null."""
    try:
        return codec.encode(values), {}
    except Exception:
        # Attribute access on the author's records runs the author's code, which may raise anything.
        kept, failures = list(values), {}
        for row, value in enumerate(values):
            try:
                codec.encode([value])
            except Exception as error:
                kept[row] = None
                failures[row] = error
        return codec.encode(kept), failures


def _inner(array: pa.Array, child: pa.Array) -> pa.Array:
    """The part of a list's or map's child to which the array refers; the array may be a slice."""
    if len(array) == 0:
        return child.slice(0, 0)
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return child.slice(first, last - first)


def _cut(array: pa.Array, items: list[T]) -> list[list[T] | None]:
    if len(array) == 0:
        return []
    offsets = array.offsets.to_pylist()
    first = offsets[0]
    present = array.is_valid().to_pylist()
    return [
        items[start - first : stop - first] if here else None
        for start, stop, here in zip(offsets, offsets[1:], present, strict=False)
    ]


def _offsets(values: Sequence[Sized | None]) -> pa.Array:
    """List offsets for ListArray.from_arrays. A null entry marks a null list."""
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("more than 2^31 elements in the lists of one batch")
    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    return pa.array(ends.astype(np.int32), pa.int32(), mask=np.append(missing, False))
