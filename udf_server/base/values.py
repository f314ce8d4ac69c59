"""Converts columns of Arrow values to lists of Python values and back, a column at a time.

Converting value by value costs ten times as much. It is done only if a whole column has failed, to find the
rows that cause it. Encoding is stricter than pyarrow's own, which silently truncates 1.5 to 1, drops unknown
fields of a struct and ignores time zones: if a value does not have its declared type, its row gets
an error.
"""

import copy
import dataclasses
import datetime
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain, repeat, starmap
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from remote_udf.python_types import python_types
from remote_udf.types import TIMESTAMP, spelled

__all__ = [
    "Codec",
    "Failures",
    "Leaf",
    "ListCodec",
    "MapCodec",
    "StructCodec",
    "codec_for_type",
    "decode_rows",
    "encode_rows",
    "is_frozen",
    "is_record",
]

_MICROSECOND = datetime.timedelta(microseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
VALUE_BYTES = 32
"""Approximate bytes of a number or an empty container in Python, without the reference to it."""
Failures = dict[int, Exception]
"""Row index to the error of that row's value."""


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
            # Any exception is possible, as in encode_rows.
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
            make: Any = self._scalar
            return [None if value is None else make(value) for value in array.to_pylist()]
        since = array.to_numpy(zero_copy_only=False)
        if since.dtype.kind in "mM" and np.count_nonzero(np.isnat(since)) > array.null_count:
            return array.to_pylist()  # numpy uses the smallest value for null
        if self.type == TIMESTAMP:
            return self._times(since.view("m8[us]").tolist(), array.null_count > 0)
        values: list[Any] = since.tolist()
        if not pa.types.is_decimal(self.type) and int in set(map(type, values)):
            # numpy returns an int for a time outside the years 1 to 9999
            raise OverflowError(f"a {spelled(self.type)} that Python cannot hold")
        return values

    def _times(self, since: list[Any], has_nulls: bool) -> list[Any]:
        # Adding to the epoch takes a quarter of the time of setting the zone of a datetime.
        try:
            if has_nulls:
                return [None if each is None else _EPOCH + each for each in since]
            return list(map(_EPOCH.__add__, since))
        except OverflowError:
            raise OverflowError(f"a {spelled(self.type)} that Python cannot hold") from None

    def encode(self, values: Sequence[Any]) -> pa.Array:
        for kind in set(map(type, values)) - self._known:
            if not issubclass(kind, self._accepted) or issubclass(kind, self._refused):
                raise TypeError(f"expected {spelled(self.type)}, got a value of type {kind.__name__}")
            self._known.add(kind)
        if pa.types.is_timestamp(self.type):
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

    def size(self, values: Collection[Any]) -> int:
        if self.width is not None:
            return len(values) * self.width
        try:
            # Most characters take one byte.
            return VALUE_BYTES * len(values) + sum(map(len, values))
        except TypeError:
            return sum(map(sys.getsizeof, values))

    def _copied(self, value: Any) -> Any:
        return bytes(value) if isinstance(value, (bytearray, memoryview)) else value

    def _require_zone(self, values: Iterable[datetime.datetime | None]) -> None:
        aware = self.type == TIMESTAMP
        for value in values:
            if value is not None and (value.utcoffset() is not None) != aware:
                found, wanted = ("without", "with") if aware else ("with", "without")
                raise ValueError(f"expected {spelled(self.type)}, a datetime {wanted} zone; {value!r} is {found}")


class ListCodec(Codec):
    """Lists. Tuples and numpy arrays are accepted too."""

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
    """Dictionaries."""

    def __init__(self, key: Codec, item: Codec) -> None:
        self.key, self.item = key, item
        self.type = pa.map_(pa.field("key", key.type, nullable=False), pa.field("value", item.type))
        # pyarrow returns lists of pairs, not dictionaries.
        self.plain = False

    def _decode(self, array: pa.Array) -> list[Any]:
        keys = self.key.decode(_inner(array, array.keys))
        items = self.item.decode(_inner(array, array.items))
        return [None if pairs is None else dict(pairs) for pairs in _cut(array, list(zip(keys, items, strict=True)))]

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


class StructCodec(Codec):
    """Structs: dictionaries, or instances of a dataclass or NamedTuple if the annotation is one."""

    def __init__(self, fields: dict[str, Codec], record: type | None = None) -> None:
        self.fields = fields
        self.record = record
        self._make = _maker(record) if record is not None else None
        self.type = pa.struct([pa.field(name, codec.type) for name, codec in fields.items()])
        self.plain = record is None and all(codec.plain for codec in fields.values())
        self._changing = {name: codec for name, codec in fields.items() if codec.mutable}
        self.mutable = bool(self._changing) or not is_frozen(record)
        widths = [codec.width for codec in fields.values()]
        self._varying = {name: codec for name, codec in fields.items() if codec.width is None}
        self._fixed = VALUE_BYTES + sum(width or 0 for width in widths)
        self.width = None if self._varying else self._fixed

    def _decode(self, array: pa.Array) -> list[Any]:
        columns = [codec.decode(child) for codec, child in zip(self.fields.values(), array.flatten(), strict=True)]
        parts = zip(*columns, strict=True) if columns else repeat((), len(array))
        make = self._make or self._dictionary
        if not array.null_count:
            return list(starmap(make, parts))
        # No record is created for a null, because its class may refuse fields that are None.
        present = array.is_valid().to_pylist()
        return [make(*part) if here else None for part, here in zip(parts, present, strict=True)]

    def _dictionary(self, *values: Any) -> dict[str, Any]:
        return dict(zip(self.fields, values, strict=True))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        missing = [value is None for value in values]
        present: list[Any] = [value for value in values if value is not None] if any(missing) else list(values)
        if self.record is not None:
            self._require_record(present)
            columns = [list(map(attrgetter(name), present)) for name in self.fields]
        else:
            self._require_keys(present)
            columns = [[value[name] for value in present] for name in self.fields]
        arrays = [codec.encode(column) for codec, column in zip(self.fields.values(), columns, strict=True)]
        if len(present) < len(values):
            positions = pa.array(np.where(missing, -1, np.cumsum(np.logical_not(missing)) - 1), pa.int64())
            positions = pa.compute.if_else(pa.array(missing), pa.scalar(None, pa.int64()), positions)
            arrays = [array.take(positions) for array in arrays]
        mask = pa.array(missing) if any(missing) else None
        if not arrays:
            return pa.array([None if gone else {} for gone in missing], self.type)
        return pa.StructArray.from_arrays(arrays, fields=list(self.type), mask=mask)

    def _size(self, values: Collection[Any]) -> int:
        present = [value for value in values if value is not None]
        part = attrgetter if self.record is not None else itemgetter
        varying = sum(codec.size(list(map(part(name), present))) for name, codec in self._varying.items())
        return self._fixed * len(values) + varying

    def _copied(self, value: Any) -> Any:
        if self.record is None:
            if not isinstance(value, dict):
                return value
            return {
                **value,
                **{name: codec.copied(value[name]) for name, codec in self._changing.items() if name in value},
            }
        if not isinstance(value, self.record):
            return value
        parts = {name: codec.copied(getattr(value, name)) for name, codec in self._changing.items()}
        if isinstance(value, tuple):
            return value._replace(**parts)  # type: ignore[attr-defined]
        copied = copy.copy(value)
        for name, part in parts.items():
            object.__setattr__(copied, name, part)
        return copied

    def _require_record(self, values: Iterable[Any]) -> None:
        assert self.record is not None
        for kind in set(map(type, values)):
            if not issubclass(kind, self.record):
                raise TypeError(f"expected {self.record.__name__}, got a value of type {kind.__name__}")

    def _require_keys(self, values: Iterable[Any]) -> None:
        names = self.fields.keys()
        for value in values:
            if not isinstance(value, dict):
                raise TypeError(f"expected {spelled(self.type)}, got a value of type {type(value).__name__}")
            if value.keys() != names:
                raise ValueError(f"expected the fields {', '.join(names)}, got {', '.join(map(str, value))}")


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
    try:
        return codec.decode(array), {}
    except Exception:
        # Any exception is possible, because creating the author's records runs the author's code.
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
        # Any exception is possible, because attribute access on the author's records runs the author's code.
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


def _cut(array: pa.Array, items: list[Any]) -> list[Any]:
    if len(array) == 0:
        return []
    offsets = array.offsets.to_pylist()
    first = offsets[0]
    present = array.is_valid().to_pylist()
    return [
        items[start - first : stop - first] if here else None
        for start, stop, here in zip(offsets, offsets[1:], present, strict=False)
    ]


def _offsets(values: Sequence[Any]) -> pa.Array:
    """List offsets for ListArray.from_arrays. A null entry marks a null list."""
    lengths = np.fromiter((0 if value is None else len(value) for value in values), np.int64, len(values))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    if ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("more than 2^31 elements in the lists of one batch")
    missing = np.fromiter((value is None for value in values), np.bool_, len(values))
    return pa.array(ends.astype(np.int32), pa.int32(), mask=np.append(missing, False))


def _maker(record: type) -> Callable[..., Any]:
    """A function that creates a record from its fields by position, also for a dataclass with keyword-only fields."""
    if dataclasses.is_dataclass(record) and any(field.kw_only for field in dataclasses.fields(record)):
        names = [field.name for field in dataclasses.fields(record)]
        return lambda *values: record(**dict(zip(names, values, strict=True)))
    return record


def is_frozen(record: type | None) -> bool:
    """Whether instances of a record are immutable: those of a NamedTuple or a frozen dataclass."""
    if record is None:
        return False
    frozen = dataclasses.is_dataclass(record) and record.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return issubclass(record, tuple) or frozen


def is_record(kind: Any) -> bool:
    """True for a dataclass and for a NamedTuple class."""
    return isinstance(kind, type) and (
        dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )
