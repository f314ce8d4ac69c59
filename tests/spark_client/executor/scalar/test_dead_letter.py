"""Dead letters: Parquet files that are written atomically."""

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from remote_udf.errors import ErrorCode
from spark_client.base.errors import DeadLetterFailed
from spark_client.executor.engine.policy import ERROR_TYPE
from spark_client.executor.files import file_system
from spark_client.executor.scalar.dead_letter import LETTER_COLUMNS, DeadLetterWriter, Operator
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from tests.spark_client.bucket import bucket_of
from tests.spark_client.scripted import row_error

RUN = "f" * 32
NOW = datetime.datetime(2024, 5, 1, 12, 0, 0, 250, datetime.UTC)


def runtime_of(task):
    return Runtime(task=lambda: task, now=NOW.timestamp)


def writer(path, partition=0, operation=RUN):
    operator = Operator(operation, partition=partition)
    return DeadLetterWriter(str(path), operator, runtime=runtime_of(TaskInfo(partition=partition)))


def stream_writer(path, micro_batch, partition=0, *, query="1-1", query_run="first", operation=RUN, driver="d"):
    """The writer of a task of a streaming query; each driver plans the query again."""
    task = TaskInfo(partition=partition, micro_batch=micro_batch, query=query, query_run=query_run)
    return DeadLetterWriter(str(path), Operator(operation, driver, partition), runtime=runtime_of(task))


def put(to, *numbers):
    """A task with these letters ends."""
    if numbers:
        to.write(*letters(*numbers))
    to.commit()


def letters(*numbers):
    return pa.table({"x": pa.array(numbers, pa.int64())}), ["f@1"] * len(numbers), [row_error()] * len(numbers)


def rows_in(path):
    """Returns the letters in the directory, as Spark would read them."""
    return ds.dataset(str(path), format="parquet").to_table().to_pylist()


def written(path):
    return sorted(row["x"] for row in rows_in(path))


def names_in(path):
    return [entry.name for entry in path.iterdir()]


def test_a_letter_holds_the_row_the_function_and_the_error(tmp_path):
    to = writer(tmp_path)
    table = pa.table({"x": [1, 2], "y": [None, "b"]})
    to.write(table, ["f@1", "g@2"], [row_error("no"), row_error("late", ErrorCode.TIMEOUT, attempts=3, retryable=True)])
    to.commit()
    (file,) = tmp_path.iterdir()
    found = pq.read_table(file)
    assert found.schema.names == ["x", "y", *LETTER_COLUMNS.names]
    assert found.schema.field("_error").type == ERROR_TYPE
    assert found.to_pylist()[1] == {
        "x": 2, "y": "b", "_function": "g@2",
        "_error": {"code": "TIMEOUT", "message": "late", "attempts": 3, "retryable": True},
        "_time": NOW, "_run": RUN, "_micro_batch": None, "_partition": 0,
    }  # fmt: skip


def test_nothing_is_seen_before_the_task_has_ended(tmp_path):
    to = writer(tmp_path / "new" / "folder")
    to.write(*letters(1, 2))
    assert written(tmp_path / "new/folder") == []
    to.write(*letters(3))
    to.commit()
    to.abort()
    assert written(tmp_path / "new/folder") == [1, 2, 3]


def test_a_task_that_fails_leaves_nothing(tmp_path):
    to = writer(tmp_path)
    to.write(*letters(1, 2))
    to.abort()
    to.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_task_without_failed_rows_writes_nothing_not_even_a_folder(tmp_path):
    to = writer(tmp_path / "letters")
    to.commit()
    to.abort()
    assert not (tmp_path / "letters").exists()


@pytest.mark.parametrize("second", [[], [7]])
def test_a_task_that_is_run_again_replaces_its_own_letters_and_no_others(tmp_path, second):
    for partition, numbers in ((0, [1, 2]), (1, [3])):
        to = writer(tmp_path, partition)
        to.write(*letters(*numbers))
        to.commit()
    again = writer(tmp_path, 0)
    if second:
        again.write(*letters(*second))
    again.commit()
    assert written(tmp_path) == sorted([3, *second])


def test_operations_do_not_replace_one_another(tmp_path):
    put(writer(tmp_path), 1)
    put(writer(tmp_path, operation="e" * 32), 2)
    assert written(tmp_path) == [1, 2]
    assert {row["_run"] for row in rows_in(tmp_path)} == {RUN, "e" * 32}


def test_micro_batches_do_not_replace_one_another(tmp_path):
    for micro_batch in (0, 1):
        put(stream_writer(tmp_path, micro_batch), micro_batch)
    assert written(tmp_path) == [0, 1]
    assert {(row["_run"], row["_micro_batch"]) for row in rows_in(tmp_path)} == {("1-1", 0), ("1-1", 1)}


