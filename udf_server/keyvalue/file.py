"""FileBackend keeps entries in a SQLite file, for the processes of one host. They survive a loss of power."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from udf_server.base.key_value_backend import LARGEST_KEPT, Backend, Change, KeyValueError
from udf_server.base.private_files import NotPrivate
from udf_server.base.sqlite_files import Limit, OtherFormat, opened, parts, size_of, transaction

__all__ = ["KEY_VALUE_FILE", "FileBackend"]

Result = TypeVar("Result")
KEY_VALUE_FILE = "keyvalue.sqlite3"
FORMAT = 1
BUSY_SECONDS = 10.0
"""How long an operation waits for another process."""
OPERATION_SECONDS = 20.0
"""How long an operation may take."""
CLOSING_SECONDS = 1.0
_TABLES = """
    CREATE TABLE IF NOT EXISTS entries (
        function TEXT, key BLOB, value BLOB, expires REAL, PRIMARY KEY (function, key)
    );
    CREATE INDEX IF NOT EXISTS entries_expires ON entries (expires);
"""

# SQLite keeps values of any type and size in a column, whoever has written them.
_ENTRIES = "SELECT key, substr(CAST(value AS BLOB), 1, ?) FROM entries WHERE function = ? AND expires > ?"


class FileBackend(Backend):
    """Entries in the file `keyvalue.sqlite3` of a folder. One thread of this process uses it."""

    def __init__(self, folder: Path, max_bytes: int, wall: Callable[[], float] = time.time) -> None:
        """`wall` is the time in seconds since 1970, which all processes of the host share."""
        self._path = folder / KEY_VALUE_FILE
        self._max_bytes = max_bytes
        self._wall = wall
        self._thread: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None
        self._limit: Limit | None = None

    async def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, "udf-keyvalue")
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)
        except (OSError, sqlite3.Error) as error:
            await self.close()
            raise KeyValueError(f"setting 'cache_url': cannot use {self._path}: {error}") from None
        except (OtherFormat, NotPrivate) as error:
            await self.close()
            raise KeyValueError(f"setting 'cache_url': {error}") from None

    async def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._limit is not None:
                self._limit.end(CLOSING_SECONDS)
            closing = asyncio.get_running_loop().run_in_executor(thread, self._disconnect)
            await asyncio.wait([closing], timeout=CLOSING_SECONDS + BUSY_SECONDS)
            thread.shutdown(wait=False)

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._run(lambda db: self._get(db, function, keys))

    async def compare_and_set(self, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        return await self._run(lambda db: self._change(db, function, changes, seconds))

    # The methods below run on the thread.

    def _connect(self) -> None:
        # Unlike an entry of the cache, a lost entry may cost a second payment.
        self._db = opened(self._path, _TABLES, FORMAT, "FULL", BUSY_SECONDS)
        self._limit = Limit(self._db)

    def _disconnect(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    async def _run(self, work: Callable[[sqlite3.Connection], Result]) -> Result:
        def run() -> Result:
            if self._db is None or self._limit is None:
                raise KeyValueError("the key-value store is closed")
            self._limit.start(OPERATION_SECONDS)
            try:
                return work(self._db)
            except sqlite3.Error as error:
                raise KeyValueError(f"{self._path}: {error}") from None

        if self._thread is None:
            raise KeyValueError("the key-value store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    def _get(self, db: sqlite3.Connection, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        now = self._wall()
        found: dict[bytes, bytes] = {}
        for marks, part in parts(keys):
            text = f"{_ENTRIES} AND key IN ({marks})"
            found.update(db.execute(text, (LARGEST_KEPT + 1, function, now, *part)).fetchall())
        return [found.get(key) for key in keys]

    def _change(self, db: sqlite3.Connection, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        # No other process writes between the comparison and the change.
        with transaction(db):
            now = self._wall()
            found = self._get(db, function, [change.key for change in changes])
            same = [kept == change.before for kept, change in zip(found, changes, strict=True)]
            rows = [
                (function, change.key, change.after, now + seconds)
                for change, made in zip(changes, same, strict=True)
                if made
            ]
            if size_of(db) + sum(len(value) for _, _, value, _ in rows) > self._max_bytes:
                db.execute("DELETE FROM entries WHERE expires <= ?", (now,))
                if size_of(db) + sum(len(value) for _, _, value, _ in rows) > self._max_bytes:
                    raise KeyValueError(f"{self._path} is full: cache_max_bytes is {self._max_bytes}")
            db.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)", rows)
        return same
