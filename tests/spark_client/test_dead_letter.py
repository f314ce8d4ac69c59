"""Dead letters: Parquet files that are there in full, or not at all."""

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from remote_udf.errors import ErrorCode
from spark_client.errors import DeadLetterFailed
from spark_client.executor.dead_letter import DEAD_LETTER_COLUMNS, DeadLetterWriter
from spark_client.executor.policy import ERROR_TYPE
from spark_client.executor.task import TaskInfo
from tests.spark_client.scripted import row_error


def writer(path, partition=0, micro_batch=-1):
    return DeadLetterWriter(str(path), "op", TaskInfo(partition=partition, micro_batch=micro_batch))


def letters(*numbers):
    return pa.table({"x": pa.array(numbers, pa.int64())}), ["f@1"] * len(numbers), [row_error()] * len(numbers)


def written(path):
    """The numbers in the directory, as Spark would see them."""
    rows = ds.dataset(str(path), format="parquet").to_table().to_pylist()
    return sorted(row["x"] for row in rows)


def names_in(path):
    return [entry.name for entry in path.iterdir()]


def test_a_letter_holds_the_row_the_function_and_the_error(tmp_path):
    to = writer(tmp_path)
    table = pa.table({"x": [1, 2], "y": [None, "b"]})
    to.write(table, ["f@1", "g@2"], [row_error("no"), row_error("late", ErrorCode.TIMEOUT, attempts=3, retryable=True)])
    to.commit()
    (file,) = tmp_path.iterdir()
    found = pq.read_table(file)
    assert found.schema.names == ["x", "y", *DEAD_LETTER_COLUMNS]
    assert found.schema.field("_error").type == ERROR_TYPE
    assert found.to_pylist()[1] == {
        "x": 2, "y": "b", "_function": "g@2",
        "_error": {"code": "TIMEOUT", "message": "late", "attempts": 3, "retryable": True},
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


def test_micro_batches_do_not_replace_one_another(tmp_path):
    for micro_batch in (0, 1):
        to = writer(tmp_path, micro_batch=micro_batch)
        to.write(*letters(micro_batch))
        to.commit()
    assert written(tmp_path) == [0, 1]


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


@pytest.mark.parametrize("path", ["s3a://bucket/letters", "dbfs:/letters", "nosuch://x"])
def test_a_file_system_nobody_knows_is_refused_before_the_first_row(path):
    with pytest.raises(DeadLetterFailed, match=f"option dead-letter: cannot write to '{path}': Unrecognized file"):
        writer(path)


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
