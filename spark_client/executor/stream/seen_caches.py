"""SeenCaches remembers the caches of servers, so that a server hears that others of its target have another one."""

import collections

__all__ = ["SeenCaches", "process_caches"]

MOST_FUNCTIONS = 1_000


class SeenCaches:
    """The cache that a server had last, by target and function. Safe to use from any thread."""

    def __init__(self) -> None:
        self._seen: collections.OrderedDict[tuple[str, str], tuple[str, str]] = collections.OrderedDict()

    def elsewhere(self, target: str, function: str, server: str) -> str:
        """The cache of another server of the target; empty if none was seen, or if it was this server's own."""
        address, cache = self._seen.get((target, function), (server, ""))
        return cache if address != server else ""

    def note(self, target: str, function: str, server: str, cache: str) -> None:
        """Remember the cache of a server. An empty text is none."""
        if cache:
            self._seen[target, function] = server, cache
            while len(self._seen) > MOST_FUNCTIONS:
                self._seen.popitem(last=False)


_PROCESS = SeenCaches()


def process_caches() -> SeenCaches:
    """The caches that streams of this process have seen."""
    return _PROCESS
