"""Room: how much may wait to be sent before who makes more of it has to wait, on threads and event loops alike."""

import asyncio
import threading
from collections.abc import Callable

__all__ = ["Room"]

ROOM_BYTES = 16 << 20


class Room:
    """Bytes of early results of one stream that are made and not sent. Whoever makes more of them waits for room."""

    def __init__(self, limit: int = ROOM_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held = 0
        self._closed = False
        self._wakers: list[Callable[[], object]] = []

    def take(self, size: int) -> None:
        with self._lock:
            self._held += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._held -= size
        self._wake()

    def close(self) -> None:
        """Nobody waits any more: the stream has ended."""
        self._closed = True
        self._wake()

    def wait(self) -> None:
        """Blocks the thread while there is no room."""
        event = threading.Event()
        while not self._has_room(event.set):
            event.wait()
            event.clear()

    async def available(self) -> None:
        """Waits on any event loop while there is no room."""
        event, loop = asyncio.Event(), asyncio.get_running_loop()
        while not self._has_room(lambda: loop.call_soon_threadsafe(event.set)):
            await event.wait()
            event.clear()

    def _has_room(self, waker: Callable[[], object]) -> bool:
        with self._lock:
            if self._closed or self._held < self._limit:
                return True
            self._wakers.append(waker)
            return False

    def _wake(self) -> None:
        with self._lock:
            if not self._closed and self._held >= self._limit:
                return
            wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker()
