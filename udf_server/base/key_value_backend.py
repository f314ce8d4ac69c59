"""Backend is the base class of the places where the entries of key-value stores are kept."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["ENTRY_BYTES", "LARGEST_KEPT", "LARGEST_VALUE", "Backend", "Change", "KeyValueError"]

ENTRY_BYTES = 100
"""Approximate bytes that an entry takes in addition to its key and its value."""
LARGEST_VALUE = 1 << 20
"""Largest number of bytes of a value."""
LARGEST_KEPT = LARGEST_VALUE + 100
"""Largest number of bytes that a value has where it is kept, with its checksum, and encrypted."""


class KeyValueError(Exception):
    """The store cannot be reached, is full, or refuses an operation. The message has no secrets and no values."""


class Change(NamedTuple):
    """What `compare_and_set` of a backend does with one key, in bytes as they are kept."""

    key: bytes
    before: bytes | None
    """What the key must have: None for no entry."""
    after: bytes


class Backend(ABC):
    """Keeps entries by function and key until they expire. It never evicts one before: if it is full, it refuses.

    Use it on the event loop on which it was opened. Methods raise KeyValueError.
    """

    async def open(self) -> None:  # noqa: B027 - not every backend connects
        """Connect. Raises KeyValueError if entries could be lost before they expire."""

    async def close(self) -> None:  # noqa: B027 - not every backend connects
        """Disconnect. Safe to call twice."""

    @abstractmethod
    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """What each key has; None for keys without an entry."""

    @abstractmethod
    async def compare_and_set(self, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        """Keep `after` for this time under each key that still has `before`. Returns for each whether it had.

        If it raises, some of the changes may have been made.
        """
