"""The steps of a process table function in a harness: what is kept between them, and the segment of each."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from remote_udf.functions import FunctionSpec
from remote_udf.process_calls import STATE, TIMERS, ProcessCall, segments_schema
from remote_udf.row_kinds import ROW_KIND, RowKind
from udf_server.process.states import StateEntry
from udf_server.testing.tables import SortBuffer
from udf_server.values.values import Key, codec_for_type

__all__ = ["Arrived", "Kept", "StateEntries", "segment_columns"]


@dataclass
class Kept:
    """Everything that a harness keeps between steps, in immutable Arrow arrays."""

    states: dict[Key, pa.Array] = field(default_factory=dict)
    timers: dict[Key, pa.Array] = field(default_factory=dict)
    broadcast: pa.Array | None = None
    watermarks: list[int | None] = field(default_factory=list)
    buffers: list[SortBuffer] = field(default_factory=list)
    now: int = 0

    def copied(self) -> "Kept":
        return Kept(
            dict(self.states), dict(self.timers), self.broadcast, list(self.watermarks),
            [buffer.copied() for buffer in self.buffers], self.now,
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
        before = kept.states.get(key)
        if before is not None:
            values = [None if i == index else _part(before, i, each) for i, each in enumerate(self._beside(entry))]
            self._keep(kept, key, values, entry)

    def keys(self, kept: Kept, name: str) -> list[Key]:
        index, entry = self._entry(name)
        return [key for key, stored in kept.states.items() if _part(stored, index, entry) is not None]

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


Arrived = tuple[int, pa.StructArray, RowKind]
"""The number of a table, a row of it, and the kind of change."""


def segment_columns(
    spec: FunctionSpec, call: ProcessCall, kept: Kept, key: Key, arrived: Arrived | None, advance_to: int | None
) -> list[pa.Array]:
    """The columns of a segment of one row, or of none, with what is kept for its key."""
    schema = segments_schema(spec, call)
    types = {each.name: each.type for each in schema}
    key_parts = [codec_for_type(each.type).encode([v]) for each, v in zip(types["key"], key or (), strict=False)]
    if call.broadcast or not key_parts:
        key_column = pa.array([None if call.broadcast else {}], types["key"])
    else:
        key_column = pa.StructArray.from_arrays(key_parts, fields=list(types["key"]))
    before = kept.broadcast if call.broadcast else kept.states.get(key)
    rows = _row_column(call, arrived, types["rows"])
    return [
        key_column,
        pa.nulls(1, types[STATE]) if before is None else before,
        kept.timers.get(key, pa.array([[]], types[TIMERS])) if not call.broadcast else pa.array([[]], types[TIMERS]),
        rows,
        pa.array([kept.watermarks], types["watermarks"]),
        pa.array([advance_to], pa.int64()),
        pa.array([kept.now], pa.int64()),
    ]


def _row_column(call: ProcessCall, arrived: Arrived | None, type_: pa.DataType) -> pa.Array:
    if arrived is None:
        return pa.array([[]], type_)
    number, row, kind = arrived
    parts: dict[str, pa.Array] = {
        "table": pa.array([number], pa.int8()),
        ROW_KIND: pa.array([kind.code], pa.int8()),
    }
    column = call.tables[number].time_column
    parts["time"] = row.field(column).cast(pa.int64()) if column >= 0 else pa.nulls(1, pa.int64())
    fields = list(type_.value_type)
    arrays = [parts[each.name] if each.name in parts else pa.nulls(1, each.type) for each in fields]
    for index, each in enumerate(fields):
        if each.name == str(number):
            arrays[index] = row
    struct = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), struct, type=type_)
