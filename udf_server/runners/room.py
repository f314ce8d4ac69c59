"""Room: what a stream's results may take before the function that makes them waits for the client.

A result counts from the moment it is there until its message was handed to gRPC: as values or an array first (`Claim`),
then as messages. New rows and calls wait while both take too much; whoever writes messages of a result that is there
waits for messages only, as the result takes its room until all of it has left. A stream without any results may
always go on, however much there is elsewhere, so a result that is larger than every limit is alone in its room.
"""

import asyncio
import threading
from collections.abc import Callable

__all__ = ["PIECE_BYTES", "RESULT_BYTES", "Claim", "Room", "Rooms"]

RESULT_BYTES = 16 << 20
PIECE_BYTES = 4 << 20
"""What should leave at once has about this many bytes."""


class Rooms:
    """The bytes that all streams of a server hold: unanswered input and results. Safe to use from any thread."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.full = False
        self._lock = threading.Lock()
        self._waiting: dict[Room, None] = {}
        """Streams whose functions may wait because of the limit, the first to wait first."""

    def add(self, size: int) -> None:
        """This many bytes more are held, or fewer."""
        woken: list[Room] = []
        with self._lock:
            self.held += size
            self.full = self.held >= self.limit
            if size < 0 and self._waiting and self.held < self.limit:
                # No more than will soon hold what has become free.
                woken = list(self._waiting)[: (self.limit - self.held) // PIECE_BYTES + 1]
                for room in woken:
                    del self._waiting[room]
        for room in woken:
            room.wake()

    def enter(self, room: "Room") -> None:
        """The room is to be woken once bytes are free."""
        with self._lock:
            self._waiting[room] = None

    def leave(self, room: "Room") -> None:
        with self._lock:
            self._waiting.pop(room, None)


class Room:
    """The bytes of one stream's results that were not sent. Safe to use from any thread."""

    def __init__(
        self, limit: int = RESULT_BYTES, rooms: Rooms | None = None, waited: Callable[[], object] = lambda: None
    ) -> None:
        """`waited` is told each time that somebody has to wait."""
        self.piece_bytes = max(min(PIECE_BYTES, limit // 4), 1)
        self._limit = limit
        self._rooms = rooms or Rooms(1 << 62)
        self._waited = waited
        self._lock = threading.Lock()
        self.held = 0
        """Bytes of results that were not sent."""
        self._messages = 0
        """Those of them that are in messages."""
        self._closed = False
        self._wakers: list[Callable[[], object]] = []

    @property
    def full(self) -> bool:
        """No new row or call may begin."""
        held = self.held
        return held >= self._limit or (held > 0 and self._rooms.full)

    @property
    def backed_up(self) -> bool:
        """No message may be written, of results that are there."""
        return self._messages >= self._limit or (self._messages > 0 and self._rooms.full)

    def claim(self) -> "Claim":
        return Claim(self)

    def claimed(self, size: int) -> None:
        """A claim takes this many bytes more, or fewer."""
        self._add(size, 0)

    def take(self, size: int) -> None:
        """A message of this many bytes was written."""
        self._add(size, size)

    def give_back(self, size: int) -> None:
        """It was sent, or will not be."""
        self._add(-size, -size)

    def close(self) -> None:
        """Nobody waits any more, and nothing is held: the stream has ended. Safe to call twice."""
        with self._lock:
            self._closed = True
            held, self.held, self._messages = self.held, 0, 0
        self._rooms.leave(self)
        self._rooms.add(-held)
        self.wake()

    def when_free(self, waker: Callable[[], object]) -> bool:
        """Whether a row or call may begin now; otherwise `waker` is called once, on any thread, when it may be so."""
        return self._free(waker, lambda: self.full)

    def wait(self) -> None:
        """Blocks the thread while messages are backed up."""
        event = threading.Event()
        while not self._free(event.set, lambda: self.backed_up):
            event.wait()
            event.clear()

    async def available(self) -> None:
        """Waits on any event loop while messages are backed up."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        while not self._free(lambda: loop.call_soon_threadsafe(event.set), lambda: self.backed_up):
            await event.wait()
            event.clear()

    def wake(self) -> None:
        """Whoever waits looks again."""
        with self._lock:
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()

    def _free(self, waker: Callable[[], object], exceeded: Callable[[], bool]) -> bool:
        if not exceeded():
            return True
        # Registered first: what becomes free after this look wakes.
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
        self._rooms.add(size)
        if wake and not self.backed_up:
            self.wake()


class Claim:
    """What some results of a stream take that are there and not written: of a batch, or of a call."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.held = 0
        self._rows = 0
        """Outcomes that take this; less than 0 while some have left before they were added."""
        self._lock = threading.Lock()

    def add(self, size: int, rows: int = 0) -> None:
        """This many bytes more, or fewer, and the number of outcomes that they are for."""
        with self._lock:
            left = min(max(-self._rows, 0), rows)
            self._rows += rows
            if left:
                size = size * (rows - left) // rows
            self.held += size
        if size:
            self._room.claimed(size)

    def leave(self, rows: int) -> None:
        """This many outcomes are taken out. The size of each is no longer known: they return their share."""
        with self._lock:
            given = self.held if rows >= self._rows else self.held * rows // self._rows
            self._rows -= rows
            self.held -= given
        if given:
            self._room.claimed(-given)

    def release(self) -> None:
        """Nothing of it is left. Safe to call twice."""
        with self._lock:
            held, self.held, self._rows = self.held, 0, 0
        if held:
            self._room.claimed(-held)
