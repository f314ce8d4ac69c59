"""Parts of `write_parquet` that need no Spark: attempts of tasks, commits on file systems that fail, row groups."""

import contextlib
import math
import pickle
import re
import uuid
from collections.abc import Iterator

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from pyarrow import fs

from spark_client.base.errors import WriteFailed
from spark_client.executor import files as files_module
from spark_client.executor.files import is_of_time, located, located_directory, move_file
from spark_client.parquet import committing, output
from spark_client.parquet.committing import BeginPlan, CommitPlan, RecoverPlan, Replaced, abort, begin, commit, recover
from spark_client.parquet.conform import Calendars
from spark_client.parquet.output import OutputFile, WritePlan, by_directory, write_files
from spark_client.parquet.scan import ScanColumn, ScanPlan, Split, read_splits
from spark_client.parquet.staging import Staging
from tests.properties import few_quickly
from tests.spark_client.bucket import SECRET, bucket_of


class Faulty(MemoryFileSystem):
    """Objects in memory, whose requests fail after a number of them. Like an object store it has no rename."""

    protocol = "faulty"
    store: dict = {}  # noqa: RUF012 - as in the class that it derives from
    pseudo_dirs = [""]  # noqa: RUF012
    left: int | None = None
    cachable = False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("faulty://", "memory://"))

    @classmethod
    def request(cls) -> None:
        if cls.left is not None:
            cls.left -= 1
            if cls.left < 0:
                raise OSError("no answer")

    def cp_file(self, *args, **kwargs):
        self.request()
        return super().cp_file(*args, **kwargs)

    def rm_file(self, *args, **kwargs):
        self.request()
        return super().rm_file(*args, **kwargs)

    def _rm(self, *args, **kwargs):
        self.request()
        return super()._rm(*args, **kwargs)

    def _open(self, *args, **kwargs):
        self.request()
        return super()._open(*args, **kwargs)


fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture
def store() -> Iterator[str]:
    """An empty path in the faulty file system."""
    Faulty.left = None
    yield f"faulty:///{uuid.uuid4().hex}/out"
    Faulty.left = None


@contextlib.contextmanager
def failing_after(requests: int) -> Iterator[None]:
    Faulty.left = requests
    try:
        yield
    finally:
        Faulty.left = None


ONE = [pa.record_batch({"one": [1]})]
SCHEMA = pa.schema({"id": pa.int64()})


def plan_in(path: str, **changes: object) -> WritePlan:
    plan = {"schema": SCHEMA, "columns": (0,), "partitions": (), "compression": "snappy", "row_group_rows": 1000}
    return WritePlan(Staging(path, uuid.uuid4().hex), **{**plan, **changes})


def attempt(plan: WritePlan, ids: list[int]) -> tuple[OutputFile, ...]:
    """The files of an attempt of a task."""
    (rows,) = write_files(plan, iter([pa.record_batch({"id": ids}), pa.record_batch({"id": ids[:0]}, SCHEMA)]))
    return tuple(OutputFile(*row.values()) for row in rows.to_pylist())


def began(plan: WritePlan, only_new: bool = False) -> str:
    (answer,) = begin(BeginPlan(plan.staging, only_new), iter(ONE))
    return answer.column(0)[0].as_py()


def committed(plan: WritePlan, files: tuple[OutputFile, ...], replaced: Replaced = Replaced.NONE) -> None:
    assert list(commit(CommitPlan(plan, files, replaced), iter(ONE)))


def visible(path: str) -> list[int]:
    """The rows that a reader finds."""
    system, _ = located_directory(path)
    ids: list[int] = []
    for info in Staging(path, "").published():
        if info.path.endswith(".parquet"):
            with system.open_input_file(info.path) as source:
                ids += pq.read_table(source).column("id").to_pylist()
    return sorted(ids)


def names(path: str) -> list[str]:
    return [info.base_name for info in Staging(path, "").published()]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with bucket_of("s3a") as uri:
        yield uri


@pytest.fixture(params=["local", "fsspec", pytest.param("s3", marks=pytest.mark.slow)])
def path(request, tmp_path) -> str:
    if request.param == "local":
        return str(tmp_path / "out")
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/{uuid.uuid4().hex}/a b=1/out"
    return str(request.getfixturevalue("store"))


def test_rows_of_an_attempt_that_spark_did_not_accept_are_not_published(path):
    plan = plan_in(path)
    assert began(plan) == "ready"
    lost = attempt(plan, [1, 2])
    won = attempt(plan, [1, 2])
    assert {file.name for file in lost}.isdisjoint(file.name for file in won)
    assert visible(path) == []
    committed(plan, won)
    assert visible(path) == [1, 2]
    assert sorted(names(path)) == sorted(["_SUCCESS", *(file.name for file in won)])


