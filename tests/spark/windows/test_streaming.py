"""Window functions on streams: window_time carries the watermark, by which Spark frees the state.

The session's time zone is Los Angeles here: bounds are local times, the watermark is an instant.
"""

import datetime as dt
import os

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F

from spark_client import PlanError, desc
from spark_client.windows import (
    cumulate,
    hop,
    session,
    tumble,
    tumble_rows,
    window_deduplicate,
    window_join,
    window_top_n,
)  # fmt: skip
from tests.properties import few_quickly
from tests.spark_client.executor.aggregate.world import Total
from udf_server.aggregate.declaration import declare_aggregate

WINDOW = ["window_start", "window_end"]
FILES = [
    [("x", 1, 1), ("y", 2, 12)],
    [("x", 5, 4), ("y", 7, 31)],
    [("x", 1, 90)],
    [("x", 100, 3), ("y", 50, 84)],  # the first is late for all windows, the second in time for some
    [("x", 1, 150)],
]
"""Key, value, seconds after midnight; a micro-batch each. The watermark is ten seconds behind."""


@pytest.fixture
def files():
    return FILES


@pytest.fixture
def stream(spark, tmp_path, files):
    """Creates a new stream for each call, because both sides of a join need one."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number, rows in enumerate(files):
        path = folder / f"{number}.csv"
        path.write_text("".join(f"{k},{v},2024-01-01T00:{s // 60:02}:{s % 60:02}\n" for k, v, s in rows))
        # Spark orders files by modification time.
        os.utime(path, (1_700_000_000 + number,) * 2)

    def read():
        source = spark.readStream.schema("k string, v bigint, at timestamp").option("maxFilesPerTrigger", 1)
        return source.csv(str(folder)).withWatermark("at", "10 seconds")

    return read


MIXED_UP_STORES = "Can only upgrade readStore to writeStore with the same stateStoreId"
"""What a task of Spark 4.1 that joins two of Spark's own aggregates may fail with, after many other streams in one JVM.

