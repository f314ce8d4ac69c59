"""Store is the base class of the places where entries are kept by key: those of the cache, and those of functions."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

__all__ = [
    "BEGINNING_BYTES", "ENTRY_BYTES", "LARGEST_ENTRY", "LARGEST_OWN", "NONE", "Change", "Store", "StoreError", "Stored",
    "bounded_entry",
]  # fmt: skip

LARGEST_ENTRY = 1 << 20
"""An outcome with more bytes is not kept."""
LARGEST_OWN = LARGEST_ENTRY + 100
"""Largest number of bytes of an entry of a function's own, with its checksum, and encrypted."""
ENTRY_BYTES = 200
"""Approximate bytes that an entry takes in addition to its own."""
BEGINNING_BYTES = 16
"""This many bytes at the beginning of an entry have its time, or a nonce: another entry of the key has others."""

NONE: Mapping[bytes, bytes] = MappingProxyType({})


def bounded_entry(entry: bytes) -> bytes:
    """The entry; only its beginning if it is too large for one of ours, which makes it a damaged one."""
    return entry if len(entry) <= LARGEST_ENTRY else entry[:BEGINNING_BYTES]


class StoreError(Exception):
    """The store cannot be reached, is full, or refuses an operation. The message has no secrets and no entries."""


@dataclass(frozen=True)
class Stored:
    """What a store holds for one function."""

    function: str
    """Name and version, such as "classify@1"."""
    entries: int
    bytes: int


class Change(NamedTuple):
    """What `compare_and_set` does with one key."""

    key: bytes
    before: bytes | None
    """What the key must have: None for no entry."""
    after: bytes


class Store(ABC):
    """Keeps entries by function and key until they expire. They are of two kinds, which do not share keys.

    Outcomes are what `put` keeps. They can be computed again, so a full store evicts those that were not used for
    longest. What `compare_and_set` keeps is a function's own and is never evicted: a full store refuses it.

    Use it on the event loop on which it was opened. Methods raise StoreError. A store that is shared has claims: while
    a server holds the claim of a key, other servers wait for its outcome. A claim ends when an entry is put, when it is
    released, and soon after its server was lost.
    """

    shared = False
    """Whether other processes use the same entries."""

    async def open(self) -> None:  # noqa: B027 - not every store connects
        """Connect for outcomes. Raises InvalidConfig if that cannot succeed, as with a wrong password."""

    async def open_own(self) -> None:  # noqa: B027 - not every store connects
        """Connect for entries of a function's own. Raises StoreError if they could be lost before they expire."""

    async def close(self) -> None:  # noqa: B027 - not every store connects
        """Disconnect. Safe to call twice."""

    @abstractmethod
    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """The outcome of each key; None for keys without one."""

    @abstractmethod
    async def put(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        """Keep outcomes by key for this time, and release their claims."""

    async def claim(self, function: str, keys: Sequence[bytes], useless: Mapping[bytes, bytes] = NONE) -> list[bool]:
        """Claim keys that nobody else has claimed and that have no outcome.

        Args:
            function: Name and version of the function.
            keys: Distinct keys.
            useless: The beginnings, by key, of outcomes that count as none because they are too old or damaged.

        Returns:
            For each key whether this process has the claim.
        """
        return [True] * len(keys)

    async def release(self, function: str, keys: Sequence[bytes]) -> None:  # noqa: B027 - not every store has claims
        """Release claims of this process."""

    @abstractmethod
    async def stats(self) -> list[Stored]:
        """The outcomes that the store holds, by function."""

    @abstractmethod
    async def clear(self, function: str | None = None) -> int:
        """Remove the outcomes of a function, or all. Returns their number."""

    @abstractmethod
    def export(self) -> AsyncIterator[tuple[str, bytes, bytes]]:
        """Function, key and entry of every outcome."""

    @abstractmethod
    async def own(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """What the function has of its own under each key; None for keys without an entry."""

    @abstractmethod
    async def compare_and_set(self, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        """Keep `after` for this time under each key that still has `before`. Returns for each whether it had.

        Keys must differ. If it raises, some of the changes may have been made.
        """
