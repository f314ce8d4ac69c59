"""MemoryStore keeps entries in the memory of this process. The least recently used ones make room for new ones."""

import collections
import itertools
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence

from udf_server.cache.store import ENTRY_BYTES, Store, Stored

__all__ = ["MemoryStore"]

_PREFIX_BYTES = 4
EVICTED_PART = 256
"""A full store evicts at least this part of its bytes at once. Each eviction passes the gaps that earlier ones left."""


class MemoryStore(Store):
    """Entries in one dictionary: a read moves an entry to its end, and its beginning is evicted.

    It has bytes only, and no object per entry beside the pair of entry and time. A library such as cachetools needs
    several Python calls per look-up, which takes longer than everything else that a hit needs.
    """

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self.identity = f"memory {uuid.uuid4().hex}"
        self._prefixes: dict[str, bytes] = {}
        """What the names of a function's entries begin with. All have the same length."""
        self._entries: dict[bytes, tuple[bytes, float]] = {}
        """Entries by name, which is the prefix of the function and the key, and when they expire."""
        self.bytes = 0
        """Approximate bytes of all entries."""

    def __len__(self) -> int:
        return len(self._entries)

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return self.found(function, keys)

    def found(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Do the same as `get`, which waits for nothing here."""
        names = self._names(function, keys)
        if self._entries.keys().isdisjoint(names):
            return [None] * len(names)
        kept, now = list(map(self._entries.get, names)), self._clock()
        expired = [name for name, each in zip(names, kept, strict=True) if each is not None and each[1] <= now]
        if expired:
            for name in expired:
                self._remove(name)
            kept = list(map(self._entries.get, names))
        used = {name: each for name, each in zip(names, kept, strict=True) if each is not None}
        collections.deque(map(self._entries.pop, used), maxlen=0)
        self._entries.update(used)
        return [None if each is None else each[0] for each in kept]

    async def put(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        self.keep(function, entries, seconds)

    def keep(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        """Do the same as `put`, which waits for nothing here."""
        until, kept, by_key = self._clock() + seconds, self._entries, dict(entries)
        timed = zip(by_key.values(), itertools.repeat(until))
        new = dict(zip(self._names(function, by_key), timed, strict=True))
        if not kept.keys().isdisjoint(new):
            for name in new:
                self._remove(name)
        kept.update(new)
        self.bytes += sum(map(len, by_key.values())) + ENTRY_BYTES * len(new)
        if self.bytes > self._max_bytes:
            self._evict(self._max_bytes - self._max_bytes // EVICTED_PART)

    async def stats(self) -> list[Stored]:
        sums: dict[bytes, tuple[int, int]] = {}
        for name, (entry, _) in self._entries.items():
            count, size = sums.get(name[:_PREFIX_BYTES], (0, 0))
            sums[name[:_PREFIX_BYTES]] = count + 1, size + len(entry) + ENTRY_BYTES
        by_function = sorted((function, *sums[prefix]) for function, prefix in self._prefixes.items() if prefix in sums)
        return [Stored(*each) for each in by_function]

    async def clear(self, function: str | None = None) -> int:
        prefix = b"" if function is None else self._prefix(function)
        chosen = [name for name in self._entries if name.startswith(prefix)]
        for name in chosen:
            self._remove(name)
        return len(chosen)

    async def export(self) -> AsyncIterator[tuple[str, bytes, bytes]]:
        functions = {prefix: function for function, prefix in self._prefixes.items()}
        for name, (entry, _) in list(self._entries.items()):
            yield functions[name[:_PREFIX_BYTES]], name[_PREFIX_BYTES:], entry

    def _names(self, function: str, keys: "Sequence[bytes] | dict[bytes, bytes]") -> list[bytes]:
        prefix = self._prefix(function)
        return [prefix + key for key in keys]

    def _prefix(self, function: str) -> bytes:
        return self._prefixes.setdefault(function, len(self._prefixes).to_bytes(_PREFIX_BYTES))

    def _evict(self, limit: int) -> None:
        """Remove the entries that were not used for longest, until the others have at most this many bytes."""
        excess, chosen = self.bytes - limit, []
        for name, (entry, _) in self._entries.items():
            if excess <= 0:
                break
            excess -= len(entry) + ENTRY_BYTES
            chosen.append(name)
        for name in chosen:
            self._remove(name)

    def _remove(self, name: bytes) -> None:
        removed = self._entries.pop(name, None)
        if removed is not None:
            self.bytes -= len(removed[0]) + ENTRY_BYTES
