"""MemoryBackend keeps entries in the memory of this process, and loses them with it."""

import threading
import time
from collections.abc import Callable, Sequence

from udf_server.base.key_value_backend import ENTRY_BYTES, Backend, Change, KeyValueError

__all__ = ["MemoryBackend"]


class MemoryBackend(Backend):
    """Entries in a dictionary. Unlike other backends it may be used on any thread: functions share it."""

    def __init__(self, max_bytes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, bytes], tuple[bytes, float]] = {}
        self._bytes = 0

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        with self._lock:
            return [self._found(function, key) for key in keys]

    async def compare_and_set(self, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        with self._lock:
            return [self._change(function, change, seconds) for change in changes]

    def _found(self, function: str, key: bytes) -> bytes | None:
        value, until = self._entries.get((function, key), (None, 0.0))
        return value if until > self._clock() else None

    def _change(self, function: str, change: Change, seconds: float) -> bool:
        if self._found(function, change.key) != change.before:
            return False
        place = function, change.key
        self._drop(place)
        size = _size(change.key, change.after)
        if self._bytes + size > self._max_bytes:
            for each in [each for each, (_, until) in self._entries.items() if until <= self._clock()]:
                self._drop(each)
        if self._bytes + size > self._max_bytes:
            if change.before is not None:  # what was there stays
                self._entries[place] = change.before, self._clock() + seconds
                self._bytes += _size(change.key, change.before)
            raise KeyValueError(f"the key-value store in memory is full: cache_max_bytes is {self._max_bytes}")
        self._entries[place] = change.after, self._clock() + seconds
        self._bytes += size
        return True

    def _drop(self, place: tuple[str, bytes]) -> None:
        value, _ = self._entries.pop(place, (None, 0.0))
        if value is not None:
            self._bytes -= _size(place[1], value)


def _size(key: bytes, value: bytes) -> int:
    return len(key) + len(value) + ENTRY_BYTES
