"""SqliteFile is a file that several processes of one host use at the same time."""

import asyncio
import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from udf_server.base.key_value_store import StoreError
from udf_server.stores.private_files import NotPrivate, check_private

__all__ = ["FileFormat", "OtherFormat", "SqliteFile", "opened", "parts", "size_of", "transaction"]

Result = TypeVar("Result")

KEYS_AT_ONCE = 500
AGAIN_SECONDS = 0.01
CHECKED_STEPS = 10_000
"""Steps of SQLite's virtual machine between two looks at the clock."""
CLOSING_SECONDS = 1.0
_ERROR = 0xFF
"""The part of SQLite's extended error codes that says what failed."""


class OtherFormat(Exception):
    """Another version of the project has written the file. The message names the two formats and says what to do."""


class Limit:
    """When a statement of a connection is interrupted, which raises sqlite3.OperationalError.

    A file that others have written may have views or triggers that have no end.
    """

    def __init__(self, db: sqlite3.Connection, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = self._latest = math.inf
        db.set_progress_handler(lambda: self.left <= 0, CHECKED_STEPS)

    @property
    def left(self) -> float:
        """Seconds until the end."""
        return min(self._until, self._latest) - self._clock()

    def start(self, seconds: float) -> None:
        """Let the statements from now on take this time together."""
        self._until = self._clock() + seconds

    def end(self, seconds: float) -> None:
        """Let no statement take longer than this from now on. Safe to call on any thread."""
        self._latest = self._clock() + seconds


@dataclass(frozen=True)
class FileFormat:
    """How a file is opened and used."""

    tables: str
    """The statements that make the tables and indexes."""
    number: int
    """The number of the format of the tables."""
    synchronous: str
    """What SQLite waits for: FULL, so that a loss of power loses nothing, or NORMAL, so that it damages nothing."""
    busy_seconds: float
    """How long opening, and each operation, waits for other processes."""
    operation_seconds: float
    """How long an operation of a server may take."""


class SqliteFile:
    """A file that one thread of this process uses. Use it on one event loop."""

    def __init__(self, path: Path, file_format: FileFormat, thread: str) -> None:
        """`thread` is the name of the thread."""
        self.path, self._format, self._name = path, file_format, thread
        self._thread: ThreadPoolExecutor | None = None
        self._db: sqlite3.Connection | None = None
        self._limit: Limit | None = None

    async def open(self) -> None:
        """Begin to use the file. If that fails, operations try it again. Raises the errors of `opened`."""
        self._thread = ThreadPoolExecutor(1, self._name)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)

    async def close(self, last: str = "", *values: str) -> None:
        """End the use of the file by a last statement. It takes some seconds at most. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            if self._limit is not None:
                self._limit.end(CLOSING_SECONDS)
            closing = asyncio.get_running_loop().run_in_executor(thread, self._disconnect, last, values)
            # A disk may not answer at all.
            await asyncio.wait([closing], timeout=CLOSING_SECONDS + self._format.busy_seconds)
            thread.shutdown(wait=False)

    async def run(self, work: Callable[[sqlite3.Connection], Result], seconds: float | None = None) -> Result:
        """What `work` returns, which runs on the thread and may take this time. Raises StoreError."""

        def run() -> Result:
            if self._thread is None:
                raise StoreError("the store is closed")
            try:
                if self._db is None or self._limit is None:
                    self._connect()  # when the server started, that failed
                assert self._db is not None and self._limit is not None
                self._limit.start(self._format.operation_seconds if seconds is None else seconds)
                return work(self._db)
            except (OSError, sqlite3.Error) as error:
                raise StoreError(f"{self.path}: {error}") from None
            except (OtherFormat, NotPrivate) as error:
                raise StoreError(str(error)) from None

        if self._thread is None:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    # The methods below run on the thread.

    def _connect(self) -> None:
        self._db = opened(self.path, self._format)
        self._limit = Limit(self._db)

    def _disconnect(self, last: str, values: Sequence[str]) -> None:
        db, self._db = self._db, None
        if db is not None:
            with contextlib.suppress(sqlite3.Error):
                db.execute(last, values)
            db.close()


def opened(
    path: Path,
    file_format: FileFormat,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> sqlite3.Connection:
    """Open a file that only this user can read, and make its tables if it has none. Warns if others can change it.

    Args:
        path: The file. Its folder is made too.
        file_format: How it is opened.
        sleep: The sleep of this thread.
        clock: Seconds, never backwards.

    Raises:
        OSError, sqlite3.Error: The file cannot be used.
        OtherFormat: The file has another format.
        NotPrivate: The file, or its folder, belongs to another user.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(path, os.getuid())
    path.touch(mode=0o600)
    db = sqlite3.connect(path, timeout=file_format.busy_seconds, isolation_level=None)
    until = clock() + file_format.busy_seconds
    while True:
        try:
            _prepare(db, path, file_format)
            return db
        except sqlite3.OperationalError as error:
            # SQLite waits for other processes, but not when several switch a new file to WAL, or one of them closes it.
            if error.sqlite_errorcode & _ERROR != sqlite3.SQLITE_BUSY or clock() >= until:
                db.close()
                raise
            sleep(AGAIN_SECONDS)
        except BaseException:
            db.close()
            raise


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Write all of it or nothing."""
    # IMMEDIATE, because a transaction that begins with reading fails if another process writes meanwhile.
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite has ended it itself if the disk is full
            db.execute("ROLLBACK")
        raise


def parts(keys: Sequence[bytes]) -> Iterator[tuple[str, Sequence[bytes]]]:
    """Cut keys to as many as one statement may have. Yields a list of as many question marks, and the keys."""
    for start in range(0, len(keys), KEYS_AT_ONCE):
        part = keys[start : start + KEYS_AT_ONCE]
        yield ",".join("?" * len(part)), part


def size_of(db: sqlite3.Connection) -> int:
    """The bytes of the pages that are in use."""
    pages, free, size = (
        db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _prepare(db: sqlite3.Connection, path: Path, file_format: FileFormat) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {file_format.synchronous}")
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, file_format.number):
        raise OtherFormat(f"{path} has format {found}, this version needs {file_format.number}: use another folder")
    if not found:
        db.executescript(file_format.tables)
        db.execute(f"PRAGMA user_version = {file_format.number}")
