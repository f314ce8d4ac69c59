"""MemoryStore keeps outcomes in the memory of this process. The least recently used ones make room for new ones."""

import bisect
import collections
import itertools
import operator
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from udf_server.cache.chunk import Chunk, Recalled, Rows
from udf_server.cache.entries import packed
from udf_server.cache.store import Store, Stored
from udf_server.runners.selection import Indexes

__all__ = ["MemoryStore"]

EVICTED_PART = 256
"""A full store evicts at least this part of its bytes at once."""
MERGED_ROWS, MERGED_PART = 8_192, 64
"""Neighbouring chunks are merged up to this number of rows, and up to this part of the bytes of the store."""
MERGED_BYTES = 1 << 20
"""At most this many bytes of values are merged, because that holds up the event loop."""
RECENT_PART = 8
"""A row that is among the newest part of all rows is not moved when it is used."""
SPARSE_PART = 4
"""A chunk of which at most this part is left is written again, so that the others take no room."""


class MemoryStore(Store):
    """Values in chunks, and for each function a dictionary from the key to the number of the row.

    Chunks are in the order of use: rows that are kept or used get the next numbers and go to the end, and the beginning
    is evicted. Nothing but the number is made per row, because objects of Python that live long take time from
    everything else: memory is touched, and the interpreter's lock is held.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._merged_bytes = min(MERGED_BYTES, max_bytes // MERGED_PART)
        self._clock = clock
        self._places: dict[str, dict[bytes, int]] = {}
        """The number of each key, by function."""
        self._chunks: list[Chunk] = []
        """Ordered by their numbers. None is without rows that are found under their key."""
        self._next = 0
        self.bytes = 0
        """Approximate bytes of all that is kept."""

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.found(function, keys)

    def found(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Do the same as `get`, which waits for nothing here."""
        found: list[bytes | None] = [None] * len(keys)
        recalled = self.recall(function, keys)
        for part in recalled:
            for row, entry in zip(part.rows.tolist(), _entries(part.taken()), strict=True):
                found[row] = entry
        self.used(recalled)
        return found

    def recall(self, function: str, keys: Sequence[bytes]) -> list[Recalled]:
        """The rows of keys that have one, chunk by chunk. Pass them to `used` when their values were read."""
        places = self._places.get(function)
        if not places or places.keys().isdisjoint(keys):
            return []
        numbers = np.fromiter(map(places.get, keys, itertools.repeat(-1)), np.int64, len(keys))
        rows = np.flatnonzero(numbers >= 0)
        numbers, now, recalled = numbers[rows], self._clock(), []
        for chunk, chosen in list(self._by_chunk(numbers)):
            within = chunk.places(numbers[chosen])
            young = chunk.rows.until[within] > now
            if not young.all():
                self._remove(function, [keys[row] for row in rows[chosen[~young]].tolist()])
                chosen, within = chosen[young], within[young]
            if len(chosen):
                recalled.append(Recalled(rows[chosen], numbers[chosen], chunk, within))
        return recalled

    def used(self, recalled: Sequence[Recalled]) -> None:
        """Keep rows longer than those that are not used."""
        recent = self._next - len(self) // RECENT_PART
        for part in recalled:
            if part.chunk.end > recent:
                continue
            rows, places = part.taken(), self._places.get(part.chunk.rows.function, {})
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
        for chunk in self._chunks:
            sizes[chunk.rows.function] += chunk.size
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
        for chunk in self._chunks.copy():
            function = chunk.rows.function
            rows = chunk.rows.take(chunk.found(self._places.get(function, {})))
            for key, entry in zip(rows.keys, _entries(rows), strict=True):
                yield function, key, entry

    def _keep(
        self, function: str, keys: Sequence[bytes], values: pa.Array, seconds: float, written: float, *, entries: bool
    ) -> None:
        count = len(keys)
        until = np.full(count, self._clock() + seconds)
        rows = Rows(function, keys, values, np.full(count, written), until, entries)
        self._append(rows)
        self._make_room()

    def _append(self, rows: Rows) -> None:
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
        self._chunks.append(chunk := Chunk(self._next, rows, len(places) - before + len(replaced)))
        self._next += count
        self.bytes += chunk.size
        while len(self._chunks) > 1 and self._merges(*self._chunks[-2:]):
            one, two = self._chunks[-2:]
            self._chunks[-2:] = [merged := Chunk(one.first, one.rows.and_(two.rows), one.live + two.live)]
            self.bytes += merged.size - one.size - two.size
        if len(replaced):
            self._lose(replaced)

    def _merges(self, before: Chunk, last: Chunk) -> bool:
        """Whether to merge neighbours. Each row is copied a few times only, because the first is not much larger."""
        count, added = before.count, last.count
        return (
            count <= 2 * added
            and count + added <= MERGED_ROWS
            and before.value_bytes + last.value_bytes <= self._merged_bytes
            and before.consecutive and last.consecutive and before.end == last.first
            and before.rows.joins(last.rows)
        )  # fmt: skip

    def _by_chunk(self, numbers: Indexes) -> Iterator[tuple[Chunk, Indexes]]:
        """The chunks of numbers, each with the positions of its numbers."""
        order = np.argsort(numbers, kind="stable")
        ordered, start = numbers[order], 0
        while start < len(ordered):
            chunk = self._chunks[self._index(int(ordered[start]))]
            end = int(np.searchsorted(ordered, chunk.end))
            yield chunk, order[start:end]
            start = end

    def _index(self, number: int) -> int:
        """The position of the chunk of a number."""
        return bisect.bisect_right(self._chunks, number, key=operator.attrgetter("first")) - 1

    def _remove(self, function: str, keys: Sequence[bytes]) -> None:
        places = self._places[function]
        removed = [places.pop(key, -1) for key in keys]
        self._lose(np.array([number for number in removed if number >= 0], np.int64))

    def _lose(self, numbers: Indexes) -> None:
        """Count rows no more that are not found under their key."""
        for chunk, chosen in list(self._by_chunk(numbers)):
            before = chunk.size
            chunk.live -= len(chosen)
            self.bytes += chunk.size - before
            if not chunk.live:
                del self._chunks[self._index(chunk.first)]
                self.bytes -= chunk.size
            elif chunk.live * SPARSE_PART < chunk.count:
                self._reduce(chunk, chunk.found(self._places[chunk.rows.function]))

    def _reduce(self, chunk: Chunk, places: Indexes) -> None:
        """Leave only some rows in a chunk, all of which are found under their key."""
        self._chunks[self._index(chunk.first)] = reduced = chunk.part(places)
        self.bytes += reduced.size - chunk.size

    def _make_room(self) -> None:
        if self.bytes > self._max_bytes:
            self._evict(self._max_bytes - self._max_bytes // EVICTED_PART)

    def _evict(self, limit: int) -> None:
        """Remove the rows that were not used for longest, until the others have at most this many bytes."""
        while self.bytes > limit and self._chunks:
            chunk = self._chunks[0]
            places, count = self._places[chunk.rows.function], chunk.count
            evicted = min(-(-(self.bytes - limit) * count // chunk.size), count)
            found = chunk.found(places)
            left = found[found >= evicted]
            for place in found[: len(found) - len(left)].tolist():
                del places[chunk.rows.keys[place]]
            if len(left):
                self._reduce(chunk, left)
            else:
                del self._chunks[0]
                self.bytes -= chunk.size


def _entries(rows: Rows) -> list[bytes]:
    return rows.values.to_pylist() if rows.entries else packed(rows.values, rows.written.tolist(), rows.keys)
