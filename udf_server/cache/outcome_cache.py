"""OutcomeCache is the cache of one server process: its store, the running calls, and what happens if the store fails.

It fails open: if the store is unreachable, slow or full, functions are called as without a cache.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from udf_server.base.key_value_store import LARGEST_ENTRY, Sealing, Store
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.cached_batch import CachedBatch
from udf_server.cache.running_calls import Flights, Orphans
from udf_server.cache.store_access import StoreAccess, WriteQueue
from udf_server.stores.blocks import Recalled
from udf_server.stores.memory import MemoryStore
from udf_server.stores.row_bytes import row_sizes

__all__ = ["CacheUnavailable", "OutcomeCache"]

AGAIN_SECONDS = 0.25
"""How often a store is asked again for rows that must not be called without it."""
AnswerT = TypeVar("AnswerT")


class CacheUnavailable(Exception):
    """The store has not answered in time for rows that must not be called without it."""


class OutcomeCache:
    """The cache that all streams of a server process share. Use it on the server's event loop."""

    def __init__(
        self,
        store: Store,
        metrics: ServerMetrics,
        *,
        callers_differ: bool = False,
        code: str = "",
        sealing: Sealing | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Create a cache.

        Args:
            store: Where entries are kept.
            metrics: The metrics of the server.
            callers_differ: Whether callers authenticate. If so, `cache-scope` is `caller` unless it is set.
            code: Identifies the code of the functions; empty if a new version tells that it has changed.
            sealing: Encrypts and decrypts an entry.
            clock: A clock that never goes back.
            wall: The seconds since 1970.
        """
        self.store = store
        self.callers_differ = callers_differ
        self.code = code
        self.sealing = sealing
        self.wall = wall
        self.keeps_values = isinstance(store, MemoryStore) and not store.shared and sealing is None
        """Whether `keep_values` and `recall` are used, instead of making entries of values."""
        self.flights: Flights[CachedBatch] = Flights()
        """The owners are batches of the streams of this process."""
        self.orphans = Orphans()
        """The calls whose stream was lost."""
        self._metrics = metrics
        self._clock = clock
        self._access = StoreAccess(clock, self.count_errors, self._took)
        self.writes = WriteQueue(store, self._access)
        """The entries that wait to be written to a shared store."""

    async def open(self) -> None:
        """Connect to the store. Raises InvalidConfig."""
        await self.store.open()

    async def wait_for_orphans(self) -> None:
        """Wait until orphaned calls have ended, if their values outlive this process."""
        if self.store.shared:
            await self.orphans.wait()

    async def close(self) -> None:
        """End orphaned calls, write what is queued, within a limit, and disconnect. Safe to call twice."""
        await self.orphans.close()
        await self.writes.close()
        await self.store.close()

    def observe(self) -> None:
        """Update the metrics of what is kept in this process. Call about once a second."""
        if isinstance(self.store, MemoryStore):
            self._metrics.cache_bytes.set(self.store.held_bytes)
        self._metrics.cache_queue_bytes.set(self.writes.size)
        self._metrics.cache_orphans.set(self.orphans.rows)

    async def get(
        self, function: str, keys: Sequence[bytes], seconds: float, until: float | None = None
    ) -> list[bytes | None]:
        """The entries of the keys, or None for each of them if the store fails or takes longer than `seconds`.

        With `until` the store is asked again until it answers. Raises CacheUnavailable if it has not by then.
        """
        found = await self._asked("get", lambda: self.store.get(function, keys), seconds, until)
        if found is None:
            found = [None] * len(keys)
        if newer := self.writes.unwritten(function):
            found = [entry if entry is not None else newer.get(key) for entry, key in zip(found, keys, strict=True)]
        return found

    def recall(self, function: str, keys: Sequence[bytes]) -> list[Recalled]:
        """Do the same as `get` without entries. Pass the rows to `used` when their values were read."""
        assert isinstance(self.store, MemoryStore)
        began = self._clock()
        recalled = self.store.recall(function, keys)
        self._took("get", self._clock() - began)
        return recalled

    def used(self, recalled: Sequence[Recalled]) -> None:
        """Keep rows longer than those that are not used."""
        assert isinstance(self.store, MemoryStore)
        self.store.used(recalled)

    async def claim(
        self, function: str, keys: Sequence[bytes], useless: Mapping[bytes, bytes], seconds: float,
        until: float | None = None,
    ) -> list[bool]:  # fmt: skip
        """For each key, whether this process may call it now. If the shared store fails, it may call every one.

        `useless` has what `Store.claim` says. With `until` the store is asked again. Raises CacheUnavailable as `get`.
        """
        try:
            claimed = await self._asked("claim", lambda: self.store.claim(function, keys, useless), seconds, until)
        except CacheUnavailable:
            self.release(function, keys)
            raise
        if claimed is None:
            # The store may have granted them all the same.
            self.release(function, keys)
            return [True] * len(keys)
        return claimed

    async def _asked(
        self, operation: str, ask: Callable[[], Coroutine[None, None, AnswerT]], seconds: float, until: float | None
    ) -> AnswerT | None:
        while (answer := await self._access.asked(operation, ask(), seconds)) is None and until is not None:
            left = until - self._clock()
            if left <= 0:
                raise CacheUnavailable
            await asyncio.sleep(min(AGAIN_SECONDS, left))
        return answer

    def keep(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        """Keep entries: at once in memory; in any other store within milliseconds, because they are queued."""
        kept = entries
        if max(map(len, dict(entries).values())) > LARGEST_ENTRY:
            kept = [each for each in entries if len(each[1]) <= LARGEST_ENTRY]
            self.count_errors("large", len(entries) - len(kept))
            self.release(function, [key for key, entry in entries if len(entry) > LARGEST_ENTRY])
        if isinstance(self.store, MemoryStore):
            self.store.keep(function, kept, seconds)
        else:
            self.writes.put(function, kept, seconds)

    def keep_values(self, function: str, keys: Sequence[bytes], values: pa.Array, seconds: float) -> None:
        """Do the same as `keep` without entries, if `keeps_values`."""
        assert isinstance(self.store, MemoryStore)
        if values.nbytes > LARGEST_ENTRY:
            small = np.flatnonzero(row_sizes(values) <= LARGEST_ENTRY)
            if len(small) < len(keys):
                self.count_errors("large", len(keys) - len(small))
                keys, values = [keys[place] for place in small.tolist()], values.take(pa.array(small))
        if keys:
            self.store.keep_values(function, keys, values, seconds, self.wall())

    def release(self, function: str, keys: Sequence[bytes]) -> None:
        """Release claims, because their calls have no outcome that is kept."""
        if self.store.shared:
            self.writes.release(function, keys)

    def count_errors(self, reason: str, count: int = 1) -> None:
        self._metrics.cache_errors.labels(reason).inc(count)

    def _took(self, operation: str, seconds: float) -> None:
        self._metrics.cache_seconds.labels(operation).observe(seconds)
