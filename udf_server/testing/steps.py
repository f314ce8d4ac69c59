"""What a harness of a process table function keeps between its steps.

Of each key it keeps the rows, and compares what the steps emitted with what a batch query would emit from them. In
batch there is no watermark until the last row of a key was processed, and then all its timers fire. A function whose
timer clears state before the next row gives another result there.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from remote_udf.row_kinds import RowKind
from udf_server.process.base import Row
from udf_server.process.states import StateEntry
from udf_server.testing.tables import SortBuffer
from udf_server.values.values import Key

__all__ = ["Arrived", "Kept", "StateEntries"]

Arrived = tuple[int, pa.StructArray, RowKind]
"""The number of a table, a row of it, and the kind of change."""


@dataclass
class _KeySteps:
    """What a key received and emitted."""

    rows: list[Arrived] = field(default_factory=list)
    emitted: list[Row] = field(default_factory=list)
    after_watermark: bool = False
    """Whether a row arrived after a watermark. Otherwise the steps were those of a batch query."""
    compared: int = 0
    """The number of rows that were compared."""


@dataclass
class Histories:
    """The histories of the keys, as long as a batch query could have the same rows in the same order."""

    possible: bool = True
    """False once a step was taken that no batch query has."""
    _keys: dict[Key, _KeySteps] = field(default_factory=dict)

    def copied(self) -> "Histories":
        copies = {key: replace(each, rows=[*each.rows], emitted=[*each.emitted]) for key, each in self._keys.items()}
        return Histories(self.possible, copies)

    def begin_broadcast(self) -> None:
        """Note a row of a broadcast table. In batch those rows come before all others."""
        self.possible &= not self._keys

    def add(self, key: Key, arrived: Sequence[Arrived], emitted: Sequence[Row], *, after_watermark: bool) -> None:
        history = self._keys.setdefault(key, _KeySteps())
        history.rows += arrived
        history.emitted += emitted
        history.after_watermark |= bool(arrived) and after_watermark

    def compare(self, function: str, batch: Callable[[Key, Sequence[Arrived]], Sequence[Row]], *, ended: bool) -> None:
        """Compare each key with `batch`, which has its rows from a batch query.

        Before the input has ended, a batch query may emit more rows: it has an end.

        Raises:
            AssertionError: A key has other rows in batch.
        """
        for key, history in self._keys.items() if self.possible else ():
            if history.after_watermark and (ended or len(history.rows) > history.compared):
                history.compared = len(history.rows)
                in_batch = batch(key, history.rows)
                more, fewer = _counted(in_batch), _counted(history.emitted)
                if fewer - more or (ended and more - fewer):
                    raise AssertionError(_difference(function, key, history.emitted, in_batch))


def _counted(rows: Sequence[Row]) -> Counter[str]:
    """The rows by their texts: they may have lists in them, and NaN equals NaN."""
    return Counter(f"{row.kind} {tuple(row)}" for row in rows)


def _difference(function: str, key: Key, steps: Sequence[Row], batch: Sequence[Row]) -> str:
    return "\n".join(
        (
            f"function {function}: key {key!r} has other rows in a batch query, where timers fire after its last row",
            *_listed("as a stream", steps),
            *_listed("in batch", batch),
            "Let eval compare the time of a row with that of the timer; if the function is for streams only, pass "
            "also_batch=False to ProcessTableHarness.",
        )
    )


def _listed(title: str, rows: Sequence[Row]) -> list[str]:
    return [f"{title}:{'' if rows else ' no rows'}", *(f"  {row!r}" for row in rows)]


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
