"""Opens stores at the place that a setting names: those of outcomes, and the key-value stores of functions."""

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_store import KeyValueError, KeyValueStore, Sealing, Store, StoreError
from udf_server.stores.file import FileStore
from udf_server.stores.memory import MemoryStore
from udf_server.stores.redis import RedisStore

__all__ = ["KeyValueStores", "OpenedStore", "store_from_url"]


def store_from_url(url: str, max_bytes: int) -> Store:
    """The store of the setting `cache_url`. Raises InvalidConfig, whose message has no secret of the URL."""
    scheme, _, rest = url.partition(":")
    if scheme == "memory":
        if rest.strip("/"):
            raise InvalidConfig("setting 'cache_url': write nothing after memory:, or name a folder as file:///path")
        return MemoryStore(max_bytes)
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc or not parts.path.startswith("/") or len(parts.path) < 2 or parts.query or parts.fragment:
            raise InvalidConfig(
                "setting 'cache_url': write a folder as file:///absolute/path, with %23 for # and %3F for ?"
            )
        return FileStore(Path(unquote(parts.path)), max_bytes)
    if scheme in ("redis", "rediss", "unix"):
        return RedisStore(url)
    raise InvalidConfig("setting 'cache_url' does not begin with memory:, file:, redis:, rediss: or unix:")


DEFAULT_BYTES = 64 << 20


class OpenedStore(NamedTuple):
    """The store of one function, with its connection."""

    store: KeyValueStore
    close: Callable[[], Coroutine[None, None, None]]
    """Disconnects. Safe to call twice."""


class KeyValueStores:
    """Opens stores. Each has a connection of its own, for the event loop of its function; memory is one for all."""

    def __init__(self, url: str = "memory:", max_bytes: int = DEFAULT_BYTES, *, sealing: Sealing | None = None) -> None:
        """Create what opens stores.

        Args:
            url: The setting `cache_url`, which the cache has checked.
            max_bytes: The setting `cache_max_bytes`: a store in memory or in a folder has at most that, too.
            sealing: Encrypts and decrypts values.
        """
        self._url, self._max_bytes = url, max_bytes
        self._memory = store_from_url(url, max_bytes) if url.startswith("memory:") else None
        self._sealing = sealing

    def require_durable(self, function: str) -> None:
        """Raise InvalidConfig if entries would end with this process."""
        if self._memory is not None:
            raise InvalidConfig(
                f"function {function} keeps what must outlive this process, and setting 'cache_url' is memory: set it "
                "to a folder, file:///folder, or to a Redis"
            )

    async def open(self, function: str) -> OpenedStore:
        """Open the store of a function, on its event loop.

        Raises:
            KeyValueError: It cannot be used, or could lose entries before they expire.
            InvalidConfig: A library that it needs is not installed.
        """
        backend = store_from_url(self._url, self._max_bytes) if self._memory is None else self._memory
        try:
            await backend.open_own()
        except StoreError as error:
            await backend.close()
            raise KeyValueError.of(error) from None
        return OpenedStore(KeyValueStore(backend, function, self._sealing), backend.close)
