"""MemoryStore keeps entries in the memory of this process. The least recently used ones make room for new ones."""

import collections
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence

from udf_server.cache.store import ENTRY_BYTES, Store, Stored

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """Entries in one ordered dictionary: a read moves an entry to its end, and its beginning is evicted.

    A library such as cachetools needs several Python calls per look-up, which takes longer than everything else that
    a hit needs.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self.identity = f"memory {uuid.uuid4().hex}"
        self._entries: collections.OrderedDict[tuple[str, bytes], tuple[bytes, float]] = collections.OrderedDict()
        self.bytes = 0
        """Approximate bytes of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.found(function, keys)

    def found(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Do the same as `get`, which waits for nothing here."""
        places = list(zip(itertools.repeat(function), keys))
        kept = list(map(self._entries.get, places))
        found: list[bytes | None] = []
        if not any(kept):
            return [None] * len(kept)
        now = self._clock()
        for place, each in zip(places, kept, strict=True):
            if each is None:
                found.append(None)
            elif each[1] <= now:
                self._remove(place)
                found.append(None)
            else:
                self._entries.move_to_end(place)
                found.append(each[0])
        return found

    async def put(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        self.keep(function, entries, seconds)

    def keep(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        """Do the same as `put`, which waits for nothing here."""
        until, kept = self._clock() + seconds, self._entries
        new = {(function, key): (entry, until) for key, entry in entries}
        if not kept.keys().isdisjoint(new):
            for place in new:
                self._remove(place)
        kept.update(new)
        self.bytes += sum(len(entry) for entry, _ in new.values()) + ENTRY_BYTES * len(new)
        while self.bytes > self._max_bytes and kept:
            self._remove(next(iter(kept)))

    async def stats(self) -> list[Stored]:
        sums: dict[str, tuple[int, int]] = {}
        for (function, _), (entry, _) in self._entries.items():
            count, size = sums.get(function, (0, 0))
            sums[function] = count + 1, size + len(entry) + ENTRY_BYTES
        return [Stored(function, *each) for function, each in sorted(sums.items())]

    async def clear(self, function: str | None = None) -> int:
        chosen = [place for place in self._entries if function in (None, place[0])]
        for place in chosen:
            self._remove(place)
        return len(chosen)

    async def export(self) -> AsyncIterator[tuple[str, bytes, bytes]]:
        for (function, key), (entry, _) in list(self._entries.items()):
            yield function, key, entry

    def _remove(self, place: tuple[str, bytes]) -> None:
        removed = self._entries.pop(place, None)
        if removed is not None:
            self.bytes -= len(removed[0]) + ENTRY_BYTES
