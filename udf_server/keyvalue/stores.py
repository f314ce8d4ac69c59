"""KeyValueStores opens the key-value stores of a server's functions, at the place that `cache_url` names."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_backend import Backend
from udf_server.base.key_value_store import KeyValueStore, Seal
from udf_server.keyvalue.file import FileBackend
from udf_server.keyvalue.memory import MemoryBackend
from udf_server.keyvalue.redis import RedisBackend

__all__ = ["KeyValueStores", "OpenedStore"]

DEFAULT_BYTES = 64 << 20


class OpenedStore:
    """The store of one function, with its connection."""

    def __init__(self, store: KeyValueStore, backend: Backend) -> None:
        self.store = store
        self._backend = backend

    async def close(self) -> None:
        """Disconnect. Safe to call twice."""
        await self._backend.close()


class KeyValueStores:
    """Opens stores. Each has a connection of its own, for the event loop of its function."""

    def __init__(
        self, url: str = "memory:", max_bytes: int = DEFAULT_BYTES, *, seal: Seal | None = None,
        unseal: Seal | None = None,
    ) -> None:  # fmt: skip
        """Create what opens stores.

        Args:
            url: The setting `cache_url`, which the cache has checked.
            max_bytes: The setting `cache_max_bytes`: a store in memory or in a folder has at most that, too.
            seal: Encrypts values.
            unseal: Decrypts values.
        """
        self._url = url
        self._in_memory = url.startswith("memory:")
        self._max_bytes = max_bytes
        self._memory = MemoryBackend(max_bytes)
        self._seal, self._unseal = seal, unseal

    def require_durable(self, function: str) -> None:
        """Raise InvalidConfig if entries would end with this process."""
        if self._in_memory:
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
        backend = self._backend()
        await backend.open()
        return OpenedStore(KeyValueStore(backend, function, self._seal, self._unseal), backend)

    def _backend(self) -> Backend:
        if self._in_memory:
            return self._memory
        if self._url.startswith("file:"):
            return FileBackend(Path(unquote(urlsplit(self._url).path)), self._max_bytes)
        return RedisBackend(self._url)
