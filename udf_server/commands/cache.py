"""`udf-server cache`: what the cache of the server with the same settings holds."""

import base64
import json
from collections.abc import AsyncIterator

from udf_server.base.errors import InvalidConfig
from udf_server.base.store import Store, StoreError
from udf_server.serving.config import ServerConfig
from udf_server.stores.file import FileStore
from udf_server.stores.urls import store_from_url

__all__ = ["cleared", "exported", "stats"]


async def stats(config: ServerConfig) -> str:
    """A line for each function: its entries and their bytes."""
    store = await _opened(config)
    try:
        found = await store.stats()
    except StoreError as error:
        raise _failed(error) from None
    finally:
        await store.close()
    lines = [f"{each.function}: {each.entries:,} entries, {each.bytes:,} bytes" for each in found]
    return "\n".join(lines) or "the cache is empty"


async def cleared(config: ServerConfig, function: str | None) -> int:
    """Remove the entries of a function, such as "classify@1", or all. Returns their number."""
    store = await _opened(config)
    try:
        return await store.clear(function)
    except StoreError as error:
        raise _failed(error) from None
    finally:
        await store.close()


async def exported(config: ServerConfig) -> AsyncIterator[str]:
    """A line of JSON for each entry: function, key (hexadecimal) and entry (base64)."""
    store = await _opened(config)
    try:
        async for function, key, entry in store.export():
            line = {"function": function, "key": key.hex(), "entry": base64.b64encode(entry).decode()}
            yield json.dumps(line)
    except StoreError as error:
        raise _failed(error) from None
    finally:
        await store.close()


async def _opened(config: ServerConfig) -> Store:
    if config.cache_url.startswith("memory:"):
        raise InvalidConfig(
            "setting 'cache_url' is memory: such a cache is in the server's process only and ends with it; its metrics "
            "begin with udf_cache_"
        )
    store = store_from_url(config.cache_url, config.cache_max_bytes)
    if isinstance(store, FileStore) and not store.path.exists():
        raise InvalidConfig(
            f"setting 'cache_url': there is no cache at {store.path}; a server creates it when it starts"
        )
    await store.open()
    return store


def _failed(error: StoreError) -> InvalidConfig:
    return InvalidConfig(f"the store of the setting 'cache_url' fails: {error}")