@pytest.mark.parametrize("restarted", [{"query_run": "second"}, {"driver": "another"}])
@pytest.mark.parametrize("again", [{0: [1, 2], 1: [3]}, {0: [1], 1: [2], 2: [3]}, {0: [1, 2, 3]}, {0: [], 1: []}])
def test_a_micro_batch_that_runs_again_after_a_restart_replaces_all_its_letters(tmp_path, restarted, again):
    put(stream_writer(tmp_path, 7, 0), 70)
    for partition, numbers in {0: [1, 2], 1: [3]}.items():
        put(stream_writer(tmp_path, 8, partition), *numbers)
    put(stream_writer(tmp_path, 8, query="2-2"), 99)
    killed = stream_writer(tmp_path, 8, 3)
    killed.write(*letters(1000))
    for partition, numbers in again.items():
        put(stream_writer(tmp_path, 8, partition, operation="e" * 32, **restarted), *numbers)
    assert written(tmp_path) == sorted([70, *(number for numbers in again.values() for number in numbers), 99])
    assert [name for name in names_in(tmp_path) if name.startswith("_")] == []


def test_operators_of_one_restart_do_not_replace_one_another(tmp_path):
    put(stream_writer(tmp_path, 8), 1)
    for operation in ("a" * 32, "b" * 32):
        put(stream_writer(tmp_path, 8, operation=operation, query_run="second"), 5)
    put(stream_writer(tmp_path, 8, operation="a" * 32, query_run="second"), 6)
    assert written(tmp_path) == [5, 6]


def test_the_directory_is_listed_once_per_restart(tmp_path, monkeypatch):
    put(stream_writer(tmp_path, 8), 1)
    listed, selector = [], fs.FileSelector
    monkeypatch.setattr(fs, "FileSelector", lambda *given, **named: listed.append(1) or selector(*given, **named))
    for micro_batch in (8, 9, 10):
        for partition in (0, 1):
            put(stream_writer(tmp_path, micro_batch, partition, query_run="second"), micro_batch)
    assert (len(listed), written(tmp_path)) == (1, [8, 8, 9, 9, 10, 10])


def test_two_attempts_at_once_may_both_delete_the_file_of_an_earlier_one(tmp_path):
    class Racing:
        """A file system on which another attempt deletes a file first."""

        def __getattr__(self, name):
            return getattr(fs.LocalFileSystem(), name)

        def delete_file(self, path):
            Path(path).unlink()
            fs.LocalFileSystem().delete_file(path)

    put(writer(tmp_path), 1)
    runtime = Runtime(task=TaskInfo, file_system=lambda path: (Racing(), path))
    DeadLetterWriter(str(tmp_path), Operator(RUN), runtime=runtime).commit()
    assert written(tmp_path) == []


def test_two_attempts_at_once_do_not_meet(tmp_path):
    one, other = writer(tmp_path), writer(tmp_path)
    one.write(*letters(1))
    other.write(*letters(2))
    one.commit()
    other.abort()
    assert written(tmp_path) == [1]


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_uri_is_a_path_in_any_of_the_ways_spark_writes_it(tmp_path, scheme, monkeypatch):
    monkeypatch.chdir(tmp_path)
    to = writer(f"{scheme}{tmp_path}/letters")
    to.write(*letters(1))
    to.commit()
    assert names_in(tmp_path) == ["letters"]
    assert written(tmp_path / "letters") == [1]


@pytest.mark.parametrize("path", ["wasb://bucket/letters", "dbfs:/letters", "nosuch://x"])
def test_a_file_system_nobody_knows_is_refused_before_the_first_row(path):
    with pytest.raises(DeadLetterFailed, match=f"option dead-letter: cannot write to '{path}': Unrecognized file"):
        writer(path)


@pytest.mark.slow
def test_letters_are_written_to_a_bucket_by_the_name_that_spark_reads_it_with():
    with bucket_of("s3a") as bucket:
        to = writer(f"{bucket}/letters")
        to.write(*letters(1))
        to.commit()
        system, base = file_system(f"{bucket.replace('s3a:', 's3:')}/letters")
        assert pq.read_table(base, filesystem=system).column("x").to_pylist() == [1]


def test_a_path_that_cannot_be_a_folder_is_said(tmp_path):
    (tmp_path / "file").write_text("here already")
    to = writer(tmp_path / "file" / "letters")
    with pytest.raises(DeadLetterFailed, match=r"option dead-letter: cannot write to '.*/file/letters': .*directory"):
        to.write(*letters(1))
    to.abort()
    assert names_in(tmp_path) == ["file"]


def test_rows_parquet_cannot_hold_are_said_and_leave_nothing(tmp_path):
    to = writer(tmp_path)
    empty = pa.table({"x": pa.array([{}], pa.struct([]))})
    with pytest.raises(DeadLetterFailed, match="no child field"):
        to.write(empty, ["f@1"], [row_error()])
    to.abort()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_disappears_fails_the_task_and_not_its_end(tmp_path):
    to = writer(tmp_path / "letters")
    to.write(*letters(1))
    for file in (tmp_path / "letters").iterdir():
        file.unlink()
    Path(tmp_path / "letters").rmdir()
    with pytest.raises(DeadLetterFailed):
        to.commit()
    to.abort()