def test_a_task_that_goes_on_after_the_commit_writes_nothing(path):
    plan = plan_in(path)
    began(plan)
    committed(plan, attempt(plan, [1]))
    with pytest.raises(WriteFailed, match=r"this write to .* has ended"):
        attempt(plan, [5])
    assert visible(path) == [1]


def test_files_of_a_killed_writer_are_deleted_by_the_next_one(path):
    killed, following = plan_in(path), plan_in(path)
    began(killed)
    attempt(killed, [5])
    system, staged = killed.staging.files()
    assert killed.staging.write in began(following)
    system.delete_file(f"{staged}.json")
    assert began(following) == "ready"
    committed(following, attempt(following, [2]))
    assert visible(path) == [2]
    found = system.get_file_info(pa.fs.FileSelector(located_directory(path)[1], recursive=True))
    assert not [info for info in found if "_remote_udf" in info.path and info.is_file]


def test_a_commit_may_be_repeated(path):
    plan = plan_in(path)
    began(plan)
    files = attempt(plan, [1, 2])
    committed(plan, files)
    committed(plan, files)
    assert visible(path) == [1, 2]


def test_a_second_writer_is_refused_until_the_first_has_ended(path):
    first, second = plan_in(path), plan_in(path)
    assert began(first) == "ready"
    assert f"another write to {path!r} has not ended: {first.staging.write}, running since" in began(second)
    assert first.staging.claimed()
    list(abort(first.staging, iter(ONE)))
    assert began(second) == "ready"


def test_a_writer_that_meets_the_end_of_another_one_is_not_told_to_delete_its_files(path, monkeypatch):
    first, second = plan_in(path), plan_in(path)
    began(first)
    files, describe = attempt(first, [1]), Staging._describe

    def after_the_end(staging: Staging, other: str) -> str:
        committed(first, files)
        return describe(staging, other)

    monkeypatch.setattr(Staging, "_describe", after_the_end)
    assert began(second) == f"another write to {path!r}, {first.staging.write}, has ended meanwhile. Write again"


@pytest.mark.parametrize("partitions", [(), ((1, "p"),)], ids=["flat", "partitioned"])
@pytest.mark.parametrize("ids", [[1], []], ids=["rows", "no rows"])
@pytest.mark.parametrize("replaced", few_quickly(1, [Replaced.ALL, Replaced.NONE]))
def test_a_commit_without_its_marker_fails_unless_it_had_committed(path, partitions, ids, replaced):
    old = plan_in(path)
    began(old)
    committed(old, attempt(old, [5]))
    plan = plan_in(path, partitions=partitions)
    began(plan)
    (rows,) = write_files(plan, iter([pa.record_batch({"id": pa.array(ids, pa.int64()), "p": ["a"] * len(ids)})]))
    files = tuple(OutputFile(*row.values()) for row in rows.to_pylist())
    system, staged = plan.staging.files()
    system.delete_file(f"{staged}.json")
    if files or not partitions or replaced is Replaced.ALL:
        with pytest.raises(WriteFailed, match="nothing was published"):
            committed(plan, files, replaced)
    assert visible(path) == [5]
    system.open_output_stream(f"{staged}.json").close()
    committed(plan, files, replaced)
    committed(plan, files, replaced)
    assert visible(path) == [*ids, *([5] if replaced is Replaced.NONE else [])]


def test_a_writer_whose_marker_was_deleted_publishes_nothing(path):
    plan = plan_in(path)
    began(plan)
    files = attempt(plan, [1])
    plan.staging.release()
    with pytest.raises(
        WriteFailed, match=r"the marker of this write in .* was deleted, so another writer may have begun"
    ):
        committed(plan, files)
    assert visible(path) == []


@pytest.mark.slow
def test_files_of_an_object_store_are_read(bucket):
    path = f"{bucket}/a%20b/out"
    plan = plan_in(path.replace("%20", " "))
    began(plan)
    files = attempt(plan, list(range(1000)))
    committed(plan, files)
    system, place = located(f"{path}/{files[0].name}")
    time = system.get_file_info(place).mtime_ns // 1_000_000
    table = pa.table({"path": [f"{path}/{files[0].name}"], "size": [files[0].bytes], "time": [time]})
    scan = ScanPlan(
        table, ((Split(0, 0, files[0].bytes),),), (ScanColumn("id", pa.int64()),), (0,),
        Calendars(datetimes=True, int96=True), True, pa.compute.field("id") >= 990, (0,),
    )  # fmt: skip
    batches = read_splits(scan, iter([pa.record_batch({"task": [0]})]))
    assert [row for batch in batches for row in batch.column(0).to_pylist()] == list(range(990, 1000))
    assert is_of_time(system, place, time - time % 1_000) and not is_of_time(system, place, time - 1_000)


