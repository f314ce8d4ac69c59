"""SqliteFile is a file that several processes of one host use at the same time, and that only their user can change."""

import asyncio
import contextlib
import logging
import math
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from udf_server.base.key_value_store import StoreError

__all__ = ["FileFormat", "FileRefused", "SqliteFile", "check_private", "opened", "rows_of", "size_of", "transaction"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")

KEYS_AT_ONCE = 500
AGAIN_SECONDS = 0.01
CHECKED_STEPS = 10_000
"""Steps of SQLite's virtual machine between two looks at the clock."""
CLOSING_SECONDS = 1.0
_ERROR = 0xFF
"""The part of SQLite's extended error codes that says what failed."""


class FileRefused(Exception):
    """Another user can change the file, or another version of the project wrote it. The message says what to do."""


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
        self._until = self._latest = math.inf
        """When a statement is interrupted, which raises sqlite3.OperationalError: a file that others have written may
        have views or triggers that have no end."""

    async def open(self) -> None:
        """Begin to use the file. If that fails, operations try it again. Raises the errors of `opened`."""
        self._thread = ThreadPoolExecutor(1, self._name)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._connect)

    async def close(self, last: str = "", *values: str) -> None:
        """End the use of the file by a last statement. It takes some seconds at most. Safe to call twice."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._latest = time.monotonic() + CLOSING_SECONDS
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
                db = self._db or self._connect()  # when the server started, that failed
                self._until = time.monotonic() + (self._format.operation_seconds if seconds is None else seconds)
                return work(db)
            except (OSError, sqlite3.Error) as error:
                raise StoreError(f"{self.path}: {error}") from None
            except FileRefused as error:
                raise StoreError(str(error)) from None

        if self._thread is None:
            raise StoreError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    # The methods below run on the thread.

    def _connect(self) -> sqlite3.Connection:
        self._db = db = opened(self.path, self._format)
        self._until = self._latest = math.inf
        db.set_progress_handler(lambda: time.monotonic() >= min(self._until, self._latest), CHECKED_STEPS)
        return db

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
        FileRefused: The file has another format, or it or its folder belongs to another user.
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


def rows_of(db: sqlite3.Connection, text: str, keys: Sequence[bytes], *values: object) -> Iterator[tuple[Any, ...]]:
    """The rows of a query that have one of the keys. `values` are those of its other parameters."""
    for start in range(0, len(keys), KEYS_AT_ONCE):
        part = keys[start : start + KEYS_AT_ONCE]
        yield from db.execute(f"{text} AND key IN ({','.join('?' * len(part))})", (*values, *part))


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
        raise FileRefused(f"{path} has format {found}, this version needs {file_format.number}: use another folder")
    if not found:
        db.executescript(file_format.tables)
        db.execute(f"PRAGMA user_version = {file_format.number}")


def check_private(path: Path, user: int) -> None:
    """Check a file, which need not be there yet, and its folders.

    The log gets a warning if it, its folder or one of the folders above could be changed by others, or if it or its
    folder is a link. What belongs to another user than `user` or root, or is reached by a link of one, is refused:
    whoever made it can change values.

    Raises:
        FileRefused: It is refused.
        OSError: A folder cannot be read.
    """
    found = []
    for each in (path, path.parent):
        if each.is_symlink():
            _refuse_strangers(each, os.lstat(each), user)
            found.append(f"{each} is a link to {os.path.realpath(each)}")
    real = Path(os.path.realpath(path))
    for each in (real, *real.parents):
        try:
            about = os.lstat(each)
        except FileNotFoundError:
            continue
        own = each in (real, real.parent)
        if own:
            _refuse_strangers(each, about, user)
        # In a folder with the sticky bit, such as /tmp, nobody can replace what is another user's.
        sticky = not own and about.st_mode & stat.S_ISVTX
        if about.st_mode & (0o022 if own else 0o002) and not sticky:
            found.append(f"others can write to {each}, whose mode is {stat.S_IMODE(about.st_mode):03o}")
    if found:
        log.warning(
            "others may change the values of a file of this server; use a folder that only its user can write to",
            extra={"file": str(path), "why": "; ".join(found)},
        )


def _refuse_strangers(path: Path, about: os.stat_result, user: int) -> None:
    if about.st_uid not in (user, 0):
        raise FileRefused(
            f"{path} belongs to user {about.st_uid}, who could change values; this server runs as user {user}: use "
            "another folder, or give it to that user"
        )
