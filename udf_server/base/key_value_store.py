"""KeyValueStore is what an `open` hook gets: the entries of one function."""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from udf_server.base.store import LARGEST_ENTRY, Change, Store, StoreError

__all__ = ["LARGEST_VALUE", "KeyValueEntry", "KeyValueError", "KeyValueStore", "Seal"]

LARGEST_VALUE = LARGEST_ENTRY
"""Largest number of bytes of a value."""
_CHECKSUM_BYTES = 4
Seal = Callable[[bytes, bytes], bytes]
"""Encrypts or decrypts bytes, which are authenticated with their key. Returns nothing for what it cannot decrypt."""


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

    def __init__(self, backend: Store, function: str, seal: Seal | None = None, unseal: Seal | None = None) -> None:
        """The host creates it. `function` is the name and version whose entries these are."""
        self._backend = backend
        self._function = function
        self._seal, self._unseal = seal, unseal

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
        return checked if self._seal is None else self._seal(checked, key)

    def _opened(self, key: bytes, kept: bytes | None) -> KeyValueEntry | None:
        if kept is None:
            return None
        # Taken for absent, a request might be sent and paid for again.
        checked = kept if self._unseal is None else self._unseal(kept, key)
        if self._unseal is not None and not checked:
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
