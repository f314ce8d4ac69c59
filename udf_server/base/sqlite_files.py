"""Opens the SQLite files that several processes of one host use at the same time."""

import contextlib
import math
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from udf_server.base.private_files import check_private

__all__ = ["Limit", "OtherFormat", "opened", "parts", "size_of", "transaction"]

KEYS_AT_ONCE = 500
AGAIN_SECONDS = 0.01
CHECKED_STEPS = 10_000
"""Steps of SQLite's virtual machine between two looks at the clock."""
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


def opened(
    path: Path,
    tables: str,
    form: int,
    synchronous: str,
    busy_seconds: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> sqlite3.Connection:
    """Open a file that only this user can read, and make its tables if it has none. Warns if others can change it.

    Args:
        path: The file. Its folder is made too.
        tables: The statements that make the tables and indexes.
        form: The number of the format of the tables.
        synchronous: What SQLite waits for: FULL, so that a loss of power loses nothing, or NORMAL, so that it damages
            nothing.
        busy_seconds: How long opening, and each later operation, waits for other processes.
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
    db = sqlite3.connect(path, timeout=busy_seconds, isolation_level=None)
    until = clock() + busy_seconds
    while True:
        try:
            _prepare(db, path, tables, form, synchronous)
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


def _prepare(db: sqlite3.Connection, path: Path, tables: str, form: int, synchronous: str) -> None:
    db.execute("PRAGMA journal_mode = WAL")
    db.execute(f"PRAGMA synchronous = {synchronous}")
    found = db.execute("PRAGMA user_version").fetchone()[0]
    if found not in (0, form):
        raise OtherFormat(f"{path} has format {found}, this version needs {form}: use another folder")
    if not found:
        db.executescript(tables)
        db.execute(f"PRAGMA user_version = {form}")
