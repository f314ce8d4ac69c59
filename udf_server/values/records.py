"""The codec of structs, whose values are dictionaries or the author's dataclasses and named tuples."""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import repeat, starmap
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from remote_udf.types import spelled
from udf_server.base.failures import WrongField, describe
from udf_server.values.codecs import VALUE_BYTES, Codec

__all__ = ["StructCodec", "is_frozen", "is_record"]

T = TypeVar("T")


class StructCodec(Codec):
    """The codec of structs. Values are dictionaries, or instances of the annotated dataclass or NamedTuple.

    Where nothing is annotated, returned tuples are taken too: by their names if they have those of the fields, or else
    by position, as Spark does.
    """

    def __init__(self, fields: dict[str, Codec], record: type | None = None) -> None:
        self.fields = fields
        self.record = record
        self._make = _maker(record) if record is not None else None
        self.type = pa.struct([pa.field(name, codec.type) for name, codec in fields.items()])
        self.plain = record is None and all(codec.plain for codec in fields.values())
        self._changing = {name: codec for name, codec in fields.items() if codec.mutable}
        self.mutable = bool(self._changing) or not is_frozen(record)
        self._varying = {name: codec for name, codec in fields.items() if codec.width is None}
        self._fixed = VALUE_BYTES + sum(codec.width or 0 for codec in fields.values())
        self.width = None if self._varying else self._fixed

    def _decode(self, array: pa.Array) -> list[Any]:
        columns = []
        for (name, codec), child in zip(self.fields.items(), array.flatten(), strict=True):
            with _field(name):
                columns.append(codec.decode(child))
        parts = zip(*columns, strict=True) if columns else repeat((), len(array))
        make = self._make or self._dictionary
        if not array.null_count:
            return list(starmap(make, parts))
        # No record is created for a null, because its class may refuse fields that are None.
        present = array.is_valid().to_pylist()
        return [make(*part) if here else None for part, here in zip(parts, present, strict=True)]

    def _dictionary(self, *values: T) -> dict[str, T]:
        return dict(zip(self.fields, values, strict=True))

    def encode(self, values: Sequence[Any]) -> pa.Array:
        missing = [value is None for value in values]
        present = [value for value in values if value is not None] if any(missing) else list(values)
        if self.record is not None:
            self._require_record(present)
        else:
            if any(issubclass(kind, tuple) for kind in set(map(type, present))):
                present = [self._named(value) if isinstance(value, tuple) else value for value in present]
            self._require_keys(present)
        part = attrgetter if self.record is not None else itemgetter
        arrays = []
        for name, codec in self.fields.items():
            with _field(name):
                arrays.append(codec.encode(list(map(part(name), present))))
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
            if isinstance(value, tuple):
                try:
                    value = self._named(value)
                except ValueError:
                    return value  # `encode` refuses it
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

    def _named(self, value: tuple[T, ...]) -> dict[str, T]:
        """The fields of a tuple by name. Raises ValueError if it has others, or another number of them."""
        names = getattr(value, "_fields", ()) or getattr(value, "__fields__", ())
        if self.fields.keys().isdisjoint(names):
            names = tuple(self.fields)
        if self.fields.keys() != {*names} or len(value) != len(names):
            found = ", ".join(map(str, names)) if len(value) == len(names) else f"{len(value)} values"
            raise ValueError(f"expected the fields {', '.join(self.fields)}, got {found}")
        return dict(zip(names, value, strict=True))

    def _require_record(self, values: Iterable[Any]) -> None:
        assert self.record is not None
        for kind in set(map(type, values)):
            if not issubclass(kind, self.record):
                raise TypeError(f"expected {self.record.__name__}, got a value of type {kind.__name__}")

    def _require_keys(self, values: Iterable[Any]) -> None:
        names = self.fields.keys()
        for value in values:
            if not isinstance(value, dict):
                found = type(value).__name__
                raise TypeError(f"expected {spelled(self.type)}, a dictionary or a tuple, got a value of type {found}")
            if value.keys() != names:
                raise ValueError(f"expected the fields {', '.join(names)}, got {', '.join(map(str, value))}")


@contextlib.contextmanager
def _field(name: str) -> Iterator[None]:
    """Adds the name of a field to the errors of its values."""
    try:
        yield
    except Exception as error:
        raise WrongField(f"field {name!r}: {describe(error)}") from error


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
