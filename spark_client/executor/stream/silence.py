"""SilenceWatch is one thread per process that ends streams whose server is unresponsive.

A server that owes results sends Progress every few seconds. gRPC's own keepalive detects a machine
that is gone; this watch detects a server whose process only answers pings.
"""

import os
import threading
import weakref
from typing import Protocol

from remote_udf.threads import THREADS, Threads

__all__ = ["SilenceWatch", "process_watch"]

LOOK_SECONDS = 0.5


class _Watched(Protocol):
    def check_silence(self) -> None: ...


class SilenceWatch:
    """Checks its streams twice a second, while there are any."""

    def __init__(self, look_seconds: float = LOOK_SECONDS, *, threads: Threads = THREADS) -> None:
        self._look_seconds = look_seconds
        self._threads = threads
        self._watched: weakref.WeakKeyDictionary[_Watched, None] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._running = False

    def add(self, stream: _Watched) -> None:
        with self._lock:
            self._watched[stream] = None
            if not self._running:
                self._running = True
                self._threads.start("silence-watch", self._run)

    def discard(self, stream: _Watched) -> None:
        with self._lock:
            self._watched.pop(stream, None)

    def _run(self) -> None:
        while True:
            self._threads.sleep(self._look_seconds)
            with self._lock:
                streams = list(self._watched)
                if not streams:
                    self._running = False
                    return
            for stream in streams:
                stream.check_silence()


_watches: dict[int, SilenceWatch] = {}


def process_watch() -> SilenceWatch:
    """The watch of this process. A forked process gets its own, because threads do not survive a fork."""
    return _watches.setdefault(os.getpid(), SilenceWatch())