@pytest.mark.slow
def test_a_bucket_without_a_path_is_its_root(bucket):
    store = bucket.partition("//")[2].rstrip("/")
    assert [located_directory(uri)[1].rstrip("/") for uri in (f"s3a://{store}", f"s3a://{store}/")] == [store, store]


@pytest.mark.slow
def test_plans_have_no_secrets(bucket):
    plan = plan_in(f"{bucket}/out")
    began(plan)
    for each in (plan, CommitPlan(plan, attempt(plan, [1]), Replaced.ALL), BeginPlan(plan.staging, True)):
        assert SECRET.encode() not in pickle.dumps(each)
        assert SECRET not in repr(each)


def test_a_path_with_files_is_not_new(path):
    plan = plan_in(path)
    assert began(plan, only_new=True) == "ready"
    committed(plan, attempt(plan, [1]))
    again = plan_in(path)
    assert began(again, only_new=True) == "exists"
    assert not again.staging.claimed()


def recovering(path: str, now: float = math.inf) -> list[str]:
    (answers,) = recover(RecoverPlan(path, 60.0, now), iter(ONE))
    return answers.column("answer").to_pylist()


def test_a_write_that_may_still_run_is_not_recovered(tmp_path):
    path = str(tmp_path / "out")
    assert recovering(path) == []
    plan = plan_in(path)
    began(plan)
    files = attempt(plan, [1])
    [told] = recovering(path, plan.staging.changed() + 30.0)
    assert told.startswith(f"failed: recover_parquet: the write {plan.staging.write} to {path!r} may still run")
    assert "it changed something 30 s ago" in told
    committed(plan, files)
    assert visible(path) == [1] and recovering(path) == []
    killed = plan_in(path)
    began(killed)
    attempt(killed, [5])
    [told] = recovering(path, killed.staging.changed() + 60.0)
    assert told == f"{killed.staging.write}: withdrawn; the files of earlier writes are the result"
    assert visible(path) == [1]


def follow_the_message(path: str) -> None:
    """Do what a refused writer is told to do after the driver of another one was killed."""
    message = began(plan_in(path))
    if message == "ready":
        return
    (killed,) = re.findall(r"has not ended: (\w+), running since .* from ", message)
    system, base = located_directory(path)
    keep = re.search(rf"killed, keep the files below that path with {killed} in their names", message)
    assert keep or re.search(rf"Delete the files below that path with {killed} in their names", message)
    for info in Staging(path, "").published():
        if (killed in info.base_name) is not bool(keep):
            system.delete_file(info.path)
    for name in re.findall(r"_remote_udf/\w+\.\w+", message):
        system.delete_file(f"{base}/{name}")
    assert began(plan_in(path)) == "ready"


@pytest.mark.long
@pytest.mark.parametrize("after", ["again", "abort", "killed", "recovered"])
@pytest.mark.parametrize("replaced", [Replaced.NONE, Replaced.ALL])
def test_whichever_request_of_a_commit_fails_old_rows_are_kept_or_new_ones_complete(store, replaced, after):
    old, new = [1, 2, 3], [7, 8]
    complete = new if replaced is Replaced.ALL else sorted(old + new)
    outcomes = set()
    for requests in range(100):
        path = f"{store}{requests}"
        first = plan_in(path)
        began(first)
        committed(first, (*attempt(first, [1, 2]), *attempt(first, [3])))
        plan = plan_in(path)
        began(plan)
        files = (*attempt(plan, [7]), *attempt(plan, [8]))
        failed = False
        try:
            with failing_after(requests):
                committed(plan, files, replaced)
        except WriteFailed as error:
            assert "no answer" in str(error) or "was written, and is not in" in str(error)
            failed = True
        found = visible(path)
        # Each old row is there, or all new rows are.
        assert set(old) <= set(found) or set(new) <= set(found), requests
        outcomes.add((failed, tuple(found)))
        if not failed:
            assert found == complete
            break
        if after == "again":
            committed(plan, files, replaced)
            assert visible(path) == complete, requests
        elif after == "abort":
            list(abort(plan.staging, iter(ONE)))
            left = visible(path)
            # What is replaced may be left beside complete new rows, if it could not be deleted.
            assert left == old or set(new) <= set(left) <= {*old, *new}, requests
            assert left != old or "_SUCCESS" in names(path)
            assert began(plan_in(path)) == "ready"
        elif after == "recovered":
            recovering(path)
            assert visible(path) in (old, complete), requests
            assert "_SUCCESS" in names(path) and began(plan_in(path)) == "ready"
        else:
            follow_the_message(path)
            # The message does not know the mode, and here its reader always deletes what a complete write may replace.
            assert visible(path) in (old, new, complete), requests
    assert (False, tuple(complete)) in outcomes
    assert len(outcomes) > 2


