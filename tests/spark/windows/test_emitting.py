"""Windows of a stream that fire early and late: a changelog, the same after a restart."""

import os
import time

import pytest
from pyspark.sql import functions as F

from spark_client import PlanError
from spark_client.windows import session, tumble, window_join, window_top_n
from tests.spark_client.executor.aggregate.world import Total
from udf_server.aggregate.declaration import declare_aggregate

WINDOW = ["window_start", "window_end"]


@pytest.fixture(autouse=True)
def _one_partition(spark):
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", "2")


class Files:
    """A stream of files, one per micro-batch: kind, key, value, seconds after midnight."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        folder.mkdir()

    def write(self, *rows):
        number = len(list(self.folder.iterdir()))
        path = self.folder / f"{number}.csv"
        path.write_text("".join(f"{kind},{k},{v},2024-01-01T00:{s // 60:02}:{s % 60:02}\n" for kind, k, v, s in rows))
        # Spark orders files by modification time.
        os.utime(path, (1_700_000_000 + number,) * 2)

    def read(self):
        schema = "row_kind string, k string, v bigint, at timestamp"
        source = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).csv(str(self.folder))
        return source.withWatermark("at", "0 seconds")


@pytest.fixture
def files(spark, tmp_path):
    return Files(spark, tmp_path / "in")


def test_early_and_late_fires_are_a_changelog_which_a_restart_does_not_disturb(remote, spark, files, tmp_path):
    functions = remote(declare_aggregate(Total))

    def run():
        """Processes all available files, then stops. Returns only new rows, by micro-batch."""
        grouping = functions.group_by(tumble(files.read(), "at", "10 seconds"), *WINDOW, "k").emit(
            early_fire_delay="0 s", late_fire_delay="0 s", allow_lateness="20 seconds"
        )
        total, count = functions.function("total")("v").alias("t"), F.expr("count(*)")
        changes = grouping.agg(total, F.max("v").alias("most"), count, count)
        assert changes.columns == ["row_kind", *WINDOW, "k", "t", "most", "count(1)", "count(1)"]
        changes = changes.toDF(*changes.columns[:-1], "again")
        out = str(tmp_path / "out")
        query = changes.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).outputMode("append")
        query = query.trigger(availableNow=True).start(path=out, format="parquet")
        assert query.awaitTermination(100)
        assert query.exception() is None
        seen = spark.read.parquet(out).collect()
        assert all(row.again == row["count(1)"] for row in seen)
        return sorted((r.window_start.second, r.row_kind, r.k, r.t["sum"], r.most, r["count(1)"]) for r in seen)

    files.write(("+I", "a", 1, 1), ("+I", "b", 7, 3))
    files.write(("+I", "a", 5, 12))
    first = [(0, "+I", "a", 1, 1, 1), (0, "+I", "b", 7, 7, 1), (10, "+I", "a", 5, 5, 1)]
    assert run() == first
    files.write(("+I", "a", 4, 2), ("-D", "b", 7, 3))  # the watermark is at 12 s: late, and allowed
    files.write(("+I", "a", 1, 35))
    files.write(("+I", "b", 9, 4), ("+I", "a", 8, 13))  # at 35 s it is too late for the first window
    assert run() == sorted([
        *first, (0, "-U", "a", 1, 1, 1), (0, "+U", "a", 5, 4, 2), (0, "-D", "b", 7, 7, 1), (30, "+I", "a", 1, 1, 1),
        (10, "-U", "a", 5, 5, 1), (10, "+U", "a", 13, 8, 2),
    ])  # fmt: skip


def test_an_early_fire_comes_when_its_delay_is_over_without_another_row(remote, spark, files):
    functions = remote(declare_aggregate(Total))
    spark.conf.set("spark.remoteudf.emit.early-fire.delay", "1 ms")
    try:
        windowed = tumble(files.read(), "at", "10 seconds")
        changes = functions.group_by(windowed, *WINDOW).agg(F.sum("v").alias("s"))
    finally:
        spark.conf.unset("spark.remoteudf.emit.early-fire.delay")
    files.write(("+I", "a", 1, 1))
    query = changes.writeStream.format("memory").queryName("early").start()
    try:
        ends = time.monotonic() + 90
        while not (rows := spark.table("early").collect()) and time.monotonic() < ends:
            time.sleep(0.1)
    finally:
        query.stop()
    assert [(row.row_kind, row.s) for row in rows] == [("+I", 1)]


def test_what_cannot_fire_early_is_refused_when_planned(remote, spark, files):
    functions = remote(declare_aggregate(Total))
    total = functions.function("total")

    def fired(frame, *keys):
        return functions.group_by(frame, *keys).emit(early_fire_delay="0 s")

    windowed = tumble(files.read(), "at", "10 seconds")
    with pytest.raises(PlanError, match="are not supported for SESSION"):
        fired(session(files.read(), "at", "10 s", "k"), *WINDOW, "k").agg(total("v"))
    with pytest.raises(PlanError, match="no key 'window_start'"):
        fired(windowed, "k").agg(total("v"))
    with pytest.raises(PlanError, match="only count, sum, avg, min, max of a column are supported, not stddev"):
        fired(windowed, *WINDOW).agg(F.stddev("v"))
    with pytest.raises(PlanError, match="must be one column of the frame"):
        fired(windowed, *WINDOW).agg(F.sum(F.col("v") * 2))
    odd = windowed.selectExpr("*", "struct(v) AS pair", "collate(k, 'UTF8_LCASE') AS lower", "at - at AS long")
    for aggregate, message in (
        (F.sum("at"), "sum.at. needs numbers, found timestamp"),
        (F.avg("long"), "avg.long. needs numbers, found interval day to second"),
        (F.sum("k"), "sum.k. needs numbers, found string"),
        (F.max("pair"), "max.pair.: values of type struct<v:bigint> are not supported"),
        (F.count_distinct("lower"), "DISTINCT lower.: type string collate UTF8_LCASE is not supported"),
        (F.min("lower"), "min.lower.: type string collate UTF8_LCASE is not supported"),
    ):
        with pytest.raises(PlanError, match=message):
            fired(odd, *WINDOW).agg(aggregate)


def test_changes_enter_no_other_operator_with_state(remote, spark, files, tmp_path):
    """Spark's own error, when the query starts, tells neither what emits the changes nor what takes them."""
    functions = remote(declare_aggregate(Total))
    total = functions.function("total")
    windowed = tumble(files.read(), "at", "10 seconds")
    fired = functions.group_by(windowed, *WINDOW, "window_time", "k").emit(early_fire_delay="0 s")
    changes = fired.agg(total("v").alias("t"), F.count("*").alias("v"))
    message = "the rows are changes of windows that fire early or late .emit."

    def fired_again(changes):
        return functions.group_by(changes, *WINDOW).emit(early_fire_delay="0 s").agg(total("v"))

    for what, use in (
        ("agg", lambda: functions.group_by(changes, "k").agg(F.sum("v"))),
        ("agg", lambda: functions.group_by(changes.drop("row_kind"), *WINDOW).agg(total("v"))),
        (
            "early and late fire",
            lambda: functions.group_by(changes, *WINDOW).emit(early_fire_delay="0 s").agg(total("v")),
        ),
        ("window_top_n", lambda: window_top_n(changes, 1, "v")),
        ("window_join: right frame", lambda: window_join(windowed, changes.drop("v"), "k")),
    ):
        with pytest.raises(PlanError, match=f"{what}: {message}"):
            use()
    # A table of the changes has the same columns with the same metadata, and another query may read it.
    table = spark.readStream.schema(changes.schema).parquet(str(tmp_path))
    assert functions.group_by(table, "k").agg(F.sum("v")).columns == ["k", "sum(v)"]


def test_on_a_table_windows_are_complete_and_fire_once(remote, spark):
    functions = remote(declare_aggregate(Total))
    table = spark.sql("SELECT timestamp '2024-01-01 00:00:01' AS at, 1L AS v")
    grouping = functions.group_by(tumble(table, "at", "10 seconds"), *WINDOW).emit(early_fire_delay="0 s")
    assert grouping.agg(F.sum("v").alias("s")).columns == [*WINDOW, "s"]