It fails again if it is tried again, and not in a JVM of its own. Its stack has no operator of this project.
"""


@pytest.fixture
def appended(tmp_path):
    """Returns the rows that a query appends until its input ends."""

    def run(frame, name="appended"):
        error = once(frame, name)
        if error is not None and MIXED_UP_STORES in str(error):
            pytest.xfail(f"Spark: {MIXED_UP_STORES}")
        assert error is None
        return frame.sparkSession.table(name).collect()

    def once(frame, name):
        writer = frame.writeStream.outputMode("append").option("checkpointLocation", str(tmp_path / name))
        query = writer.format("memory").queryName(name).trigger(availableNow=True).start()
        try:
            query.awaitTermination(100)
        except StreamingQueryException as error:
            return error
        return query.exception()

    return run


def seconds(row):
    return row.window_start.minute * 60 + row.window_start.second


TUMBLED = [(0, 6), (10, 2), (30, 7), (80, 50), (90, 1)]
"""Sums of the ten-second windows that the watermark, at last at 140 s, has passed."""


def test_tumble_composes_with_sparks_own_aggregation(stream, appended):
    frame = tumble(stream(), "at", "10 seconds").groupBy(*WINDOW, "window_time").agg(F.sum("v").alias("s"))
    assert sorted((seconds(row), row.s) for row in appended(frame)) == TUMBLED


def test_a_row_that_is_late_for_some_windows_counts_in_the_others(stream, appended):
    """The one at 3 s: Spark drops by the watermark of the micro-batch before, which is 21 s."""
    frame = hop(stream(), "at", "10 seconds", "30 seconds").groupBy(*WINDOW, "window_time").agg(F.sum("v").alias("s"))
    midnight = dt.datetime(2024, 1, 1)
    rows = [((row.window_start - midnight).total_seconds(), row.s) for row in appended(frame)]
    assert sorted(rows)[:3] == [(-20, 6), (-10, 8), (0, 108)]


@pytest.mark.parametrize("kind", few_quickly(2, ["hop", "session", "tumble", "cumulate"]))
def test_remote_aggregates_of_windows_agree_with_sparks_own_on_streams(remote, stream, appended, kind):
    functions = remote(declare_aggregate(Total))
    total = functions.function("total")

    def windowed():
        return {
            "tumble": lambda: tumble(stream(), "at", "10 seconds"),
            "hop": lambda: hop(stream(), "at", "10 seconds", "30 seconds"),
            "cumulate": lambda: cumulate(stream(), "at", "10 seconds", "1 minute"),
            "session": lambda: session(stream(), "at", "10 seconds", "k"),
        }[kind]()

    # window_time is an implicit key whether it is named or not.
    ours = functions.group_by(windowed(), *WINDOW, "k").agg(total("v").alias("t"))
    assert ours.columns == [*WINDOW, "k", "t"]
    own = windowed().groupBy(*WINDOW, "window_time", "k").agg(F.sum("v").alias("s"))
    found = sorted((row.window_start, row.window_end, row.k, row.t["sum"]) for row in appended(ours, "ours"))
    assert found == sorted((row.window_start, row.window_end, row.k, row.s) for row in appended(own, "own"))
    assert found


def test_an_aggregate_of_windows_is_aggregated_by_larger_ones_through_window_time(remote, stream, appended):
    functions = remote(declare_aggregate(Total))
    total = functions.function("total")
    small = functions.group_by(tumble(stream(), "at", "10 seconds"), *WINDOW, "window_time", "k").agg(
        total("v").alias("t")
    )
    inner = small.select("k", F.col("window_time").alias("rowtime"), F.col("t.sum").alias("v"))
    large = functions.group_by(tumble(inner, "rowtime", "30 seconds"), *WINDOW).agg(total("v").alias("t"))
    assert sorted((seconds(row), row.t["sum"]) for row in appended(large)) == [(0, 8), (30, 7), (60, 50), (90, 1)]


def test_a_session_leaves_with_its_final_bounds_when_it_is_over(stream, appended):
    rows = appended(session(stream(), "at", "10 seconds", ["k"]))
    found = sorted((row.k, row.v, seconds(row), (row.window_end - row.window_start).seconds) for row in rows)
    assert found == [
        ("x", 1, 1, 13),
        ("x", 1, 90, 10),
        ("x", 5, 1, 13),
        ("y", 2, 12, 10),
        ("y", 7, 31, 10),
        ("y", 50, 84, 10),
    ]


def test_a_result_that_is_used_twice_is_whole_if_exchanges_are_not_reused(spark, stream, appended):
    sessions = session(stream(), "at", "10 seconds", ["k"]).select("k", "v")
    spark.conf.set("spark.sql.exchange.reuse", "false")
    try:
        rows = appended(sessions.unionAll(sessions))
    finally:
        spark.conf.unset("spark.sql.exchange.reuse")
    once = [("x", 1), ("x", 1), ("x", 5), ("y", 2), ("y", 7), ("y", 50)]
    assert sorted((row.k, row.v) for row in rows) == sorted(2 * once)


def test_a_window_that_ends_before_1970_is_late(spark, tmp_path, appended):
    for number, times in enumerate(["1969-12-31T23:59:30Z\n1970-01-01T00:00:30Z", "1970-01-02T00:02:00Z"]):
        path = tmp_path / f"{number}.csv"
        path.write_text(times)
        os.utime(path, (1_700_000_000 + number,) * 2)
    source = spark.readStream.schema("at timestamp").option("maxFilesPerTrigger", 1).csv(str(tmp_path / "*.csv"))
    windows = tumble(source.withWatermark("at", "1 day"), "at", "1 minute")
    rows = appended(windows.groupBy(*WINDOW, "window_time").agg(F.min("at").cast("bigint").alias("first")))
    assert [row.first for row in rows] == [30]


def test_top_n_of_a_window_leaves_once_when_the_watermark_has_passed_it(stream, appended):
    sums = tumble(stream(), "at", "1 minute").groupBy(*WINDOW, "window_time", "k").agg(F.sum("v").alias("s"))
    rows = appended(window_top_n(sums, 2, desc("s"), rank_column="rownum"))
    assert sorted((seconds(row), row.rownum, row.k, row.s) for row in rows) == [
        (0, 1, "x", 106), (0, 2, "y", 9), (60, 1, "y", 50), (60, 2, "x", 1),
    ]  # fmt: skip


def test_ranks_on_a_stream_are_those_of_a_table(stream, appended, spark):
    for kind in ("rank", "dense_rank"):
        rows = appended(window_top_n(tumble(stream(), "at", "2 minutes"), 3, "k", rank=kind, rank_column="r"), kind)
        assert sorted((row.k, row.r) for row in rows) == sorted(
            [("x", 1)] * 4 + ([("y", 2)] * 3 if kind == "dense_rank" else [])
        )


def test_ranks_of_a_window_with_thousands_of_rows_are_those_of_a_table(spark, appended, tmp_path):
    """Many rows are equal, some in nulls only. The time must not be that of comparing each row with each other one."""
    rows = "IF(id % 7 = 0, NULL, pmod(hash(id), 500)) AS v", "id % 3 AS u", "timestamp_seconds(id % 2) AS at", "id"
    spark.range(4000).selectExpr(*rows).write.parquet(str(tmp_path / "many"))
    spark.sql("SELECT 1 AS v, 0L AS u, timestamp_seconds(1000) AS at, 0L AS id").write.mode("append").parquet(
        str(tmp_path / "many")
    )
    table = spark.read.parquet(str(tmp_path / "many"))
    read = spark.readStream.schema(table.schema).parquet(str(tmp_path / "many")).withWatermark("at", "0 seconds")
    for kind in ("rank", "dense_rank"):
        found, expected = (
            window_top_n(tumble(source, "at", "1 minute"), 1600, [desc("v"), "u"], rank=kind, first=7, rank_column="r")
            for source in (read, table.where("at < timestamp_seconds(60)"))
        )
        ids = [sorted((row.r, row.id) for row in rows) for rows in (appended(found, kind), expected.collect())]
        assert ids[0] == ids[1]
        assert len(ids[0]) > 1000


def test_deduplication_keeps_one_row_per_window_and_key(stream, appended):
    rows = appended(window_deduplicate(tumble(stream(), "at", "30 seconds"), "at", "k", keep="last"))
    assert sorted((seconds(row), row.k, row.v) for row in rows) == [
        (0, "x", 5), (0, "y", 2), (30, "y", 7), (60, "y", 50), (90, "x", 1),
    ]  # fmt: skip


EQUAL = [
    [("a", 0, 12), ("a", 1, 12), ("b", 7, 12), ("a", 2, 12)],
    [("a", 3, 12), ("b", 8, 5), ("a", 4, 12)],
    [("end", 0, 60)],
]
"""Rows of equal times, in one micro-batch and in two."""


@pytest.mark.parametrize("files", [EQUAL])
@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ("keep", {"a": 4, "b": 7}),
        ("at DESC", {"a": 4, "b": 7}),
        ("at", {"a": 0, "b": 8}),
        ("v * 0 DESC", {"a": 0, "b": 7}),
    ],
)
def test_of_equal_times_deduplication_keeps_the_row_that_arrived_last_or_first(
    spark, stream, appended, remote, how, kept
):  # fmt: skip
    """An order by something else is a top-1, which keeps the first row."""
    windows = tumble(stream(), "at", "30 seconds")
    if how == "keep":
        rows = window_deduplicate(windows, "at", "k", keep="last")
    else:
        windows.createOrReplaceTempView("windows")
        partition = "PARTITION BY k, window_start, window_end"
        rows = remote().sql(
            f"SELECT * FROM (SELECT *, row_number() OVER ({partition} ORDER BY {how}) AS n FROM windows) WHERE n = 1"
        )
        spark.catalog.dropTempView("windows")
    assert {row.k: row.v for row in appended(rows)} == kept


ALONE = [(0, "x", 1), (0, "x", 5), (10, "y", 2), (30, "y", 7), (80, "y", 50), (90, "x", 1), (150, "x", 1)]
"""Rows that are not late."""


@pytest.mark.parametrize("how", ["inner", "semi"])
def test_streams_are_joined_by_window(stream, appended, how):
    left, right = tumble(stream(), "at", "10 seconds"), tumble(stream(), "at", "10 seconds")
    rows = appended(window_join(left, right.withColumnsRenamed({"v": "v2", "at": "at2"}), "k", how))
    if how == "semi":
        assert sorted((seconds(row), row.k, row.v) for row in rows) == ALONE
        return
    pairs = [(second, k, v, v2) for second, k, v in ALONE for other, _, v2 in ALONE if second == other]
    assert sorted((seconds(row), row.k, row.v, row.v2) for row in rows) == pairs


def test_windows_that_aggregates_give_out_find_their_partners(stream, appended):
    """They join in the micro-batch in which they end, whatever part of them Spark would keep."""

    def summed(name):
        groups = tumble(stream(), "at", "10 seconds").groupBy(*WINDOW, "window_time", "k")
        return groups.agg(F.sum("v").alias(name))  # fmt: skip

    rows = appended(window_join(summed("s"), summed("s2"), "k", "semi"))
    assert sorted((seconds(row), row.s) for row in rows) == TUMBLED


def test_a_row_of_a_semi_join_comes_once_however_many_partners_a_condition_leaves_it(stream, appended):
    left, right = tumble(stream(), "at", "10 seconds"), tumble(stream(), "at", "10 seconds")
    some = right.where("v > 1 OR k = 'x'").withColumnsRenamed({"k": "k2", "v": "v2", "at": "at2"})
    rows = appended(window_join(left, some, how="semi", condition=F.col("v") <= F.col("v2")))
    assert sorted((seconds(row), row.k, row.v) for row in rows) == ALONE
    assert "v2" not in rows[0]


def test_null_keys_of_a_full_join_find_no_partner(stream, appended):
    """Spark treats nulls in its state as equal."""
    key = F.when(F.col("v") > 2, F.col("k"))
    left, right = (tumble(stream(), "at", "20 seconds").withColumn("k", key) for _ in range(2))
    rows = appended(window_join(left, right.withColumnsRenamed({"v": "v2", "at": "at2"}), "k", "full"))
    early = [(row.k, row.v, row.v2) for row in rows if seconds(row) == 0]
    assert sorted(early, key=str) == [
        ("x", 5, 5), (None, 1, None), (None, 2, None), (None, None, 1), (None, None, 2),
    ]  # fmt: skip


def test_outer_rows_come_when_the_watermark_has_passed_their_window(stream, appended):
    left, right = tumble(stream(), "at", "10 seconds"), tumble(stream(), "at", "10 seconds")
    # The other key is not null, because Spark would filter null keys before it sees the time.
    other = F.when(F.col("v") > 1, F.col("k")).otherwise("nobody")
    some = right.withColumn("k", other).withColumnsRenamed({"v": "v2", "at": "at2"})
    rows = appended(window_join(left, some, "k", "left"))
    assert (90, "x", None) in [(seconds(row), row.k, row.v2) for row in rows]
    assert (150, "x", None) not in [(seconds(row), row.k, row.v2) for row in rows]


def test_what_spark_cannot_do_on_streams_is_refused_when_planned(spark, stream):
    plain = spark.readStream.format("rate").load()
    with pytest.raises(PlanError, match="SESSION on a stream needs a watermark"):
        session(plain, "timestamp", "1 s")
    with pytest.raises(PlanError, match="needs a watermark on window_time"):
        window_top_n(tumble(plain, "timestamp", "1 s"), 1, "value")
    with pytest.raises(PlanError, match="left stream has no column window_time with a watermark"):
        window_join(tumble(plain, "timestamp", "1 s"), tumble(plain, "timestamp", "1 s"))
    with pytest.raises(PlanError, match="cannot number the rows"):
        tumble_rows(plain, 3, order_by="timestamp")


AUTUMN = [
    [("x", 1, "07:30"), ("x", 2, "08:10"), ("y", 3, "08:40"), ("x", 4, "09:00")],
    [("x", 5, "09:05"), ("y", 6, "09:55"), ("x", 7, "10:30")],
    [("x", 8, "23:00")],
]
"""Key, value, time in UTC of 2024-11-03; a micro-batch each. In Los Angeles 01:00 comes twice, at 08:00 and 09:00."""


def summed(frame, *keys):
    return frame.groupBy(*WINDOW, "window_time", *keys).agg(F.sum("v").alias("s"), F.max("v").alias("m"))


def joined(frame):
    left = frame.select(F.col("v").alias("w"), "at")
    left, right = tumble(left, "at", "1 hour").drop("at"), tumble(frame, "at", "1 hour").drop("at")
    return window_join(left, right)


def by_panes(frame, functions):
    windows = hop(frame, "at", "30 minutes", "1 hour")
    found = functions.group_by(windows, *WINDOW).agg(functions.function("total")("v").alias("t"))
    return found.select(*WINDOW, "t.sum")


OVER_AUTUMN = {
    "tumble": lambda frame, _: summed(tumble(frame, "at", "1 hour")),
    "hop": lambda frame, _: summed(hop(frame, "at", "20 minutes", "1 hour")),
    "hop, by panes": by_panes,
    "cumulate": lambda frame, _: summed(cumulate(frame, "at", "30 minutes", "3 hours")),
    "session": lambda frame, _: summed(session(frame, "at", "40 minutes", "k"), "k"),
    "session of all": lambda frame, _: summed(session(frame, "at", "20 minutes")),
    "top-n": lambda frame, _: window_top_n(tumble(frame, "at", "1 hour"), 2, desc("v")),
    "deduplication": lambda frame, _: window_deduplicate(tumble(frame, "at", "1 hour"), "at", keep="last"),
    "join": lambda frame, _: joined(frame),
}


@pytest.mark.parametrize("kind", few_quickly(1, OVER_AUTUMN))
def test_a_stream_gives_what_a_table_gives_in_a_night_in_which_clocks_go_back(kind, spark, tmp_path, appended, remote):
    functions = remote(declare_aggregate(Total))
    for number, rows in enumerate(AUTUMN):
        path = tmp_path / f"{number}.csv"
        path.write_text("".join(f"{k},{v},2024-11-03T{time}:00Z\n" for k, v, time in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)
    schema = "k string, v bigint, at timestamp"
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).csv(str(tmp_path / "*.csv"))
    found = appended(OVER_AUTUMN[kind](source.withWatermark("at", "0 seconds"), functions))
    table = OVER_AUTUMN[kind](spark.read.schema(schema).csv(str(tmp_path / "*.csv")), functions)
    expected = table.collect()
    # The last row only advances the watermark.
    found, expected = ([row for row in rows if row.window_start.hour < 12] for rows in (found, expected))
    assert expected
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
