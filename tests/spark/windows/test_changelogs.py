"""Changelogs over windows: the remaining rows of a window count, in a table and on a stream alike."""

import datetime as dt
import os

import pytest
from pyspark.sql import functions as F

from spark_client import PlanError, desc
from spark_client.windows import hop, tumble, window_deduplicate, window_join, window_top_n
from tests.properties import few_quickly
from tests.spark_client.executor.aggregate.world import Total
from udf_server.aggregate.declaration import declare_aggregate

WINDOW = ["window_start", "window_end"]
SCHEMA = "row_kind string, k string, v bigint, at timestamp"
CHANGES = [
    [("+I", "a", 5, 1), ("+I", "a", 7, 2), ("+I", "a", 7, 3), ("+I", "b", 3, 4)],
    [("-U", "a", 7, 2), ("+U", "a", 1, 12), ("-D", "b", 3, 4)],  # an update that moves a row to another window
    [("+I", "c", 2, 15), ("-D", "x", 9, 16)],  # deletes a row that was never added
    [("+I", "z", 0, 300)],  # closes all other windows
    [],
]
"""Kind, key, value, seconds after midnight; a micro-batch each."""


@pytest.fixture(autouse=True)
def _one_partition(spark):
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", "2")


def written(folder, number):
    """Writes the changes of a micro-batch as a file. Spark orders files by modification time."""
    path = folder / f"{number}.csv"
    rows = CHANGES[number]
    path.write_text("".join(f"{kind},{k},{v},2024-01-01T00:{s // 60:02}:{s % 60:02}\n" for kind, k, v, s in rows))
    os.utime(path, (1_700_000_000 + number,) * 2)


@pytest.fixture(params=["table", "stream"])
def run(request, spark, tmp_path):
    """Runs a query, made from its sources, over the changes, and excludes the window of z."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(len(CHANGES)):
        written(folder, number)

    def read():
        if request.param == "table":
            return spark.read.schema(SCHEMA).csv(str(folder))
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).csv(str(folder))
        return source.withWatermark("at", "0 seconds")

    def run(query):
        frame = query(read)
        if frame.isStreaming:
            writer = frame.writeStream.format("memory").queryName("net").outputMode("append")
            started = (
                writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            )
            assert started.awaitTermination(200)
            assert started.exception() is None
            frame = spark.table("net")
        return [row for row in frame.collect() if row.window_start < dt.datetime(2024, 1, 1, 0, 4)]

    return run


def test_built_in_and_remote_aggregates_take_rows_back(remote, run):
    functions = remote(declare_aggregate(Total))
    total = functions.function("total")
    rows = run(
        lambda read: functions.group_by(tumble(read(), "at", "10 seconds"), *WINDOW, "k").agg(
            total("v").alias("t"), F.count("*").alias("n"), F.sum("v").alias("s"), F.avg("v").alias("a"),
            F.min("v").alias("least"), F.max("v").alias("most"), F.count_distinct("v").alias("d"),
        )
    )  # fmt: skip
    found = {(r.window_start.second, r.k): (r.t["sum"], r.n, r.s, r.a, r.least, r.most, r.d) for r in rows}
    assert found == {
        (0, "a"): (12, 2, 12, 6.0, 5, 7, 2),
        (10, "a"): (1, 1, 1, 1.0, 1, 1, 1),
        (10, "c"): (2, 1, 2, 2.0, 2, 2, 1),
        # More rows were retracted than added.
        (10, "x"): (-9, -1, -9, 9.0, None, None, 0),
    }


def test_a_query_that_is_stopped_and_started_again_takes_back_rows_of_before(remote, spark, tmp_path):
    folder, out = tmp_path / "in", str(tmp_path / "out")
    folder.mkdir()
    functions = remote(declare_aggregate(Total))
    total = functions.function("total")
    for stop in ([0], [1], [2, 3, 4]):
        for number in stop:
            written(folder, number)
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).csv(str(folder))
        windowed = tumble(source.withWatermark("at", "0 seconds"), "at", "10 seconds")
        summed = functions.group_by(windowed, *WINDOW, "k").agg(total("v").alias("t"), F.sum("v").alias("s"))
        writer = summed.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.trigger(availableNow=True).start(path=out, format="parquet", outputMode="append")
        assert query.awaitTermination(200)
        assert query.exception() is None
    found = sorted((r.window_start.second, r.k, r.t["sum"], r.s) for r in spark.read.parquet(out).collect())
    # b, from the first run, is retracted in the second; each closed window is emitted once.
    assert found == [(0, "a", 12, 12), (10, "a", 1, 1), (10, "c", 2, 2), (10, "x", -9, -9)]


def test_the_rows_that_are_left_are_ranked(run):
    rows = run(lambda read: window_top_n(hop(read(), "at", "10 s", "20 s"), 2, desc("v"), rank_column="r"))
    found = sorted((r.window_start.minute, r.window_start.second, r.r, r.k, r.v) for r in rows)
    assert found == [(0, 0, 1, "a", 7), (0, 0, 2, "a", 5), (0, 10, 1, "c", 2), (0, 10, 2, "a", 1),
                     (59, 50, 1, "a", 7), (59, 50, 2, "a", 5)]  # fmt: skip
    assert "row_kind" not in rows[0]


def test_duplicates_are_taken_out_of_what_is_left(run):
    rows = run(lambda read: window_deduplicate(tumble(read(), "at", "10 s"), "at", "k", keep="last"))
    assert sorted((r.window_start.second, r.k, r.v) for r in rows) == [(0, "a", 7), (10, "a", 1), (10, "c", 2)]


@pytest.mark.parametrize("how", few_quickly(1, ["left", "anti"]))
def test_what_is_left_is_joined(run, how):
    def query(read):
        left = tumble(read(), "at", "10 s")
        right = tumble(read().where("k != 'c'"), "at", "10 s").drop("at").withColumnRenamed("v", "w")
        return window_join(left, right, "k", how)

    found = sorted((r.window_start.second, r.k, r.v, *([r.w] if how == "left" else [])) for r in run(query))
    if how == "anti":
        assert found == [(10, "c", 2)]
    else:
        pairs = [(0, "a", 5, 5), (0, "a", 5, 7), (0, "a", 7, 5), (0, "a", 7, 7), (10, "a", 1, 1), (10, "c", 2, None)]
        assert found == pairs


def test_what_a_changelog_cannot_have_is_refused_when_planned(remote, spark):
    functions = remote(declare_aggregate(Total))
    table = spark.sql("SELECT '+I' AS row_kind, timestamp '2024-01-01' AS at, 1L AS v, map(1, 2) AS m")
    windowed = tumble(table, "at", "10 s")
    with pytest.raises(PlanError, match="only count, sum, avg, min, max of a column are supported, not stddev"):
        functions.group_by(windowed, *WINDOW).agg(F.stddev("v"))
    with pytest.raises(PlanError, match="column 'm' of type map<int,int> cannot be compared"):
        window_top_n(windowed, 1, "v")
    with pytest.raises(PlanError, match="no column 'row_kind' or '_change_type' makes this a changelog"):
        window_top_n(windowed.drop("row_kind"), 1, "v", changelog=True)
