"""Flights has the keys whose call is running in this process, so that equal rows wait for it (single flight)."""

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar

__all__ = ["Flights"]

Batch = TypeVar("Batch")


class Flights(Generic[Batch]):
    """The batch that owns each key, and the rows that wait for its outcome. Use it on the server's event loop.

    A row that waits is a pair of its batch and its index there. Methods take many keys at a time, because a call of
    Python per key would take as long as everything else that a cheap row needs.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, Batch] = {}
        self._waiting: dict[bytes, dict[tuple[Batch, int], None]] = {}

    def __len__(self) -> int:
        """The number of keys that have an owner."""
        return len(self._owners)

    @property
    def waited_for(self) -> bool:
        """Whether rows wait for a key. Safe to call on any thread."""
        return bool(self._waiting)

    def own(self, keys: Sequence[bytes], batch: Batch) -> list[int]:
        """Make the batch the owner of the keys that have none. Returns the positions of those that have one.

        If a key occurs twice, the second position has an owner: the first one.
        """
        owners, mine = self._owners, dict.fromkeys(keys, batch)
        if len(mine) == len(keys) and owners.keys().isdisjoint(mine):
            owners.update(mine)
            return []
        taken = []
        for place, key in enumerate(keys):
            if key in owners:
                taken.append(place)
            else:
                owners[key] = batch
        return taken

    def owner(self, key: bytes) -> Batch | None:
        return self._owners.get(key)

    def wait(self, key: bytes, row: tuple[Batch, int]) -> None:
        """Have a row wait for the owner of a key."""
        self._waiting.setdefault(key, {})[row] = None

    def leave(self, key: bytes, row: tuple[Batch, int]) -> None:
        """End the waiting of a row."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(row, None)
            if not waiting:
                del self._waiting[key]

    def land(self, keys: Sequence[bytes | None]) -> Iterator[tuple[int, Iterable[tuple[Batch, int]]]]:
        """End the calls of keys, because they have outcomes. A row without a key has None.

        Returns the position of each key for which rows wait, and these rows.
        """
        collections.deque(map(self._owners.pop, keys, itertools.repeat(None)), maxlen=0)  # type: ignore[arg-type]
        if not self._waiting:
            return iter(())
        return self._landed(keys)

    def _landed(self, keys: Sequence[bytes | None]) -> Iterator[tuple[int, Iterable[tuple[Batch, int]]]]:
        for place, key in enumerate(keys):
            if key in self._waiting:
                yield place, self._waiting.pop(key)

    def waiting(self, key: bytes) -> list[tuple[Batch, int]]:
        """The rows that wait for a key, in the order in which they began."""
        return list(self._waiting.get(key, ()))

    def pass_on(self, key: bytes) -> tuple[Batch, int] | None:
        """End the ownership of a key without an outcome.

        Returns the row that has waited longest, whose batch is the owner now; None if none waits.
        """
        waiting = self._waiting.get(key)
        if not waiting:
            self._owners.pop(key, None)
            return None
        heir = next(iter(waiting))
        self.leave(key, heir)
        self._owners[key] = heir[0]
        return heir
