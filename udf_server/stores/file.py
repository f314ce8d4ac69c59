"""FileStore keeps entries in SQLite files of a folder, for the processes of one host. They survive restarts."""

import contextlib
import functools
import itertools
import logging
import math
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_store import (
    BEGINNING_BYTES,
    ENTRY_BYTES,
    LARGEST_ENTRY,
    LARGEST_OWN,
    Change,
    Store,
    Stored,
    StoreError,
    bounded_entry,
)
from udf_server.stores.leases import LEASE_SECONDS, LONGEST_SECONDS, Beats
from udf_server.stores.sqlite_files import FileFormat, FileRefused, SqliteFile, rows_of, size_of, transaction

__all__ = ["FileStore"]

log = logging.getLogger(__name__)

FILE, OWN_FILE = "outcomes.sqlite3", "keyvalue.sqlite3"
TOUCH_SECONDS = 60.0
"""The time of the last use of an entry is this precise, because writing it takes longer than reading the entry."""
EVICTED_AT_ONCE = 32
TOUCHED_AT_ONCE = 1_000
EVICTION_SECONDS = 1.0
"""How long one evicts entries. Later ones evict what is left."""
# A loss of power may lose the latest outcomes, but does not damage the file.
_OUTCOMES = FileFormat(
    """
    CREATE TABLE IF NOT EXISTS entries (
        function TEXT, key BLOB, entry BLOB, expires REAL, used REAL, PRIMARY KEY (function, key)
    );
    CREATE INDEX IF NOT EXISTS entries_used ON entries (used);
    CREATE TABLE IF NOT EXISTS claims (function TEXT, key BLOB, server TEXT, PRIMARY KEY (function, key)) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS servers (server TEXT PRIMARY KEY, until REAL) WITHOUT ROWID;
    """,
    number=1, synchronous="NORMAL", busy_seconds=2.0, operation_seconds=5.0,
)  # fmt: skip
# Unlike an outcome, a lost entry of a function's own may cost a second payment.
_OWN = FileFormat(
    """
    CREATE TABLE IF NOT EXISTS entries (
        function TEXT, key BLOB, value BLOB, expires REAL, PRIMARY KEY (function, key)
    );
    CREATE INDEX IF NOT EXISTS entries_expires ON entries (expires);
    """,
    number=1, synchronous="FULL", busy_seconds=10.0, operation_seconds=20.0,
)  # fmt: skip

# SQLite keeps values of any type and size in a column, whoever has written them.
_ENTRIES = (
    "SELECT key, substr(CAST(entry AS BLOB), 1, ?), CAST(coalesce(used, 0) AS REAL) FROM entries "
    "WHERE function = ? AND expires > ?"
)
_OWN_ENTRIES = "SELECT key, substr(CAST(value AS BLOB), 1, ?) FROM entries WHERE function = ? AND expires > ?"
_BEGINNINGS = "SELECT key, substr(CAST(entry AS BLOB), 1, ?) FROM entries WHERE function = ? AND expires > ?"
_CLAIMS = "SELECT key FROM claims WHERE function = ? AND server = ?"


