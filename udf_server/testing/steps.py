"""What a harness of a process table function keeps between its steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from udf_server.process.states import StateEntry
from udf_server.testing.histories import Histories
from udf_server.testing.tables import SortBuffer
from udf_server.values.values import Key

__all__ = ["Kept", "StateEntries"]


@dataclass
class Kept:
    """Everything that a harness keeps between steps, in immutable Arrow arrays."""

    states: dict[Key, pa.Array] = field(default_factory=dict)
    timers: dict[Key, pa.Array] = field(default_factory=dict)
    broadcast: pa.Array | None = None
    watermarks: list[int | None] = field(default_factory=list)
    buffers: list[SortBuffer] = field(default_factory=list)
    now: int = 0
    histories: Histories = field(default_factory=Histories)

    def copied(self) -> "Kept":
        return Kept(
            dict(self.states), dict(self.timers), self.broadcast, list(self.watermarks),
            [buffer.copied() for buffer in self.buffers], self.now, self.histories.copied(),
        )  # fmt: skip

    def least(self) -> int | None:
        """The least watermark of all tables; None until each has one."""
        found = [each for each in self.watermarks if each is not None]
        return min(found) if found and len(found) == len(self.watermarks) else None


class StateEntries:
    """The state entries of a function, by name, in what is kept for each key. Raises ValueError for an unknown name."""

    def __init__(self, entries: Sequence[StateEntry]) -> None:
        self._entries = entries

    def load(self, kept: Kept, name: str, key: Key) -> Any:
        index, entry = self._entry(name)
        stored = _stored(kept, key, entry.broadcast)
        return entry.load(None if stored is None else _part(stored, index, entry), kept.now)

    def store(self, kept: Kept, name: str, key: Key, value: Any) -> None:
        index, entry = self._entry(name)
        before = _stored(kept, key, entry.broadcast)
        values = [None if before is None else _part(before, i, each) for i, each in enumerate(self._beside(entry))]
        values[index] = entry.made_of(value, kept.now)
        self._keep(kept, key, values, entry)

    def clear(self, kept: Kept, name: str | None, key: Key) -> None:
        if name is None:
            kept.states.pop(key, None)
            return
        index, entry = self._entry(name)
        before = _stored(kept, key, entry.broadcast)
        if before is not None:
            values = [None if i == index else _part(before, i, each) for i, each in enumerate(self._beside(entry))]
            self._keep(kept, key, values, entry)

    def keys(self, kept: Kept, name: str) -> list[Key]:
        index, entry = self._entry(name)
        keys = ((),) if entry.broadcast else kept.states  # broadcast state has no key
        stored = ((key, _stored(kept, key, entry.broadcast)) for key in keys)
        return [key for key, each in stored if each is not None and _part(each, index, entry) is not None]

    def _beside(self, entry: StateEntry) -> list[StateEntry]:
        """The entries that are stored together with this one."""
        return [each for each in self._entries if each.broadcast is entry.broadcast]

    def _entry(self, name: str) -> tuple[int, StateEntry]:
        for entry in self._entries:
            if entry.name == name:
                return self._beside(entry).index(entry), entry
        raise ValueError(f"Unknown state entry {name!r}")

    def _keep(self, kept: Kept, key: Key, values: list[Any], entry: StateEntry) -> None:
        entries = self._beside(entry)
        type_ = pa.struct([pa.field(each.name, each.codec.type) for each in entries])
        arrays = [each.codec.encode([value]) for each, value in zip(entries, values, strict=True)]
        stored = pa.StructArray.from_arrays(arrays, fields=list(type_))
        if entry.broadcast:
            kept.broadcast = stored
        elif all(value is None for value in values):
            kept.states.pop(key, None)
        else:
            kept.states[key] = stored


def _stored(kept: Kept, key: Key, broadcast: bool) -> pa.Array | None:
    return kept.broadcast if broadcast else kept.states.get(key)


def _part(stored: pa.Array, index: int, entry: StateEntry) -> Any:
    return entry.codec.decode(stored.flatten()[index])[0]
