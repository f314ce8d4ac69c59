"""The file cache of two servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from udf_server.stores.file import FileStore

__all__ = ["two_file_stores"]


@asynccontextmanager
async def two_file_stores(folder: Path) -> AsyncIterator[tuple[FileStore, FileStore, list[float]]]:
    """Two servers' stores in one folder, and the time that both have in a list of one number."""
    now = [1_000_000.0]
    one, two = (FileStore(folder, 1 << 20, wall=lambda: now[0]) for _ in range(2))
    for store in (one, two):
        await store.open()
    try:
        yield one, two, now
    finally:
        await asyncio.gather(one.close(), two.close())