def test_a_commit_that_fails_after_another_attempt_of_its_task_loses_nothing(store, monkeypatch):
    old = plan_in(store)
    began(old)
    committed(old, attempt(old, [1, 2]))
    plan = plan_in(store)
    began(plan)
    files = (*attempt(plan, [7]), *attempt(plan, [8]))
    system, _ = located_directory(store)
    met = []

    class Slow(fs.PyFileSystem):
        """Meets another attempt, which publishes all and deletes the old files, before one of its requests fails."""

        def get_file_info(self, paths):
            if isinstance(paths, list) and not met:
                met.append(paths)
                with monkeypatch.context() as patches:
                    patches.setattr(Staging, "release", lambda staging: None)
                    committed(plan, files, Replaced.ALL)
                raise OSError("too many requests")
            return super().get_file_info(paths)

    task = committing._Commit(CommitPlan(plan, files, Replaced.ALL))
    task._system = Slow(system.handler)
    with pytest.raises(OSError, match="too many requests"):
        task.run()
    list(abort(plan.staging, iter(ONE)))
    assert met
    assert visible(store) == [7, 8]


def test_a_write_that_has_ended_is_not_undone(path):
    plan = plan_in(path)
    began(plan)
    committed(plan, attempt(plan, [1, 2]))
    list(abort(plan.staging, iter(ONE)))
    assert visible(path) == [1, 2]


def test_a_staged_file_that_is_gone_fails_the_commit_and_after_the_abort_nothing_is_visible(path):
    first = plan_in(path)
    began(first)
    committed(first, attempt(first, [1]))
    plan = plan_in(path)
    began(plan)
    files = (*attempt(plan, [7]), *attempt(plan, [8]))
    system, staged = plan.staging.files()
    system.delete_file(f"{staged}/{files[1].name}")
    with pytest.raises(WriteFailed, match=r"write_parquet: cannot write to '.*out"):
        committed(plan, files, Replaced.ALL)
    assert 1 in visible(path)
    assert "_SUCCESS" not in names(path)
    list(abort(plan.staging, iter(ONE)))
    assert visible(path) == [1]
    assert "_SUCCESS" in names(path)


@pytest.mark.parametrize("existed", [True, False])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_write_that_fails_deletes_only_the_directory_that_it_made(tmp_path, existed, attempts):
    out = tmp_path / "out"
    if existed:
        out.mkdir()
    plan = plan_in(str(out))
    for _ in range(attempts):
        assert began(plan) == "ready"
    list(abort(plan.staging, iter(ONE)))
    assert list(tmp_path.rglob("*")) == ([out] if existed else [])


def test_files_are_copied_where_nothing_can_be_renamed(tmp_path):
    class WithoutRename(fs.SubTreeFileSystem):
        def move(self, source: str, target: str) -> None:
            raise pa.ArrowNotImplementedError("no hierarchical namespace")

    (tmp_path / "old").write_bytes(b"rows")
    move_file(WithoutRename(str(tmp_path), fs.LocalFileSystem()), "old", "new")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("new", b"rows")]


def test_rows_of_rare_values_do_not_keep_other_rows_in_memory(tmp_path):
    plan = plan_in(str(tmp_path / "out"), partitions=((1, "p"),), row_group_rows=400)
    began(plan)
    held = []

    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(100):
            held.append(pa.total_allocated_bytes())
            yield pa.record_batch({"id": pa.array(range(10_001), pa.int64()), "p": ["common"] * 10_000 + ["rare"]})

    assert list(write_files(plan, batches()))
    assert max(held) - held[0] < 3_000_000


