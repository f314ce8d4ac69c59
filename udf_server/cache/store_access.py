"""StoreAccess asks the store of the cache, whether or not it answers; WriteQueue writes to it in the background."""

import asyncio
import collections
import logging
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from udf_server.base.key_value_store import ENTRY_BYTES, Store, StoreError

__all__ = ["QUEUE_BYTES", "StoreAccess", "WriteQueue"]

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")
RETRY_SECONDS = (1.0, 30.0)
"""After a failure, the store is not used for this time, which doubles up to the second value."""


class Backoff:
    """The failures of one kind of operation since it last succeeded."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.failures = 0
        self.logged = False
        """Whether the log says that the operation fails."""
        self._until = self._failed_at = 0.0
        self._patience = math.inf
        """An operation that may take longer than this has not failed: callers choose how long they wait."""

    def fails(self, seconds: float) -> bool:
        """Whether the operation has failed, and would have failed if it might have taken this time."""
        return self.failures > 0 and seconds <= self._patience

    def left(self, seconds: float) -> float:
        """For how long an operation that may take `seconds` is not tried."""
        return max(self._until - self._clock(), 0.0) if self.fails(seconds) else 0.0

    def failed(self, began: float, patience: float) -> None:
        """Wait longer after each failure. Operations that had begun at the last one are not failures of their own.

        `patience` is the time after which the operation was given up; infinite if the store has refused it.
        """
        if self.failures and began <= self._failed_at:
            self._patience = max(self._patience, patience)
            return
        self._failed_at, self._patience = self._clock(), patience
        self._until = self._failed_at + min(RETRY_SECONDS[0] * 2.0**self.failures, RETRY_SECONDS[1])
        self.failures = min(self.failures + 1, 10)

    def worked(self) -> None:
        """Wait no more."""
        self.failures, self.logged = 0, False


class StoreAccess:
    """Operations on one store. It never fails: an operation without an answer has None."""

    def __init__(
        self, clock: Callable[[], float], errors: Callable[[str, int], object], took: Callable[[str, float], object]
    ) -> None:
        """`errors` counts what failed or is not kept, `took` gets the seconds of operations with an answer."""
        self.clock, self.errors, self._took = clock, errors, took
        self._reading, self.writing = Backoff(clock), Backoff(clock)
        """A store that is full can still be read."""

    async def asked(self, operation: str, asked: Coroutine[None, None, Answer], seconds: float) -> Answer | None:
        """The answer of the store; None if it fails, takes too long, or has just failed."""
        began, side = self.clock(), self._reading if operation == "get" else self.writing
        if side.left(seconds):
            asked.close()
            self.errors("unavailable", 1)
            return None
        try:
            async with asyncio.timeout(seconds):
                answer = await asked
        except Exception as error:
            # Whatever it is, no row may fail because of it, and later writes must go on.
            self._failed(operation, error, began, seconds if isinstance(error, TimeoutError) else math.inf)
            return None
        if side.fails(seconds) and operation != "release":  # which a store that is full may allow
            self._worked(side)
        self._took(operation, self.clock() - began)
        return answer

    def _failed(self, operation: str, error: BaseException, began: float, patience: float) -> None:
        self.errors(operation, 1)
        side, effect = self.writing, "nothing new is kept, and rows may be called by several servers"
        if operation == "get":
            side, effect = self._reading, "functions are called without it"
            # It would not answer claims either, and rows wait for both.
            self.writing.failed(began, patience)
        side.failed(began, patience)
        if not (side.logged or self._reading.logged):
            side.logged = True
            why = str(error) or type(error).__name__
            unexpected = None if isinstance(error, (StoreError, OSError)) else error
            log.warning(
                "cache is unavailable; %s", effect, extra={"during": operation, "why": why}, exc_info=unexpected
            )  # fmt: skip

    def _worked(self, side: Backoff) -> None:
        if side.logged:
            log.info("cache is available again", extra={"for": "reading" if side is self._reading else "writing"})
        side.worked()
        if not self.writing.logged:
            self.writing.worked()


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

    def __init__(self, store: Store, access: StoreAccess) -> None:
        self.size = 0
        """The bytes that are queued."""
        self._store, self._access, self._clock = store, access, access.clock
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
            self._access.errors("queue", len(entries))
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
