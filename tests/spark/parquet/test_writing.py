"""`write_parquet`: what Spark reads back is what Spark would have written, and nothing but complete results is seen."""

import os
import random
import signal
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError
from spark_client.base.errors import WriteFailed
from spark_client.base.job_tags import _is_interrupt
from spark_client.parquet import writing
from spark_client.parquet.committing import abort, begin, commit
from spark_client.parquet.output import OutputFile
from spark_client.parquet.staging import Staging
from spark_client.parquet.writing import FILES
from spark_client.planning.operators import apply_after_operator
from spark_client.sql.fewer_calls.explaining import plan_of
from tests.properties import few_quickly
from tests.spark.parquet.test_reading import ZONES, rows_of
from tests.spark.parquet_worlds import World

SEED = random.randrange(1 << 31) if os.environ.get("REMOTE_UDF_SEED") == "random" else 21


@udf.scalar(vectorized=True)
def one_more(x: pa.Int64Array) -> pa.Int64Array:
    return pa.compute.add(x, 1)


@udf.scalar
def odd_only(x: int) -> int:
    if x % 2 == 0:
        raise ValueError(f"{x} is even")
    return x


def files_in(path: Path) -> list[str]:
    """The files that Spark would read."""
    found = (file.relative_to(path) for file in path.rglob("*.parquet"))
    return sorted(str(file) for file in found if not any(part.startswith(("_", ".")) for part in file.parts))


