"""Codec, the base class of all codecs, and Leaf, the codec of types without parts."""

import datetime
import sys
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.python_values import nearest_decimals, python_types, rounded
from remote_udf.types import TIMESTAMP, spelled

__all__ = ["VALUE_BYTES", "Codec", "Leaf"]

_MICROSECOND = datetime.timedelta(microseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
VALUE_BYTES = 32
"""Approximate bytes of a number or an empty container in Python, without the reference to it."""


class Codec(ABC):
    """Converts between one Arrow type and Python values. None represents null in both directions."""

    type: pa.DataType
    plain: bool = True
    """Whether pyarrow's own to_pylist is fast and returns the values that an author expects, at every level."""
    mutable: bool = True
    """Whether an author's value of this type may change after it was returned."""
    width: int | None = None
    """The approximate size of each value in bytes; None if values differ in size."""

    def size(self, values: Collection[Any]) -> int:
        """The approximate size of these values in bytes. Values of another type are estimated."""
        if self.width is not None:
            return len(values) * self.width
        try:
            return self._size(values)
        except Exception:
            # The author's code may raise anything, as in encode_rows.
            return sum(map(sys.getsizeof, values))

    def _size(self, values: Collection[Any]) -> int:
        raise NotImplementedError

    def decode(self, array: pa.Array) -> list[Any]:
        """Python values in row order. Raises OverflowError or ValueError if Python cannot represent a value."""
        if self.plain:
            return array.to_pylist()
        return self._decode(array)

    def _decode(self, array: pa.Array) -> list[Any]:
        raise NotImplementedError

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> pa.Array:
        """An array of `type`. Raises TypeError, ValueError, OverflowError or pa.ArrowException."""

    def copied(self, value: Any) -> Any:
        """A copy of a value that is encoded later, so that later changes by its author have no effect.

        A value of another type is returned unchanged; `encode` refuses it.
        """
        return self._copied(value) if self.mutable and value is not None else value

    def _copied(self, value: Any) -> Any:
        raise NotImplementedError


class Leaf(Codec):
    """A type without parts. `scalar` is the numpy type of the author's annotation, or None."""

    def __init__(self, type_: pa.DataType, scalar: type[np.generic] | None = None) -> None:
        self.type = type_
        # For times and decimals, conversion by numpy takes a fraction of the time of to_pylist.
        self._by_numpy = (pa.types.is_temporal(type_) and not pa.types.is_time(type_)) or pa.types.is_decimal(type_)
        self.plain = scalar is None and not self._by_numpy
        self.mutable = pa.types.is_binary(type_)
        self.width = None if pa.types.is_string(type_) or pa.types.is_binary(type_) else VALUE_BYTES
        self._scalar = scalar
        self._accepted, self._refused = python_types(type_) or ((), ())
        self._known: set[type] = {type(None)}

    def _decode(self, array: pa.Array) -> list[Any]:
        if not self._by_numpy:
            make = self._scalar
            assert make is not None
            return [None if value is None else make(value) for value in array.to_pylist()]
        since = array.to_numpy(zero_copy_only=False)
        if since.dtype.kind in "mM" and np.count_nonzero(np.isnat(since)) > array.null_count:
            return array.to_pylist()  # numpy uses the smallest value for null
        if self.type == TIMESTAMP:
            return self._times(since.view("m8[us]").tolist(), array.null_count > 0)
        values = since.tolist()
        if not pa.types.is_decimal(self.type) and int in set(map(type, values)):
            # numpy returns an int for a time outside the years 1 to 9999
            raise OverflowError(f"a {spelled(self.type)} that Python cannot hold")
        return values

    def _times(self, since: list[datetime.timedelta], has_nulls: bool) -> list[datetime.datetime | None]:
        # Adding to the epoch takes a quarter of the time of setting the zone of a datetime.
        try:
            if has_nulls:
                return [None if each is None else _EPOCH + each for each in since]
            return list(map(_EPOCH.__add__, since))
        except OverflowError:
            raise OverflowError(f"a {spelled(self.type)} that Python cannot hold") from None

    def encode(self, values: Sequence[Any]) -> pa.Array:
        kinds = set(map(type, values))
        for kind in kinds - self._known:
            if not issubclass(kind, self._accepted) or issubclass(kind, self._refused):
                raise TypeError(f"expected {spelled(self.type)}, got a value of type {kind.__name__}")
            self._known.add(kind)
        if pa.types.is_floating(self.type) and any(issubclass(kind, (int, np.integer)) for kind in kinds):
            # pyarrow refuses integers of more than 64 bits, and converts the largest uint64 of numpy to -1.
            values = [rounded(each, self.type) if isinstance(each, (int, np.integer)) else each for each in values]
        if pa.types.is_decimal(self.type):
            values = nearest_decimals(values, self.type)
        if pa.types.is_timestamp(self.type) or pa.types.is_time(self.type):
            self._require_zone(values)
        try:
            return pa.array(values, self.type)
        except pa.ArrowInvalid:
            if not pa.types.is_duration(self.type):
                raise
        # pyarrow refuses durations within a second of the smallest value.
        micros = [each if each is None else each // _MICROSECOND for each in values]
        try:
            return pa.array(micros, pa.int64()).cast(self.type)
        except OverflowError:
            raise OverflowError(f"more microseconds than {spelled(self.type)} holds in 64 bits") from None

    def _size(self, values: Collection[Any]) -> int:
        # Most characters take one byte.
        return VALUE_BYTES * len(values) + sum(map(len, values))

    def _copied(self, value: Any) -> Any:
        return bytes(value) if isinstance(value, (bytearray, memoryview)) else value

    def _require_zone(self, values: Iterable[datetime.datetime | datetime.time | None]) -> None:
        if pa.types.is_time(self.type):
            # Also a zone whose offset depends on the date: the time would lose it.
            zoned = next((value for value in values if value is not None and value.tzinfo is not None), None)
            if zoned is not None:
                raise ValueError(f"expected {spelled(self.type)}, a time without zone; {zoned!r} is with")
            return
        aware = self.type == TIMESTAMP
        for value in values:
            if value is not None and (value.utcoffset() is not None) != aware:
                found, wanted = ("without", "with") if aware else ("with", "without")
                raise ValueError(f"expected {spelled(self.type)}, a datetime {wanted} zone; {value!r} is {found}")
