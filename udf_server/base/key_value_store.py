"""Store is where entries are kept by key, those of the cache and of functions; an open hook gets the KeyValueStore."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "BEGINNING_BYTES", "ENTRY_BYTES", "LARGEST_ENTRY", "LARGEST_OWN", "LARGEST_VALUE", "Change",
    "KeyValueEntry", "KeyValueError", "KeyValueStore", "Sealing", "Store", "StoreError", "Stored", "bounded_entry",
]  # fmt: skip

LARGEST_ENTRY = 1 << 20
"""An outcome with more bytes is not kept."""
LARGEST_OWN = LARGEST_ENTRY + 100
"""Largest number of bytes of an entry of a function's own, with its checksum, and encrypted."""
ENTRY_BYTES = 200
"""Approximate bytes that an entry takes in addition to its own."""
BEGINNING_BYTES = 16
"""This many bytes at the beginning of an entry have its time, or a nonce: another entry of the key has others."""


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

    async def claim(self, function: str, keys: Sequence[bytes], useless: Mapping[bytes, bytes]) -> list[bool]:
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


LARGEST_VALUE = LARGEST_ENTRY
"""Largest number of bytes of a value."""
_CHECKSUM_BYTES = 4


class Sealing(NamedTuple):
    """Encrypts and decrypts bytes, which are authenticated with their key."""

    seal: Callable[[bytes, bytes], bytes]
    unseal: Callable[[bytes, bytes], bytes]
    """Returns nothing for what it cannot decrypt."""


class KeyValueError(Exception):
    """The store cannot be reached, is full, or refuses an operation. The message has no secrets and no values."""

    @classmethod
    def of(cls, error: StoreError) -> "KeyValueError":
        """The same error for authors, who know the store by its setting."""
        return cls(f"setting 'cache_url': {error}")


@dataclass(frozen=True)
class KeyValueEntry:
    """What a key had when it was read."""

    value: bytes = field(repr=False)
    kept: bytes = field(repr=False)
    """The same as it is kept, encrypted or not: this is what is compared."""


class KeyValueStore:
    """Entries of one function that outlive its calls, for all servers with the same `cache_url`.

    An entry is changed only by comparison, so that of several servers one succeeds. Entries stay until they expire: a
    full store refuses further ones. Use it on the function's event loop.
    """

    def __init__(self, backend: Store, function: str, sealing: Sealing | None = None) -> None:
        """The host creates it. `function` is the name and version whose entries these are."""
        self._backend, self._function, self._sealing = backend, function, sealing

    async def get(self, keys: Sequence[bytes]) -> list[KeyValueEntry | None]:
        """Return the entry of each key; None for keys without one.

        Raises:
            KeyValueError: The store fails, or an entry cannot be decrypted.
        """
        try:
            found = await self._backend.own(self._function, keys) if keys else []
        except StoreError as error:
            raise KeyValueError.of(error) from None
        return [self._opened(key, kept) for key, kept in zip(keys, found, strict=True)]

    async def compare_and_set(
        self, changes: Sequence[tuple[bytes, KeyValueEntry | None, bytes]], seconds: float
    ) -> list[bool]:
        """Keep a value under each key that still has the entry that was read. The keys must differ.

        Args:
            changes: For each key the entry that `get` returned, None for none, and the new value.
            seconds: How long the new entries stay.

        Returns:
            For each change whether it was made. If not, another call has changed the key: read it again.

        Raises:
            KeyValueError: The store fails or is full, or a value is too large. Some changes may have been made.
        """
        for _, _, value in changes:
            if len(value) > LARGEST_VALUE:
                raise KeyValueError(f"a value has {len(value)} bytes; at most {LARGEST_VALUE} are kept")
        given = [
            Change(key, None if entry is None else entry.kept, self._sealed(key, value))
            for key, entry, value in changes
        ]
        try:
            return await self._backend.compare_and_set(self._function, given, seconds) if given else []
        except StoreError as error:
            raise KeyValueError.of(error) from None

    def _sealed(self, key: bytes, value: bytes) -> bytes:
        checked = self._checksum(key, value) + value
        return checked if self._sealing is None else self._sealing.seal(checked, key)

    def _opened(self, key: bytes, kept: bytes | None) -> KeyValueEntry | None:
        if kept is None:
            return None
        # Taken for absent, a request might be sent and paid for again.
        checked = kept if self._sealing is None else self._sealing.unseal(kept, key)
        if self._sealing is not None and not checked:
            raise KeyValueError(
                f"an entry of {self._function} cannot be decrypted: cache_encryption_variable has another key than "
                "the one with which it was written"
            )
        value = checked[_CHECKSUM_BYTES:]
        if checked[:_CHECKSUM_BYTES] != self._checksum(key, value):
            raise KeyValueError(
                f"an entry of {self._function} is damaged, belongs to another key, or is encrypted: check what "
                "cache_url names, and cache_encryption_variable"
            )
        return KeyValueEntry(value, kept)

    def _checksum(self, key: bytes, value: bytes) -> bytes:
        """It has the function and the key, so that a value is no other key's, wherever a backend returns it."""
        seed = zlib.crc32(key, zlib.crc32(self._function.encode()))
        return zlib.crc32(value, seed).to_bytes(_CHECKSUM_BYTES, "big")

    def __repr__(self) -> str:
        return f"<key-value store of {self._function}>"
