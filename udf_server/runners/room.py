"""Room limits the bytes of a stream's unsent results. If the limit is reached, the function waits for the client.

A result counts from the moment it exists until its message is passed to gRPC: first as values or an array (`Claim`),
then as messages. If both together reach the limit, no new row or call begins. Code that writes messages of an existing
result waits for messages only, because the result takes its room until all of it was written. A stream without results
may always continue, whatever other streams hold, so a result larger than every limit is the only one in its room.

The bytes of a server have owners, its callers. One that reads nothing and so fills the server does not stop the others.
"""

import asyncio
import collections
import contextlib
import threading
from collections.abc import Callable, Iterator

from remote_udf.threads import THREADS, Threads

__all__ = ["PIECE_BYTES", "RESULT_BYTES", "Claim", "Room", "Rooms"]

RESULT_BYTES = 16 << 20
PIECE_BYTES = 4 << 20
"""The approximate number of bytes to send together."""
OWNERS_PART = 4
"""Each of n owners may hold the limit divided by n times this number, although the server is full."""


class Rooms:
    """The bytes that all streams of a server hold: unanswered input and results. Safe to use from any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.full = False
        self._owned: collections.Counter[str] = collections.Counter()
        """By owner, without those that hold none."""
        self._lock = threading.Lock()
        self._waiting: dict[Room, None] = {}
        """Streams whose functions may wait because of the limit, in the order in which they began to wait."""

    def has_part(self, owner: str, more: int = 0) -> bool:
        """Whether the owner holds so much, or would with `more` bytes, that it has to wait while the server is full."""
        mine = self._owned[owner]
        return mine > 0 and (mine + more) * len(self._owned) * OWNERS_PART >= self.limit

    def add(self, size: int, owner: str) -> None:
        """Add this many bytes to those that the owner holds; a negative number subtracts."""
        woken: list[Room] = []
        with self._lock:
            self.held += size
            self.full = self.held >= self.limit
            self._owned[owner] += size
            if not self._owned[owner]:
                del self._owned[owner]
            if size < 0 and self._waiting:
                if not self.full:
                    # Only as many rooms are woken as will soon take the bytes that were released.
                    woken = list(self._waiting)[: (self.limit - self.held) // PIECE_BYTES + 1]
                elif not self.has_part(owner):
                    woken = [room for room in self._waiting if room.owner == owner]
                for room in woken:
                    del self._waiting[room]
        for room in woken:
            room.wake()

    @contextlib.contextmanager
    def holding(self, size: int, owner: str) -> Iterator[None]:
        """Hold this many bytes within the block."""
        self.add(size, owner)
        try:
            yield
        finally:
            self.add(-size, owner)

    def enter(self, room: "Room") -> None:
        """Wake the room once bytes are free."""
        with self._lock:
            self._waiting[room] = None

    def leave(self, room: "Room") -> None:
        with self._lock:
            self._waiting.pop(room, None)


class Room:
    """The bytes of one stream's unsent results. Safe to use from any thread."""

    def __init__(
        self,
        limit: int = RESULT_BYTES,
        rooms: Rooms | None = None,
        waited: Callable[[], object] = lambda: None,
        threads: Threads = THREADS,
        owner: str = "",
    ) -> None:
        """`waited` is called each time a row, call or message has to wait. `owner` is the caller."""
        self.owner = owner
        self.piece_bytes = max(min(PIECE_BYTES, limit // 4), 1)
        self._limit = limit
        self._rooms = rooms or Rooms(1 << 62)
        self._waited = waited
        self._threads = threads
        self._lock = threading.Lock()
        self.held = 0
        """Bytes of unsent results."""
        self._messages = 0
        """The part of `held` that is in messages."""
        self._closed = False
        self._wakers: list[Callable[[], object]] = []

    @property
    def full(self) -> bool:
        """Whether no new row or call may begin."""
        held = self.held
        return held >= self._limit or (held > 0 and self._server_full)

    @property
    def backed_up(self) -> bool:
        """Whether no message of an existing result may be written."""
        return self._messages >= self._limit or (self._messages > 0 and self._server_full)

    @property
    def _server_full(self) -> bool:
        return self._rooms.full and self._rooms.has_part(self.owner)

    def claim(self) -> "Claim":
        return Claim(self)

    def claimed(self, size: int) -> None:
        """Add this many bytes of a claim; a negative number subtracts."""
        self._add(size, 0)

    def take(self, size: int) -> None:
        """Add a message of this many bytes. Call when it was written."""
        self._add(size, size)

    def give_back(self, size: int) -> None:
        """Subtract a message of this many bytes. Call when it was sent or discarded."""
        self._add(-size, -size)

    def close(self) -> None:
        """Release everything and wake everything that waits. Call when the stream has ended. Safe to call twice."""
        with self._lock:
            self._closed = True
            held, self.held, self._messages = self.held, 0, 0
        self._rooms.leave(self)
        self._rooms.add(-held, self.owner)
        self.wake()

    def when_free(self, waker: Callable[[], object]) -> bool:
        """Whether a row or call may begin now. If not, `waker` is called once, on any thread, when that may change."""
        return self._free(waker, lambda: self.full)

    def wait(self) -> None:
        """Block the thread while messages are backed up."""
        event = self._threads.event()
        while not self._free(event.set, lambda: self.backed_up):
            event.wait()
            event.clear()

    async def available(self) -> None:
        """Wait on any event loop while messages are backed up."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        while not self._free(lambda: loop.call_soon_threadsafe(event.set), lambda: self.backed_up):
            await event.wait()
            event.clear()

    def wake(self) -> None:
        """Make everything that waits check again whether it may continue."""
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def _free(self, waker: Callable[[], object], exceeded: Callable[[], bool]) -> bool:
        if not exceeded():
            return True
        # The waker is registered before the second check, so that bytes released after that check wake it.
        with self._lock:
            self._wakers.append(waker)
        self._rooms.enter(self)
        if exceeded():
            self._waited()
            return False
        with self._lock:
            if waker in self._wakers:
                self._wakers.remove(waker)
        return True

    def _add(self, size: int, messages: int) -> None:
        with self._lock:
            if self._closed:
                return
            self.held += size
            self._messages += messages
            wake = size < 0 and bool(self._wakers)
        self._rooms.add(size, self.owner)
        if wake and not self.backed_up:
            self.wake()


class Claim:
    """The bytes of some results of a stream that exist and were not written: those of a batch or of a call."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.held = 0
        self._rows = 0
        """Number of outcomes in `held`. It is negative while some outcomes were taken out before they were added."""
        self._lock = threading.Lock()

    def add(self, size: int, rows: int = 0) -> None:
        """Add this many bytes of `rows` outcomes; a negative size subtracts."""
        with self._lock:
            left = min(max(-self._rows, 0), rows)
            self._rows += rows
            if left:
                size = size * (rows - left) // rows
            self.held += size
        if size:
            self._room.claimed(size)

    def leave(self, rows: int) -> None:
        """Take out this many outcomes. They return their share of the bytes, because single sizes are not known."""
        with self._lock:
            given = self.held if rows >= self._rows else self.held * rows // self._rows
            self._rows -= rows
            self.held -= given
        if given:
            self._room.claimed(-given)

    def release(self) -> None:
        """Release everything. Safe to call twice."""
        with self._lock:
            held, self.held, self._rows = self.held, 0, 0
        if held:
            self._room.claimed(-held)
