"""Creates the store that a URL names."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from udf_server.base.errors import InvalidConfig
from udf_server.base.store import Store
from udf_server.stores.file import FileStore
from udf_server.stores.memory import MemoryStore
from udf_server.stores.redis import RedisStore

__all__ = ["store_from_url"]


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
