"""Flights has the keys whose call is running in this process, so that equal rows wait for it (single flight)."""

from collections.abc import Iterable
from typing import Generic, TypeVar

__all__ = ["Flights"]

Place = TypeVar("Place")


class Flights(Generic[Place]):
    """The owner of each key, and the places that wait for its outcome. Use it on the server's event loop."""

    def __init__(self) -> None:
        self._owners: dict[bytes, Place] = {}
        self._waiting: dict[bytes, dict[Place, None]] = {}

    def __len__(self) -> int:
        """The number of keys that have an owner."""
        return len(self._owners)

    def join(self, key: bytes, place: Place) -> bool:
        """Whether the place owns the key now. Otherwise it waits for the owner."""
        if key not in self._owners:
            self._owners[key] = place
            return True
        self._waiting.setdefault(key, {})[place] = None
        return False

    def owner(self, key: bytes) -> Place | None:
        return self._owners.get(key)

    def leave(self, key: bytes, place: Place) -> None:
        """End the waiting of a place."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(place, None)
            if not waiting:
                del self._waiting[key]

    def land(self, key: bytes) -> Iterable[Place]:
        """End the call of a key, because it has an outcome. Returns the places that wait for it."""
        self._owners.pop(key, None)
        return self._waiting.pop(key, ()) if self._waiting else ()

    def waiting(self, key: bytes) -> list[Place]:
        """The places that wait for a key, in the order in which they began."""
        return list(self._waiting.get(key, ()))

    def pass_on(self, key: bytes, place: Place) -> Place | None:
        """End the ownership of a place without an outcome.

        Returns the place that has waited longest, which is the owner now; None if none waits, or if this place is not
        the owner.
        """
        if self._owners.get(key) is not place and self._owners.get(key) != place:
            return None
        waiting = self._waiting.get(key)
        if not waiting:
            self._owners.pop(key, None)
            return None
        heir = next(iter(waiting))
        self.leave(key, heir)
        self._owners[key] = heir
        return heir
