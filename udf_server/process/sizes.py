"""Estimates the Arrow size of Python values without encoding them."""

from collections.abc import Callable, Collection, Sized
from typing import Any, TypeVar

import pyarrow as pa

from udf_server.base.codecs import Codec
from udf_server.base.records import StructCodec
from udf_server.base.values import ListCodec, MapCodec

__all__ = ["FIXED_BYTES", "SizeOf", "size_of"]

FIXED_BYTES = 8
T = TypeVar("T")
SizeOf = Callable[[Any], int]


def size_of(codec: Codec) -> SizeOf | None:
    """A function that returns the size of a value; None if all values of the type have the same size.

    A value of a wrong type also gets a size; the encoding rejects it later.
    """
    if isinstance(codec, ListCodec):
        return _of_list(size_of(codec.element))
    if isinstance(codec, MapCodec):
        key, item = size_of(codec.key), size_of(codec.item)
        return lambda value: _sum(value, key) + _sum(value.values(), item) if isinstance(value, dict) else FIXED_BYTES
    if isinstance(codec, StructCodec):
        fields = [(name, size_of(part)) for name, part in codec.fields.items()]
        if codec.record is not None:
            return lambda value: sum(_one(getattr(value, name, None), size) for name, size in fields)
        return lambda value: (
            sum(_one(value.get(name), size) for name, size in fields) if isinstance(value, dict) else FIXED_BYTES
        )
    if pa.types.is_string(codec.type) or pa.types.is_binary(codec.type):
        return _length
    return None


def _length(value: Sized | None) -> int:
    if value is None:
        return FIXED_BYTES
    try:
        return FIXED_BYTES + len(value)
    except TypeError:
        return FIXED_BYTES


def _of_list(element: SizeOf | None) -> SizeOf:
    if element is None:
        # The codec rejects values of a wrong type, such as objects without a length, later.
        return lambda value: FIXED_BYTES * _length(value)
    return lambda value: _sum(value, element) if isinstance(value, (list, tuple)) else FIXED_BYTES


def _sum(values: Collection[T], size: Callable[[T], int] | None) -> int:
    return FIXED_BYTES * len(values) if size is None else FIXED_BYTES + sum(map(size, values))


def _one(value: T | None, size: Callable[[T], int] | None) -> int:
    return FIXED_BYTES if size is None or value is None else size(value)