class FileStore(Store):
    """Outcomes in the file `outcomes.sqlite3` of a folder, entries of functions' own in `keyvalue.sqlite3`."""

    shared = True

    def __init__(self, folder: Path, max_bytes: int, wall: Callable[[], float] = time.time) -> None:
        """`max_bytes` is for each file. `wall` is the time in seconds since 1970, which all processes share."""
        self.path = folder / FILE
        self._max_bytes = max_bytes
        self._wall = wall
        self._outcomes = SqliteFile(self.path, _OUTCOMES, "udf-cache")
        self._own = SqliteFile(folder / OWN_FILE, _OWN, "udf-keyvalue")
        self._beats = Beats(self._beat, wall)
        self._touched: list[tuple[float, str, bytes]] = []

    async def open(self) -> None:
        try:
            await self._outcomes.open()
        except (OSError, sqlite3.Error) as error:
            # The server can do its work without a cache.
            why = f"cannot use {self.path}: {error}"
            log.warning("cache is unavailable; functions are called without it", extra={"why": why})
        except FileRefused as error:
            await self.close()
            raise InvalidConfig(f"setting 'cache_url': {error}") from None

    async def open_own(self) -> None:
        try:
            await self._own.open()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot use {self._own.path}: {error}") from None
        except FileRefused as error:
            raise StoreError(str(error)) from None

    async def close(self) -> None:
        await self._beats.stop()
        await self._outcomes.close("DELETE FROM servers WHERE server = ?", self._beats.name)
        await self._own.close()

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._outcomes.run(lambda db: self._get(db, function, keys))

    async def put(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        await self._outcomes.run(lambda db: self._put(db, function, entries, seconds))

    async def claim(self, function: str, keys: Sequence[bytes], useless: Mapping[bytes, bytes]) -> list[bool]:
        self._beats.start()
        return await self._outcomes.run(lambda db: self._claim(db, function, keys, useless))

    async def release(self, function: str, keys: Sequence[bytes]) -> None:
        rows = [(function, key, self._beats.name) for key in keys]
        await self._outcomes.run(
            lambda db: db.executemany("DELETE FROM claims WHERE function = ? AND key = ? AND server = ?", rows)
        )

    async def own(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        return await self._own.run(lambda db: self._get_own(db, function, keys))

    async def compare_and_set(self, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        return await self._own.run(lambda db: self._change(db, function, changes, seconds))

    async def stats(self) -> list[Stored]:
        text = (
            "SELECT function, count(*), coalesce(sum(length(CAST(entry AS BLOB))), 0) FROM entries WHERE "
            "typeof(function) = 'text' AND typeof(key) = 'blob' AND expires > ? GROUP BY function ORDER BY function"
        )
        rows = await self._outcomes.run(lambda db: db.execute(text, (self._wall(),)).fetchall(), math.inf)
        return [Stored(function, count, size + count * ENTRY_BYTES) for function, count, size in rows]

    async def clear(self, function: str | None = None) -> int:
        text = "DELETE FROM entries WHERE ? IS NULL OR function = ?"
        return await self._outcomes.run(lambda db: db.execute(text, (function, function)).rowcount, math.inf)

    async def export(self) -> AsyncIterator[tuple[str, bytes, bytes]]:
        function, key = "", b""
        while rows := await self._outcomes.run(functools.partial(self._page, function=function, key=key), math.inf):
            for row in rows:
                yield row
            function, key, _ = rows[-1]

    # The methods below run on the threads of the files.

    def _get(self, db: sqlite3.Connection, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        now = self._wall()
        found: dict[bytes, bytes | None] = {}
        for key, entry, used in rows_of(db, _ENTRIES, keys, LARGEST_ENTRY + 1, function, now):
            found[key] = None if entry is None else bounded_entry(entry)
            if used < now - TOUCH_SECONDS:
                self._touched.append((now, function, key))
        if len(self._touched) > TOUCHED_AT_ONCE:
            # What was read counts, although the disk may be full.
            with contextlib.suppress(sqlite3.Error):
                self._touch(db)
        return [found.get(key) for key in keys]

    def _touch(self, db: sqlite3.Connection) -> None:
        touched, self._touched = self._touched, []
        with transaction(db):
            db.executemany("UPDATE entries SET used = ? WHERE function = ? AND key = ?", touched)

    def _put(
        self, db: sqlite3.Connection, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float
    ) -> None:
        now = self._wall()
        with transaction(db):
            db.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?)",
                [(function, key, entry, now + seconds, now) for key, entry in entries],
            )
            db.executemany("DELETE FROM claims WHERE function = ? AND key = ?", [(function, key) for key, _ in entries])
        until = time.monotonic() + EVICTION_SECONDS
        while size_of(db) > self._max_bytes and time.monotonic() < until:
            if self._touched:
                self._touch(db)
            text = "DELETE FROM entries WHERE rowid IN (SELECT rowid FROM entries ORDER BY used LIMIT ?)"
            if not db.execute(text, (EVICTED_AT_ONCE,)).rowcount:
                break

    def _page(self, db: sqlite3.Connection, function: str, key: bytes) -> list[tuple[str, bytes, bytes]]:
        """The entries that follow this one."""
        text = (
            "SELECT function, key, CAST(entry AS BLOB) FROM entries WHERE (function, key) > (?, ?) "
            "AND typeof(function) = 'text' AND typeof(key) = 'blob' AND entry IS NOT NULL AND expires > ? "
            "ORDER BY function, key LIMIT 1000"
        )
        return db.execute(text, (function, key, self._wall())).fetchall()

    def _claim(
        self, db: sqlite3.Connection, function: str, keys: Sequence[bytes], useless: Mapping[bytes, bytes]
    ) -> list[bool]:
        now, name = self._wall(), self._beats.name
        with transaction(db):
            self._renew(db, name)
            db.execute(
                "DELETE FROM claims WHERE server NOT IN (SELECT server FROM servers WHERE until > ? AND until < ?)",
                (now, now + LONGEST_SECONDS),
            )
            found = rows_of(db, _BEGINNINGS, keys, BEGINNING_BYTES, function, now)
            there = {key for key, beginning in found if beginning and beginning != useless.get(key)}
            rows = [(function, key, name) for key in keys if key not in there]
            db.executemany("INSERT OR IGNORE INTO claims VALUES (?, ?, ?)", rows)
            mine = {key for (key,) in rows_of(db, _CLAIMS, keys, function, name)}
        return [key in mine and key not in there for key in keys]

    async def _beat(self, name: str) -> None:
        await self._outcomes.run(lambda db: self._renew(db, name))

    def _renew(self, db: sqlite3.Connection, name: str) -> None:
        db.execute("INSERT OR REPLACE INTO servers VALUES (?, ?)", (name, self._wall() + LEASE_SECONDS))

    def _get_own(self, db: sqlite3.Connection, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        found = dict(rows_of(db, _OWN_ENTRIES, keys, LARGEST_OWN + 1, function, self._wall()))
        return [found.get(key) for key in keys]

    def _change(self, db: sqlite3.Connection, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        # No other process writes between the comparison and the change.
        with transaction(db):
            found = self._get_own(db, function, [change.key for change in changes])
            same = [kept == change.before for kept, change in zip(found, changes, strict=True)]
            now, made = self._wall(), [*itertools.compress(changes, same)]
            added = sum(len(change.after) for change in made)
            if size_of(db) + added > self._max_bytes:
                db.execute("DELETE FROM entries WHERE expires <= ?", (now,))
                if size_of(db) + added > self._max_bytes:
                    raise StoreError(f"{self._own.path} is full: cache_max_bytes is {self._max_bytes}")
            db.executemany(
                "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?)",
                [(function, change.key, change.after, now + seconds) for change in made],
            )
        return same
