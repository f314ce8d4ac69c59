"""Listings: what a process has found in directories of dead letters, so that it lists each only once."""

from collections import OrderedDict
from collections.abc import Callable

from remote_udf.threads import THREADS, Threads

__all__ = ["LISTINGS", "Found", "Listings"]

QUERIES_KEPT = 64
"""The number of restarts of queries whose directories a process remembers."""

Found = dict[int, list[str]]
"""The names of files by micro-batch."""


class Listings:
    """The files found, by directory, query and restart."""

    def __init__(self, threads: Threads = THREADS) -> None:
        self._found: OrderedDict[tuple[str, str, str], Found] = OrderedDict()
        self._lock = threads.lock()

    def get(self, key: tuple[str, str, str], look: Callable[[], Found]) -> Found:
        """The files of this key. `look` finds them if this process has not looked yet."""
        with self._lock:
            if key not in self._found:
                self._found[key] = look()
                while len(self._found) > QUERIES_KEPT:
                    self._found.popitem(last=False)
            return self._found[key]


LISTINGS = Listings()
