"""State entries of a function: conversion between the stored form and the objects that the function changes.

An empty entry is stored as None. With a time-to-live, every value, element and entry is stored with the time when it
was written, and is not read once it has expired (`now - written >= ttl`).
"""

import copy
import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from udf_server.process.views import ListView, MapView, ValueView
from udf_server.values.codecs import Codec, Leaf
from udf_server.values.records import StructCodec
from udf_server.values.values import ListCodec, MapCodec

__all__ = ["KeyState", "ListEntry", "MapEntry", "RecordEntry", "StateEntry", "ValueEntry"]

VALUE = "value"
WRITTEN = "written"


@dataclass(frozen=True, eq=False)
class StateEntry(ABC):
    """One entry. `ttl` is in milliseconds, None forever; `inner` is the codec of the value, element or item."""

    name: str
    inner: Codec
    ttl: int | None = None
    broadcast: bool = False
    view: ClassVar[type | None] = None
    """The class of the object for the function, if it is a view of a plain value."""

    @property
    def codec(self) -> Codec:
        """The codec of the stored form."""
        return self._timed

    @abstractmethod
    def load(self, stored: Any, now: int, *, writable: bool = True) -> Any:
        """Convert the stored form to the object for the function."""

    @abstractmethod
    def store(self, given: Any, now: int) -> Any:
        """Convert the object, after the calls of the function, to the stored form."""

    def made_of(self, value: Any, now: int) -> Any:
        """Convert a plain value, which is a record, a list or a dictionary, to the stored form."""
        return self.store(value if self.view is None else self.view(value), now)

    def fresh(self) -> Any:
        """The object for the function if the entry is empty."""
        return self.load(None, 0)

    @property
    def _timed(self) -> Codec:
        """The codec of a value, element or item, with the time when it was written if it expires."""
        if self.ttl is None:
            return self.inner
        return StructCodec({VALUE: self.inner, WRITTEN: Leaf(pa.int64())})

    def _lives(self, written: int, now: int) -> bool:
        return self.ttl is None or now - written < self.ttl

    def _stamped(self, value: Any, written: int | None, now: int) -> Any:
        return value if self.ttl is None else {VALUE: value, WRITTEN: now if written is None else written}


@dataclass(frozen=True, eq=False)
class RecordEntry(StateEntry):
    """An instance of a dataclass, which the function changes in place. An empty entry is an instance with the defaults.

    It is stored only if it has changed, so reading does not extend its life. If `untyped` (the counterpart of Flink's
    ROW), an instance with only nulls is empty.
    """

    record: type = object
    untyped: bool = False

    def load(self, stored: Any, now: int, *, writable: bool = True) -> Any:
        if stored is not None and self.ttl is not None:
            stored = stored[VALUE] if self._lives(stored[WRITTEN], now) else None
        if stored is None:
            return self.record()
        # A read-only entry is copied, so that changes are discarded.
        return stored if writable else copy.deepcopy(stored)

    def store(self, given: Any, now: int) -> Any:
        return self._stamped(given, None, now)

    def fields_of(self, given: Any) -> list[Any]:
        """The values of the fields, for comparison."""
        return [getattr(given, name) for name in self._names]

    @functools.cached_property
    def fresh_fields(self) -> list[Any]:
        """The fields of an empty entry."""
        return self.fields_of(self.fresh())

    @functools.cached_property
    def _names(self) -> tuple[str, ...]:
        assert isinstance(self.inner, StructCodec)
        return tuple(self.inner.fields)


@dataclass(frozen=True, eq=False)
class ValueEntry(StateEntry):
    """An entry that is a ValueView."""

    view = ValueView

    def load(self, stored: Any, now: int, *, writable: bool = True) -> ValueView[Any]:
        written = None
        if stored is not None and self.ttl is not None:
            stored, written = (stored[VALUE], stored[WRITTEN]) if self._lives(stored[WRITTEN], now) else (None, None)
        return ValueView(stored, written, name=self.name, writable=writable)

    def store(self, given: ValueView[Any], now: int) -> Any:
        return None if given.value is None else self._stamped(given.value, given.written, now)


@dataclass(frozen=True, eq=False)
class ListEntry(StateEntry):
    """An entry that is a ListView."""

    view = ListView

    @property
    def codec(self) -> Codec:
        return ListCodec(self._timed)

    def load(self, stored: Any, now: int, *, writable: bool = True) -> ListView[Any]:
        if self.ttl is None or not stored:
            return ListView(stored or (), name=self.name, writable=writable)
        living = [each for each in stored if self._lives(each[WRITTEN], now)]
        return ListView(
            [each[VALUE] for each in living], [each[WRITTEN] for each in living], name=self.name, writable=writable
        )

    def store(self, given: ListView[Any], now: int) -> Any:
        if not len(given):
            return None
        return [self._stamped(value, written, now) for value, written in zip(given, given.written(), strict=True)]


@dataclass(frozen=True, eq=False)
class MapEntry(StateEntry):
    """An entry that is a MapView."""

    view = MapView

    key: Codec | None = None

    @property
    def codec(self) -> Codec:
        assert self.key is not None
        return MapCodec(self.key, self._timed)

    def load(self, stored: Any, now: int, *, writable: bool = True) -> MapView[Any, Any]:
        if self.ttl is None or not stored:
            return MapView(stored, name=self.name, writable=writable)
        living = {key: each for key, each in stored.items() if self._lives(each[WRITTEN], now)}
        return MapView(
            {key: each[VALUE] for key, each in living.items()}, {key: each[WRITTEN] for key, each in living.items()},
            name=self.name, writable=writable,
        )  # fmt: skip

    def store(self, given: MapView[Any, Any], now: int) -> Any:
        if not len(given):
            return None
        written = given.written()
        return {key: self._stamped(value, written[key], now) for key, value in given.items()}


class KeyState:
    """The state of one key while its segment is processed."""

    __slots__ = ("_before", "_entries", "_now", "_stored", "values")

    def __init__(self, entries: list[StateEntry], stored: list[Any], now: int) -> None:
        self._entries = entries
        self._stored = list(stored)
        self._now = now
        self.values = [entry.load(each, now) for entry, each in zip(entries, stored, strict=True)]
        """The objects for the function, in the order of the entries."""
        self._before = list(map(_fields_before, entries, self.values))

    def clear(self, index: int) -> None:
        """Clear an entry; from its next call on, the function receives a new object."""
        entry = self._entries[index]
        self._stored[index] = None
        self.values[index] = entry.fresh()
        self._before[index] = _fields_before(entry, self.values[index])

    def stored(self) -> list[Any]:
        """The stored form of each entry."""
        return [self._stored_of(index, entry) for index, entry in enumerate(self._entries)]

    def _stored_of(self, index: int, entry: StateEntry) -> Any:
        value = self.values[index]
        if not isinstance(entry, RecordEntry):
            return entry.store(value, self._now)
        fields, stored = entry.fields_of(value), self._stored[index]
        if entry.untyped and all(field is None for field in fields):
            return None
        if entry.ttl is not None:
            if fields == self._before[index]:
                # Also if the entry has expired: it is neither rewritten nor read.
                return stored
        elif stored is None and fields == entry.fresh_fields:
            return None
        return entry.store(value, self._now)


def _fields_before(entry: StateEntry, value: Any) -> list[Any] | None:
    """A copy of the fields of a record with a time-to-live, which shows later whether the function has written."""
    if not isinstance(entry, RecordEntry) or entry.ttl is None:
        return None
    return copy.deepcopy(entry.fields_of(value))
