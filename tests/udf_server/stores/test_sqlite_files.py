"""Several processes open the same SQLite file at once, and none of them fails."""

import contextlib
import multiprocessing
import sqlite3

import pytest

from udf_server.stores.sqlite_files import FileFormat, FileRefused, opened

TABLES = "CREATE TABLE IF NOT EXISTS numbers (number INTEGER);"
FILES = 40


def file_format(number, busy_seconds):
    return FileFormat(TABLES, number, "NORMAL", busy_seconds, operation_seconds=20)


@pytest.fixture
def another(tmp_path):
    """Another connection to the file, which reads it before it has a write-ahead log."""
    with contextlib.closing(sqlite3.connect(tmp_path / "a.sqlite3", isolation_level=None)) as db:
        db.execute("CREATE TABLE other (x)")
        db.execute("BEGIN")
        db.execute("SELECT * FROM other").fetchall()
        yield db


def test_a_file_that_another_process_reads_is_waited_for(tmp_path, another):
    slept = []

    def sleep(seconds):
        slept.append(seconds)
        another.execute("COMMIT")

    db = opened(tmp_path / "a.sqlite3", file_format(1, 0.1), sleep, clock=lambda: 0.0)
    with contextlib.closing(db):
        assert len(slept) == 1
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("SELECT count(*) FROM numbers").fetchone() == (0,)


@pytest.mark.usefixtures("another")
def test_it_is_not_waited_for_without_end(tmp_path):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    with pytest.raises(sqlite3.OperationalError, match="locked"):
        opened(tmp_path / "a.sqlite3", file_format(1, 0.05), sleep, lambda: now[0])
    assert now[0] == pytest.approx(0.05)


def test_a_file_of_another_format_is_refused_and_left_as_it_is(tmp_path):
    with contextlib.closing(opened(tmp_path / "a.sqlite3", file_format(7, 1))):
        pass
    with pytest.raises(FileRefused, match=r"a\.sqlite3 has format 7, this version needs 1: use another folder"):
        opened(tmp_path / "a.sqlite3", file_format(1, 1))


def _open_each(folder, together, failures):
    for number in range(FILES):
        together.wait(60)
        try:
            with contextlib.closing(opened(folder / f"{number}.sqlite3", file_format(1, 10))) as db:
                db.execute("INSERT INTO numbers VALUES (1)")
        except sqlite3.Error as error:
            failures.put(f"{number}: {error}")


@pytest.mark.slow
def test_processes_that_start_together_share_a_new_file(tmp_path):
    context = multiprocessing.get_context("spawn")
    together, failures = context.Barrier(4), context.SimpleQueue()
    children = [context.Process(target=_open_each, args=(tmp_path, together, failures)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert failures.empty(), failures.get()
    assert [child.exitcode for child in children] == [0] * 4
    for number in range(FILES):
        with contextlib.closing(sqlite3.connect(tmp_path / f"{number}.sqlite3")) as db:
            assert db.execute("SELECT count(*) FROM numbers").fetchone() == (4,)
