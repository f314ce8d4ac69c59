"""MemoryStore keeps entries in the memory of this process. The least recently used outcomes make room for new ones."""

import collections
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np
import pyarrow as pa

from udf_server.base.key_value_store import Change, Store, Stored, StoreError
from udf_server.stores.blocks import Blocks, Recalled, StoredRows
from udf_server.stores.entries import packed

__all__ = ["MemoryStore"]

EVICTED_PART = 256
"""A full store evicts at least this part of its bytes at once."""
RECENT_PART = 8
"""A row that is among the newest part of all rows is not moved when it is used."""
OWN_BYTES = 100
"""Approximate bytes that an entry of a function's own takes in addition to its key and value."""


class MemoryStore(Store):
    """Outcomes in blocks, and for each function a dictionary from the key to the number of the row.

    Blocks are in the order of use: rows that are kept or used get the next numbers and go to the end, and the beginning
    is evicted. Nothing but the number is made per row, because objects of Python that live long take time from
    everything else: memory is touched, and the interpreter's lock is held.

    Entries of functions' own are in a dictionary, which may be used on any thread.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._places: dict[str, dict[bytes, int]] = {}
        """The number of each key, by function."""
        self._blocks = Blocks(self._places, max_bytes)
        self._next = 0
        self._lock = threading.Lock()
        """Guards the next two attributes."""
        self._own: dict[tuple[str, bytes], tuple[bytes, float]] = {}
        self._own_bytes = 0

    @property
    def held_bytes(self) -> int:
        """Approximate bytes of all outcomes."""
        return self._blocks.bytes

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = [None] * len(keys)
        recalled = self.recall(function, keys)
        for part in recalled:
            for row, entry in zip(part.rows.tolist(), _entries(part.taken()), strict=True):
                found[row] = entry
        self.used(recalled)
        return found

    def recall(self, function: str, keys: Sequence[bytes]) -> list[Recalled]:
        """The rows of keys that have one, block by block. Pass them to `used` when their values were read."""
        places = self._places.get(function)
        if not places or places.keys().isdisjoint(keys):
            return []
        numbers = np.fromiter(map(places.get, keys, itertools.repeat(-1)), np.int64, len(keys))
        rows = np.flatnonzero(numbers >= 0)
        numbers, now, recalled = numbers[rows], self._clock(), []
        for block, chosen in list(self._blocks.of(numbers)):
            within = block.places(numbers[chosen])
            young = block.rows.until[within] > now
            if not young.all():
                self._remove(function, [keys[row] for row in rows[chosen[~young]].tolist()])
                chosen, within = chosen[young], within[young]
            if len(chosen):
                recalled.append(Recalled(rows[chosen], numbers[chosen], block, within))
        return recalled

    def used(self, recalled: Sequence[Recalled]) -> None:
        """Keep rows longer than those that are not used."""
        recent = self._next - len(self) // RECENT_PART
        for part in recalled:
            if part.block.end > recent:
                continue
            rows, places = part.taken(), self._places.get(part.block.rows.function, {})
            # Meanwhile rows may have been replaced, evicted or cleared; and a key may have been looked up twice.
            still = np.fromiter(map(places.get, rows.keys, itertools.repeat(-1)), np.int64, len(rows.keys))
            _, first = np.unique(part.numbers, return_index=True)
            first = np.sort(first[still[first] == part.numbers[first]])
            if len(first) < len(rows.keys):
                rows = rows.take(first)
            self._append(rows)
        self._make_room()

    async def put(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        self.keep(function, entries, seconds)

    def keep(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        """Do the same as `put`, which waits for nothing here."""
        by_key = dict(entries)
        kept = pa.array(by_key.values(), pa.large_binary())
        self._keep(function, list(by_key), kept, seconds, 0.0, entries=True)

    def keep_values(
        self, function: str, keys: Sequence[bytes], values: pa.Array, seconds: float, written: float
    ) -> None:
        """Keep values by key, without making entries of them. They were written at `written`, since 1970.

        The array must not be a part of a larger one, which would be kept with it, and nobody else may change it.
        """
        self._keep(function, keys, values, seconds, written, entries=False)

    async def stats(self) -> list[Stored]:
        sizes: collections.Counter[str] = collections.Counter()
        for block in self._blocks:
            sizes[block.rows.function] += block.size
        return [
            Stored(function, len(places), sizes[function])
            for function, places in sorted(self._places.items())
            if places
        ]

    async def clear(self, function: str | None = None) -> int:
        cleared = [each for each in self._places if function in (None, each)]
        count = sum(len(self._places[each]) for each in cleared)
        for each in cleared:
            self._remove(each, list(self._places[each]))
            del self._places[each]
        return count

    async def export(self) -> AsyncIterator[tuple[str, bytes, bytes]]:
        for block in self._blocks:
            function = block.rows.function
            rows = block.rows.take(block.found(self._places.get(function, {})))
            for key, entry in zip(rows.keys, _entries(rows), strict=True):
                yield function, key, entry

    async def own(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return [self._found_own(function, key) for key in keys]

    async def compare_and_set(self, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        with self._lock:
            return [self._set_own(function, change, seconds) for change in changes]

    def _keep(
        self, function: str, keys: Sequence[bytes], values: pa.Array, seconds: float, written: float, *, entries: bool
    ) -> None:
        count = len(keys)
        until = np.full(count, self._clock() + seconds)
        rows = StoredRows(function, keys, values, np.full(count, written), until, entries)
        self._append(rows)
        self._make_room()

    def _append(self, rows: StoredRows) -> None:
        """Give rows the next numbers. They replace those of the same keys."""
        count, places = len(rows.keys), self._places.setdefault(rows.function, {})
        if not count:
            return
        before, new = len(places), range(self._next, self._next + count)
        # Slots of a large dictionary are not in the processor's cache, so each is visited once.
        numbers = np.fromiter(map(places.setdefault, rows.keys, new), np.int64, count)
        if len(places) - before == count:
            replaced = numbers[:0]
        else:
            replaced = np.unique(numbers[numbers < self._next])
            places.update(zip(rows.keys, new, strict=True))  # of equal keys, the last one counts
        self._blocks.add(self._next, rows, len(places) - before + len(replaced))
        self._next += count
        if len(replaced):
            self._blocks.lose(replaced)

    def _remove(self, function: str, keys: Sequence[bytes]) -> None:
        places = self._places[function]
        removed = [places.pop(key, -1) for key in keys]
        self._blocks.lose(np.array([number for number in removed if number >= 0], np.int64))

    def _make_room(self) -> None:
        if self._blocks.bytes > self._max_bytes:
            for function, keys in self._blocks.take(self._max_bytes - self._max_bytes // EVICTED_PART):
                places = self._places[function]
                for key in keys:
                    del places[key]

    def _found_own(self, function: str, key: bytes) -> bytes | None:
        value, until = self._own.get((function, key), (None, 0.0))
        return value if until > self._clock() else None

    def _set_own(self, function: str, change: Change, seconds: float) -> bool:
        if self._found_own(function, change.key) != change.before:
            return False
        place = function, change.key
        kept = self._own.get(place)
        more = len(change.key) + len(change.after) + OWN_BYTES - (0 if kept is None else _own_size(place, kept))
        if self._own_bytes + more > self._max_bytes:
            now = self._clock()
            old = [each for each, (_, until) in self._own.items() if until <= now and each != place]
            self._own_bytes -= sum(_own_size(each, self._own.pop(each)) for each in old)
        if self._own_bytes + more > self._max_bytes:
            raise StoreError(f"the key-value store in memory is full: cache_max_bytes is {self._max_bytes}")
        self._own[place] = change.after, self._clock() + seconds
        self._own_bytes += more
        return True


def _own_size(place: tuple[str, bytes], kept: tuple[bytes, float]) -> int:
    return len(place[1]) + len(kept[0]) + OWN_BYTES


def _entries(rows: StoredRows) -> list[bytes]:
    return rows.values.to_pylist() if rows.entries else packed(rows.values, rows.written.tolist(), rows.keys)