def test_the_first_rows_of_a_row_group_do_not_keep_earlier_ones_in_memory(tmp_path):
    plan = plan_in(str(tmp_path / "out"), partitions=((1, "p"),), row_group_rows=100_000)
    began(plan)
    held = []

    def batches() -> Iterator[pa.RecordBatch]:
        for index in range(50):
            held.append(pa.total_allocated_bytes())
            yield pa.record_batch({"id": pa.repeat(index, 100_001), "p": pa.repeat(index, 100_001)})

    assert list(write_files(plan, batches()))
    assert max(held) - held[0] < 35_000_000  # each open file takes 0.4 MB


def test_row_groups_are_bounded_by_rows_and_by_held_bytes(tmp_path, monkeypatch):
    plan = plan_in(str(tmp_path / "out"), row_group_rows=30)
    began(plan)
    files = attempt(plan, list(range(100)))
    committed(plan, files)
    (name,) = (file.name for file in files)
    metadata = pq.read_metadata(tmp_path / "out" / name)
    assert [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)] == [30, 30, 30, 10]
    monkeypatch.setattr(output, "HELD_BYTES", 100)
    plan = plan_in(str(tmp_path / "small"))
    began(plan)
    (rows,) = write_files(plan, iter([pa.record_batch({"id": [index, 0]}) for index in range(20)]))
    metadata = pq.read_metadata(f"{plan.staging.files()[1]}/{rows.to_pylist()[0]['name']}")
    assert metadata.num_rows == 40
    assert max(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)) <= 14


def test_a_task_has_few_files_open(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "OPEN_FILES", 3)
    plan = plan_in(str(tmp_path / "out"), partitions=((1, "p"),))
    began(plan)
    batches = [pa.record_batch({"id": list(range(10)), "p": [f"v{row % 5}" for row in range(10)]}) for _ in range(3)]
    (rows,) = write_files(plan, iter(batches))
    files = [OutputFile(*row.values()) for row in rows.to_pylist()]
    assert {file.folder for file in files} == {f"p=v{index}" for index in range(5)}
    assert sum(file.rows for file in files) == 30
    assert len({file.name for file in files}) == len(files) > 5
    committed(plan, tuple(files))
    assert visible(str(tmp_path / "out")) == sorted(list(range(10)) * 3)


def test_errors_of_packages_of_fsspec_while_files_are_written_name_the_path():
    """They are not OSErrors, and closing a file that could not be written fails as well."""

    class Full(Exception):
        pass

    class FullFile(MemoryFile):
        def write(self, data):
            if self.tell():
                raise Full("no space left in the account")
            return super().write(data)

        def close(self):
            raise Full("no such upload")

    class FullFileSystem(MemoryFileSystem):
        protocol = "full"
        cachable = False

        def _open(self, path, mode="rb", **kwargs):
            return FullFile(self, path) if path.endswith(".parquet") else super()._open(path, mode, **kwargs)

    fsspec.register_implementation("full", FullFileSystem, clobber=True)
    plan = plan_in(f"full:///{uuid.uuid4().hex}/out")
    began(plan)
    with pytest.raises(WriteFailed, match=r"cannot write to 'full:.*no space left in the account"):
        attempt(plan, [1, 2])


def test_rows_stay_with_their_directory_in_their_order():
    batch = pa.record_batch({"id": list(range(8)), "a": [1, None, 1, 2] * 2, "b": ["x", "", None, "y"] * 2})
    found = {name: rows.column("id").to_pylist() for name, rows in by_directory(batch, [(1, "a"), (2, "b")])}
    none = "__HIVE_DEFAULT_PARTITION__"
    assert found == {"a=1/b=x": [0, 4], f"a={none}/b={none}": [1, 5], f"a=1/b={none}": [2, 6], "a=2/b=y": [3, 7]}


def test_dates_that_spark_could_not_read_from_a_name_are_refused():
    batch = pa.record_batch({"d": pa.array([2_932_897], pa.int32()).cast(pa.date32())})
    with pytest.raises(WriteFailed, match="partition column 'd': expected dates from the year 1 to 9999"):
        list(by_directory(batch, [(0, "d")]))


def test_a_scheme_that_nothing_knows_names_what_to_install():
    with pytest.raises((ImportError, ValueError), match="nowhere"):
        located("nowhere://bucket/path")


def test_a_missing_package_of_an_object_store_is_named(monkeypatch):
    class WithoutIt:
        @staticmethod
        def from_uri(uri: str):
            raise pa.ArrowInvalid("built without it")

    monkeypatch.setattr(files_module.fs, "FileSystem", WithoutIt)
    with pytest.raises(
        ImportError, match=r"pyarrow cannot open gs:// \(built without it\).*pip install 'remote-udf\[object-stores\]'"
    ):
        located("gs://a-bucket/path")