def everything_in(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.mark.connect
@pytest.mark.parametrize("number", few_quickly(2, range(8)))
def test_rows_of_every_type_are_read_back_as_those_that_spark_writes(remote, spark, tmp_path, zone, number):
    seed = SEED * 100 + number
    draw = random.Random(seed)
    session = remote(one_more)
    zone(draw.choice(ZONES))
    world = World.of(spark, seed, tmp_path / "data")
    source = spark.read.parquet(world.path)
    call = {"more": session.function("one_more")("id")}
    kind = draw.choice(["scan", "rows", "operator", "operator over a scan"])
    frame = {
        "scan": lambda: session.read_parquet(world.path),
        "rows": lambda: source.withColumn("more", F.col("id") + 1),
        "operator": lambda: session.with_columns(source, call),
        "operator over a scan": lambda: session.with_columns(session.read_parquet(world.path), call),
    }[kind]()
    options = {
        "compression": draw.choice([None, "none", "zstd", "gzip", "lz4"]),
        "row_group_rows": draw.choice([1, 7, 1_000_000]),
        "partition_by": draw.choice([(), "id"]),
    }
    print(f"{world.story}; {kind}, {options}")
    written = session.write_parquet(frame, str(tmp_path / "ours"), **options)
    writer = frame.write.partitionBy("id") if options["partition_by"] else frame.write
    writer.parquet(str(tmp_path / "theirs"))
    ours, theirs = (spark.read.parquet(str(tmp_path / name)) for name in ("ours", "theirs"))
    assert ours.schema == theirs.schema
    assert rows_of(ours) == rows_of(theirs)
    assert sorted(file.path for file in written) == files_in(tmp_path / "ours")
    assert sum(file.rows for file in written) == source.count()
    for file in written:
        assert (tmp_path / "ours" / file.path).stat().st_size == file.bytes
    back = session.read_parquet(str(tmp_path / "ours"))
    if not options["partition_by"]:  # otherwise `id` is an int
        back = session.with_columns(back, {"y": session.function("one_more")("id")}).drop("y")
    assert rows_of(back) == rows_of(theirs)


def test_times_say_whether_they_have_a_zone(remote, spark, tmp_path):
    frame = spark.sql(
        "SELECT TIMESTAMP '1850-01-01 00:00:00' AS t, TIMESTAMP_NTZ '1850-01-01 00:00:00' AS n, DATE '0001-01-01' AS d"
    )
    (file,) = remote(one_more).write_parquet(frame, str(tmp_path / "out"))
    schema = pq.ParquetFile(tmp_path / "out" / file.path).schema
    assert "isAdjustedToUTC=true, timeUnit=microseconds" in str(schema.column(0).logical_type)
    assert "isAdjustedToUTC=false, timeUnit=microseconds" in str(schema.column(1).logical_type)
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION")
    try:
        assert spark.read.parquet(str(tmp_path / "out")).collect() == frame.collect()
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


@pytest.mark.connect
def test_directories_are_those_of_spark(remote, spark, tmp_path):
    texts = ["a", "", "x=y/z", "%20", "a b", "ü", "'\"#*:?\\{[]^}", "\t\n\x7f", "NULL", "1"]
    rows = [(index, text, bool(index % 2)) for index, text in enumerate([*texts, None])]
    frame = spark.createDataFrame(rows, "n int, `a b` string, flag boolean").withColumn(
        "day", F.expr("IF(n % 3 = 0, NULL, date_add(DATE '0999-12-31', n))")
    )
    by = ["a b", "flag", "DAY", "n"]
    session = remote(one_more)
    session.write_parquet(frame.withColumn("v", F.lit(1)), str(tmp_path / "ours"), partition_by=by)
    frame.withColumn("v", F.lit(1)).write.partitionBy(*by).parquet(str(tmp_path / "theirs"))
    ours, theirs = ({str(Path(file).parent) for file in files_in(tmp_path / name)} for name in ("ours", "theirs"))
    assert ours == theirs
    assert rows_of(spark.read.parquet(str(tmp_path / "ours"))) == rows_of(spark.read.parquet(str(tmp_path / "theirs")))


def test_rows_of_calls_are_written_by_the_worker_that_makes_them(remote, spark, tmp_path):
    session = remote(one_more)
    one = session.function("one_more")
    spark.range(10).write.parquet(str(tmp_path / "in"))
    over_scan = session.with_columns(session.read_parquet(str(tmp_path / "in")), {"odd name.x": one("id")})
    for frame in (over_scan, session.select(spark.range(9), one("id").alias("x"))):
        plan = plan_of(apply_after_operator(frame, lambda plan, batches: batches, None, FILES))
        assert plan.count("MapInArrow") == 1
    assert "FileScan" not in plan_of(apply_after_operator(over_scan, lambda plan, batches: batches, None, FILES))


@pytest.mark.connect
def test_calls_of_a_cached_frame_are_not_made_again(remote, spark, tmp_path):
    calls: list[int] = []

    @udf.scalar
    def counted(x: int) -> int:
        calls.append(x)
        return x

    session = remote(counted)
    gross = session.select(spark.range(5), session.function("counted")("id").alias("id"))
    gross.cache()
    try:
        assert gross.count() == 5
        session.write_parquet(gross, str(tmp_path / "out"))
    finally:
        gross.unpersist()
    assert sorted(calls) == [0, 1, 2, 3, 4]
    assert spark.read.parquet(str(tmp_path / "out")).count() == 5


def test_a_path_with_files_is_refused_kept_extended_or_replaced(remote, spark, tmp_path):
    session, path = remote(one_more), str(tmp_path / "out")

    def ids() -> list[int]:
        return sorted(row.id for row in spark.read.parquet(path).collect())

    assert session.write_parquet(spark.range(3), path) != []
    with pytest.raises(WriteFailed, match=r"write_parquet: '.*out' has files; write elsewhere, or with another mode"):
        session.write_parquet(spark.range(5), path)
    assert session.write_parquet(spark.range(5), path, mode="ignore") == []
    assert ids() == [0, 1, 2]
    session.write_parquet(spark.range(3, 5), path, mode="append")
    assert ids() == [0, 1, 2, 3, 4]
    more = session.select(session.read_parquet(path), session.function("one_more")("id").alias("id"))
    new = session.write_parquet(more, path, mode="overwrite")
    assert ids() == [1, 2, 3, 4, 5]
    assert everything_in(tmp_path / "out") == sorted(["_SUCCESS", *(file.path for file in new)])


def test_only_directories_that_get_files_are_replaced_if_spark_does_so(remote, spark, tmp_path):
    session, path = remote(one_more), str(tmp_path / "out")
    frame = spark.range(6).withColumn("p", F.col("id") % 3)
    session.write_parquet(frame, path, partition_by="p")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        session.write_parquet(spark.sql("SELECT 9L AS id, 1L AS p"), path, partition_by="p", mode="overwrite")
    finally:
        spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert sorted(row.id for row in spark.read.parquet(path).collect()) == [0, 2, 3, 5, 9]
    session.write_parquet(spark.sql("SELECT 8L AS id, 7L AS p"), path, partition_by="p", mode="overwrite")
    assert [each for each in everything_in(tmp_path / "out") if "part-" not in each] == ["_SUCCESS", "p=7"]


@pytest.mark.connect
def test_a_query_that_fails_leaves_nothing_new(remote, spark, tmp_path):
    session = remote(odd_only)
    frame = session.with_columns(spark.range(0, 2000, 1, 2), {"y": session.function("odd_only")("id")})
    with pytest.raises(PySparkException, match=r"(0|1000) is even"):
        session.write_parquet(frame, str(tmp_path / "out"))
    assert everything_in(tmp_path) == []
    session.write_parquet(spark.range(3), str(tmp_path / "out"))
    before = everything_in(tmp_path / "out")
    with pytest.raises(PySparkException, match="is even"):
        session.write_parquet(frame, str(tmp_path / "out"), mode="overwrite")
    assert everything_in(tmp_path / "out") == before
    assert spark.read.parquet(str(tmp_path / "out")).count() == 3


def test_writes_of_a_killed_driver_are_recovered(remote, spark, tmp_path):
    session, path = remote(one_more), str(tmp_path / "out")
    assert session.recover_parquet(path) == []
    session.write_parquet(spark.range(3), path)
    killed = Staging(path, "ab" * 16)
    assert killed.claim() is None
    with pytest.raises(WriteFailed, match=r"remote\.recover_parquet\('.*out'\) does this"):
        session.write_parquet(spark.range(3), path, mode="overwrite")
    with pytest.raises(WriteFailed, match=r"may still run: it changed something \d s ago"):
        session.recover_parquet(path)
    with pytest.raises(PlanError, match="recover_parquet: unchanged_for: 'soon' is not a duration"):
        session.recover_parquet(path, unchanged_for="soon")
    [told] = session.recover_parquet(path, unchanged_for="0 s")
    assert told.startswith(f"{killed.write}: withdrawn")
    session.write_parquet(spark.range(5), path, mode="overwrite")
    assert spark.read.parquet(path).count() == 5


def test_a_commit_that_may_go_on_after_an_interrupt_is_left_alone(remote, spark, tmp_path, monkeypatch):
    session, path, run_once = remote(one_more), str(tmp_path / "out"), writing.run_once
    session.write_parquet(spark.range(3), path)
    commits = []

    def interrupted(spark, run, plan):
        if run is commit:
            commits.append(plan)
            raise KeyboardInterrupt
        return run_once(spark, run, plan)

    with monkeypatch.context() as patches:
        patches.setattr(writing, "run_once", interrupted)
        with pytest.raises(KeyboardInterrupt) as error:
            session.write_parquet(spark.range(7, 9), path, mode="overwrite")
    assert "the commit of" in str(error.value.__notes__)
    with pytest.raises(WriteFailed, match="has not ended"):
        session.write_parquet(spark.range(1), path, mode="append")
    run_once(spark, commit, *commits)
    assert sorted(row.id for row in spark.read.parquet(path).collect()) == [7, 8]
    session.write_parquet(spark.range(1), path, mode="append")


@pytest.mark.connect
def test_a_commit_that_fails_is_undone(remote, spark, tmp_path, monkeypatch):
    session, path = remote(one_more), str(tmp_path / "out")
    session.write_parquet(spark.range(3), path)
    before = everything_in(tmp_path / "out")
    with monkeypatch.context() as patches:
        patches.setattr(writing, "OutputFile", lambda *file: OutputFile(*file[:3], file[3] + 1))
        with pytest.raises(PySparkException, match="was written, and is not in"):
            session.write_parquet(spark.range(7, 9), path, mode="overwrite")
    assert everything_in(tmp_path / "out") == before


def test_an_interrupt_of_the_first_job_does_not_block_the_path(remote, spark, tmp_path, monkeypatch):
    session, path, run_once = remote(one_more), str(tmp_path / "out"), writing.run_once

    def interrupted(spark, run, plan):
        answer = run_once(spark, run, plan)
        if run is begin:
            raise KeyboardInterrupt
        return answer

    with monkeypatch.context() as patches:
        patches.setattr(writing, "run_once", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.write_parquet(spark.range(3), path)
    assert everything_in(tmp_path) == []
    session.write_parquet(spark.range(3), path)


@pytest.mark.connect
def test_an_interrupt_ends_the_tasks_before_it_cleans_up(remote, spark, tmp_path):
    session, path, world = remote(one_more), tmp_path / "out", tmp_path / "world"
    world.mkdir()

    def hangs(batches):
        for batch in batches:
            name = batch.column(0)[0].as_py()
            (world / f"begun-{name}").touch()
            until = time.monotonic() + 60
            while time.monotonic() < until:
                time.sleep(0.05)
            (world / f"ended-{name}").touch()
            yield batch

    def interrupt():
        until = time.monotonic() + 60
        while not any(world.iterdir()) and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    # The handler of ipykernel while a cell runs; that of PySpark cancels all jobs.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    user = threading.Thread(target=interrupt)
    try:
        user.start()
        with pytest.raises(BaseException) as error:  # noqa: PT011 - Py4J may fail while it handles it
            session.write_parquet(spark.range(0, 8, 1, 8).mapInArrow(hangs, "id long"), str(path))
    finally:
        user.join()
        signal.signal(signal.SIGINT, before)
    assert _is_interrupt(error.value)
    assert not any(each.name.startswith("ended") for each in world.iterdir())
    assert everything_in(path) == []
    session.write_parquet(spark.range(3), str(path))
    assert spark.read.parquet(str(path)).count() == 3


@pytest.mark.parametrize("second", [KeyboardInterrupt, RuntimeError])
def test_a_second_interrupt_says_that_the_next_write_says_what_to_do(remote, spark, tmp_path, monkeypatch, second):
    session, path, run_once = remote(one_more), str(tmp_path / "out"), writing.run_once

    def interrupted(spark, run, plan):
        if run is abort:
            raise second
        run_once(spark, run, plan)
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(writing, "run_once", interrupted)
        with pytest.raises(KeyboardInterrupt) as error:
            session.write_parquet(spark.range(3), path)
    assert ("was interrupted" in str(getattr(error.value, "__notes__", ""))) == (second is KeyboardInterrupt)
    with pytest.raises(WriteFailed, match=r"has not ended: .* Delete the files below that path with"):
        session.write_parquet(spark.range(3), path)


def test_of_two_writers_one_is_refused(remote, spark, tmp_path):
    inside, done = threading.Event(), threading.Event()
    path = tmp_path / "out"

    @udf.scalar
    def waits(x: int) -> int:
        inside.set()
        done.wait(60)
        return x

    session = remote(waits)
    frame = session.select(spark.range(1), session.function("waits")("id").alias("id"))
    first = threading.Thread(target=lambda: session.write_parquet(frame, str(path)))
    first.start()
    try:
        assert inside.wait(60)
        with pytest.raises(WriteFailed, match=r"another write to '.*out' has not ended: \w+, running since .* from "):
            session.write_parquet(spark.range(5), str(path), mode="append")
    finally:
        done.set()
        first.join()
    assert [row.id for row in spark.read.parquet(str(path)).collect()] == [0]
    session.write_parquet(spark.range(1), str(path), mode="append")
    assert spark.read.parquet(str(path)).count() == 2


def test_a_result_without_rows_has_its_types(remote, spark, tmp_path):
    session = remote(one_more)
    frame = spark.range(5).selectExpr("id", "array(id) AS a").where("id > 9")
    session.write_parquet(frame, str(tmp_path / "out"))
    again = spark.read.parquet(str(tmp_path / "out"))
    assert (again.dtypes, again.count()) == (frame.dtypes, 0)
    session.write_parquet(frame, str(tmp_path / "parts"), partition_by="id")
    assert everything_in(tmp_path / "parts") == ["_SUCCESS"]


def test_compression_is_that_of_the_session_unless_it_is_given(remote, spark, tmp_path):
    session = remote(one_more)

    def codecs(name: str, **options: object) -> set[str]:
        session.write_parquet(spark.range(100), str(tmp_path / name), **options)
        files = [pq.ParquetFile(tmp_path / name / file) for file in files_in(tmp_path / name)]
        return {file.metadata.row_group(0).column(0).compression for file in files}

    assert codecs("default") == {"SNAPPY"}
    assert codecs("given", compression="zstd") == {"ZSTD"}
    spark.conf.set("spark.sql.parquet.compression.codec", "gzip")
    try:
        assert codecs("session") == {"GZIP"}
    finally:
        spark.conf.unset("spark.sql.parquet.compression.codec")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"mode": "replace"}, "mode 'replace': expected one of error, append, overwrite, ignore"),
        ({"compression": "lzo"}, "compression: codec 'lzo' cannot be written"),
        ({"partition_by": "x"}, "there is no column 'x'; the frame has id, d, c"),
        ({"partition_by": ["d"]}, "column 'd' has type double; expected boolean, integers"),
        ({"partition_by": ["c"]}, "column 'c' has type string collate UTF8_LCASE; expected boolean, integers"),
        ({"partition_by": ["id", "ID"]}, "a column is named twice in id, ID"),
        ({"path": "out"}, "path 'out': expected an absolute path, or a URI"),
        ({"path": "s3://bucket"}, "expected an absolute path, or a URI"),
        ({"path": "s3://key:secret@bucket/out"}, "the path has credentials"),
        ({"path": "s3://bucket/out?secret_key=abc"}, "the path has credentials"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_runs(remote, spark, tmp_path, options, why):
    options = {"path": str(tmp_path / "out"), **options}
    frame = spark.range(1).selectExpr("id", "0.5D AS d", "'a' COLLATE UTF8_LCASE AS c")
    with pytest.raises(PlanError, match=why) as error:
        remote(one_more).write_parquet(frame, **options)
    assert "abc" not in str(error.value)
    assert "key:secret" not in str(error.value)
    assert everything_in(tmp_path) == []


@pytest.mark.parametrize("frame", ["SELECT 1 AS a, 2 AS A", "SELECT NULL AS n", "SELECT array(NULL) AS n"])
def test_columns_that_parquet_does_not_have_are_refused(remote, spark, tmp_path, frame):
    with pytest.raises(PlanError, match=r"same name: a|column 'n' has type .*void.*cannot be written"):
        remote(one_more).write_parquet(spark.sql(frame), str(tmp_path / "out"))


def written_by_fsspec(frame: DataFrame, session, folder: Path) -> None:
    session.write_parquet(frame, f"local://{folder}/a b", partition_by="p")
    session.write_parquet(frame, f"local://{folder}/a b", partition_by="p", mode="overwrite")


def test_files_are_written_through_fsspec(remote, spark, tmp_path):
    frame = spark.range(10).withColumn("p", F.col("id") % 2)
    written_by_fsspec(frame, remote(one_more), tmp_path)
    assert rows_of(spark.read.parquet(str(tmp_path / "a b")).select("id")) == rows_of(frame.select("id"))
    assert not list(tmp_path.rglob("*.json"))
