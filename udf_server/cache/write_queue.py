"""WriteQueue writes entries to a shared store in the background, and releases claims, one after the other."""

import asyncio
import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from udf_server.base.store import ENTRY_BYTES, Store
from udf_server.cache.store_access import StoreAccess

__all__ = ["QUEUE_BYTES", "WriteQueue"]

QUEUE_BYTES = 32 << 20
"""Maximum bytes of entries that wait to be written to a shared store. Further ones are not kept."""
WRITE_SECONDS = 5.0
"""Maximum time of one write to a shared store."""
STALLED_SECONDS = 1.0
"""If no write has ended for this time while the cache is closed, what is queued is dropped."""
KEPT_SECONDS = 60.0
"""How long a write that fails is tried again."""


@dataclass(frozen=True, slots=True)
class _Write:
    """Entries to be put, or claims to be released if there are no seconds."""

    function: str
    entries: Sequence[tuple[bytes, bytes]]
    seconds: float | None
    size: int
    until: float
    """When it is given up."""


class WriteQueue:
    """Use it on one event loop. What does not fit is counted as an error of the cache."""

    def __init__(
        self, store: Store, access: StoreAccess, clock: Callable[[], float], errors: Callable[[str, int], object]
    ) -> None:
        """`errors` counts entries that are not kept, by the reason."""
        self.size = 0
        """The bytes that are queued."""
        self._store, self._access, self._clock, self._errors = store, access, clock, errors
        self._writes: collections.deque[_Write] = collections.deque()
        self._unwritten: dict[str, dict[bytes, bytes]] = {}
        """The entries that are queued, by function and key."""
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    async def close(self) -> None:
        """Write what is queued, within a limit. Safe to call twice."""
        if (writer := self._writer) is not None:
            until, before = self._clock() + WRITE_SECONDS, -1
            # A server that stops does not wait for a store that fails or does not answer.
            while (
                not (writer.done() or self._access.writing.fails(WRITE_SECONDS))
                and before != self.size
                and self._clock() < until
            ):
                before = self.size
                await asyncio.wait([writer], timeout=STALLED_SECONDS)
        self._closed = True
        if (writer := self._writer) is not None:
            writer.cancel()
            await asyncio.wait([writer])

    def unwritten(self, function: str) -> Mapping[bytes, bytes]:
        """The queued entries of a function, which are newer than those that the store has."""
        return self._unwritten.get(function, {})

    def put(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        """Write entries that expire after these seconds."""
        self._add(function, entries, seconds, sum(len(entry) + ENTRY_BYTES for _, entry in entries))

    def release(self, function: str, keys: Sequence[bytes]) -> None:
        """Release claims."""
        self._add(function, [(key, b"") for key in keys], None, len(keys) * ENTRY_BYTES)

    def _add(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float | None, size: int) -> None:
        if self._closed or not entries:
            return
        if self.size + size > QUEUE_BYTES:
            self._errors("queue", len(entries))
            return
        self._writes.append(_Write(function, entries, seconds, size, self._clock() + KEPT_SECONDS))
        self.size += size
        if seconds is not None:
            self._unwritten.setdefault(function, {}).update(entries)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def _write(self) -> None:
        """Write what is queued, then end."""
        # A library may raise an error of its own instead of the cancellation, so the task also asks for `_closed`.
        while self._writes and not self._closed:
            write = self._writes[0]
            await asyncio.sleep(self._access.writing.left(WRITE_SECONDS))
            done = await self._access.asked(
                "put" if write.seconds else "release", self._written_to(write), WRITE_SECONDS
            )
            # If the store is unavailable for long, later writes matter more than this one.
            if done or self._clock() > write.until:
                self._writes.popleft()
                self.size -= write.size
                self._forget(write)
        self._writer = None

    def _forget(self, write: _Write) -> None:
        unwritten = self._unwritten.get(write.function, {})
        for key, entry in write.entries:
            if unwritten.get(key) is entry:  # otherwise a later write has another one
                del unwritten[key]
        if not unwritten:
            self._unwritten.pop(write.function, None)

    async def _written_to(self, write: _Write) -> bool:
        if write.seconds is None:
            await self._store.release(write.function, [key for key, _ in write.entries])
        else:
            await self._store.put(write.function, write.entries, write.seconds)
        return True
