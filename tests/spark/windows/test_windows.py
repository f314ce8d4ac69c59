"""Window functions on tables: the windows of a row, and their columns."""

import datetime as dt
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F

from spark_client import PlanError, desc
from spark_client.windows import cumulate, hop, session, tumble, tumble_rows, window_deduplicate, window_top_n

EPOCH = dt.datetime(1970, 1, 1)
MS = dt.timedelta(milliseconds=1)
BIDS = [(7, 2, "A"), (11, 3, "B"), (5, 4, "C"), (9, 5, "D"), (13, 1, "E"), (17, 6, "F")]
"""FLIP-145's Bid table: minutes after eight, price, item."""


def at(minute, hour=8):
    return dt.datetime(2020, 4, 15, hour, minute)


@pytest.fixture
def bids(spark):
    return spark.createDataFrame(
        [(at(minute), price, item) for minute, price, item in BIDS], "bidtime timestamp_ntz, price int, item string"
    )


def clock(row):
    """Formats times as FLIP-145 does: the item, then minutes after eight of start and end."""
    return row.item, *((each - at(0)) // dt.timedelta(minutes=1) for each in (row.window_start, row.window_end))


def test_tumble_puts_every_row_in_the_window_of_its_time(bids):
    rows = tumble(bids, "bidtime", "10 minutes").collect()
    assert sorted(map(clock, rows)) == [
        ("A", 0, 10), ("B", 10, 20), ("C", 0, 10), ("D", 0, 10), ("E", 10, 20), ("F", 10, 20),
    ]  # fmt: skip


def test_hop_puts_a_row_in_every_window_it_is_in(bids):
    rows = hop(bids, "bidtime", "5 minutes", "10 minutes").collect()
    assert sorted(map(clock, rows)) == [
        ("A", 0, 10), ("A", 5, 15), ("B", 5, 15), ("B", 10, 20), ("C", 0, 10), ("C", 5, 15),
        ("D", 0, 10), ("D", 5, 15), ("E", 5, 15), ("E", 10, 20), ("F", 10, 20), ("F", 15, 25),
    ]  # fmt: skip


def test_cumulate_grows_a_window_by_its_step(bids):
    rows = cumulate(bids, "bidtime", dt.timedelta(minutes=2), dt.timedelta(minutes=10)).where("price > 3").collect()
    assert sorted(map(clock, rows)) == [
        ("C", 0, 6), ("C", 0, 8), ("C", 0, 10), ("D", 0, 10), ("F", 10, 18), ("F", 10, 20),
    ]  # fmt: skip


def test_sessions_are_as_in_the_example_of_the_design(spark):
    rows = [
        (7, 2, "A", "takidau"),
        (5, 1, "A", "klk"),
        (9, 10, "B", "takidau"),
        (8, 3, "A", "klk"),
        (17, 20, "B", "klk"),
    ]
    bids = spark.createDataFrame(
        [(at(minute), *rest) for minute, *rest in rows], "bidtime timestamp_ntz, price int, item string, bidder string"
    )
    found = session(bids, "bidtime", "5 minutes", "bidder").collect()
    assert sorted((row.bidder, row.price, *clock(row)[1:]) for row in found) == [
        ("klk", 1, 5, 13), ("klk", 3, 5, 13), ("klk", 20, 17, 22), ("takidau", 2, 7, 14), ("takidau", 10, 7, 14),
    ]  # fmt: skip


def test_rows_a_gap_apart_are_one_session_and_a_microsecond_more_makes_two(spark):
    times = [at(0), at(5), at(10) + dt.timedelta(microseconds=1)]
    frame = spark.createDataFrame([(time,) for time in times], "t timestamp_ntz")
    rows = session(frame, "t", "5 minutes").orderBy("t").collect()
    assert [(row.window_start, row.window_end) for row in rows] == [
        (at(0), at(10)), (at(0), at(10)), (times[2], times[2] + dt.timedelta(minutes=5)),
    ]  # fmt: skip


@pytest.mark.parametrize("gap", ["20 minutes", "90 minutes", "24 hours"])
def test_the_gap_of_sessions_is_elapsed_time_as_in_sparks_own_whatever_clocks_do(spark, gap):
    """In Los Angeles clocks go forward on 2024-03-10 at 10:00 in UTC, and back on 2024-11-03 at 09:00."""
    draw = random.Random(5)
    starts = [dt.datetime(2024, 3, 9, 9, tzinfo=dt.UTC), dt.datetime(2024, 11, 2, 8, tzinfo=dt.UTC)]
    rows = [
        (draw.choice("ab"), start + dt.timedelta(minutes=draw.choice([0, 60 * 24]) + 10 * draw.randrange(18)))
        for start in starts
        for _ in range(40)
    ]
    frame = spark.createDataFrame(rows, "k string, t timestamp").cache()
    ours = session(frame, "t", gap, "k").groupBy("k", "window_start", "window_end", "window_time").count()
    ours = ours.selectExpr("k", "unix_millis(window_time) + 1", "count", "window_end")
    theirs = frame.groupBy("k", F.session_window("t", gap).alias("w")).count()
    theirs = theirs.selectExpr("k", "unix_millis(w.end)", "count", "cast(w.end AS timestamp_ntz)")
    assert sorted(map(tuple, ours.collect())) == sorted(map(tuple, theirs.collect()))


def test_windows_of_rows_have_the_times_of_their_first_and_last_row_where_clocks_go_back(spark):
    texts = ["2024-11-03T08:50:00Z", "2024-11-03T09:10:00Z", "2024-11-03T09:20:00Z"]
    frame = spark.createDataFrame([(text,) for text in texts], "text string").selectExpr("cast(text AS timestamp) AS t")
    (row,) = set(
        tumble_rows(frame, 3, order_by="t").drop("t").selectExpr("*", "unix_millis(window_time) AS ms").collect()
    )
    assert (row.window_start.minute, row.window_end.minute) == (50, 20)
    assert EPOCH + row.ms * MS == dt.datetime(2024, 11, 3, 9, 20)


def test_null_is_a_key_of_sessions_like_any_other(spark):
    frame = spark.createDataFrame([(at(0), None), (at(1), None), (at(1), "x")], "t timestamp_ntz, k string")
    rows = session(frame, "t", "5 minutes", ["k"]).collect()
    assert sorted((row.k or "", row.window_end) for row in rows) == [("", at(6)), ("", at(6)), ("x", at(6))]


# Comparison with a plain model: windows follow from the definition, and a row is in those that contain its time.


def micros(time):
    return (time - EPOCH) // dt.timedelta(microseconds=1)


def tumbles(time, size, offset):
    return hops(time, size, size, offset)


def hops(time, slide, size, offset):
    first = (time - offset - size) // slide - 1
    starts = [offset + number * slide for number in range(first, first + size // slide + 4)]
    return [(start, start + size) for start in starts if start <= time < start + size]


def cumulates(time, step, size, offset):
    ((start, _),) = tumbles(time, size, offset)
    return [(start, start + grown) for grown in range(step, size + 1, step) if time < start + grown]


lengths = st.integers(1, 40).map(lambda n: n * 250_000)
offsets = st.integers(-30, 30).map(lambda n: n * 125_000)
times = st.lists(st.integers(-20_000_000, 20_000_000), min_size=5, max_size=30)


def bounds(spark, found, instants):
    rows = spark.createDataFrame([(EPOCH + dt.timedelta(microseconds=time),) for time in instants], "t timestamp_ntz")
    spread = found(rows).collect()
    assert all(row.window_time == row.window_end - MS for row in spread)
    return sorted((micros(row.t), micros(row.window_start), micros(row.window_end)) for row in spread)


def expected(instants, model):
    return sorted((time, *window) for time in instants for window in model(time))


def length(count):
    return dt.timedelta(microseconds=count)


@settings(max_examples=8)
@given(size=lengths, offset=offsets, instants=times)
def test_tumble_is_where_the_definition_says(spark, size, offset, instants):
    offset %= size
    found = bounds(spark, lambda rows: tumble(rows, "t", length(size), length(offset)), instants)
    assert found == expected(instants, lambda time: tumbles(time, size, offset))


@settings(max_examples=8)
@given(slide=lengths, size=lengths, offset=offsets, instants=times)
def test_hop_is_where_the_definition_says_whatever_slide_and_size_are(spark, slide, size, offset, instants):
    found = bounds(spark, lambda rows: hop(rows, "t", length(slide), length(size), length(offset)), instants)
    assert found == expected(instants, lambda time: hops(time, slide, size, offset))


@settings(max_examples=8)
@given(step=lengths, count=st.integers(1, 6), offset=offsets, instants=times)
def test_cumulate_is_where_the_definition_says(spark, step, count, offset, instants):
    size = step * count
    found = bounds(spark, lambda rows: cumulate(rows, "t", length(step), length(size), length(offset)), instants)
    assert found == expected(instants, lambda time: cumulates(time, step, size, offset))


# Columns, zones, nulls.


def test_all_columns_come_first_and_a_row_without_time_is_left_out(spark):
    frame = spark.createDataFrame([(None, 1), (at(1), 2)], "`my.time` timestamp_ntz, `v` int")
    for windowed in (
        tumble(frame, "my.time", "1 hour"),
        hop(frame, "my.time", "1 hour", "1 hour"),
        cumulate(frame, "my.time", "1 hour", "1 hour"),
        session(frame, "my.time", "1 hour"),
    ):
        assert windowed.columns == ["my.time", "v", "window_start", "window_end", "window_time"]
        assert [row.v for row in windowed.collect()] == [2]


def test_bounds_have_no_zone_and_window_time_has_the_type_of_the_time_column(spark):
    frame = spark.createDataFrame([(at(1),)], "t timestamp_ntz")
    zoned = frame.select(F.col("t").cast("timestamp").alias("t"))
    names = [field.dataType.simpleString() for field in tumble(frame, "t", "1 hour").schema.fields]
    assert names == ["timestamp_ntz"] * 4
    for windowed in (tumble(zoned, "t", "1 hour"), session(zoned, "t", "1 hour")):
        assert [field.dataType.simpleString() for field in windowed.schema.fields] == [
            "timestamp", "timestamp_ntz", "timestamp_ntz", "timestamp",
        ]  # fmt: skip


def test_days_of_instants_are_days_of_the_sessions_clock_whatever_summer_does(spark):
    """In Los Angeles 2024-03-10 had 23 hours and 2024-11-03 had 25."""
    texts = ["2024-03-10T08:00:00Z", "2024-03-11T06:59:59Z", "2024-11-03T07:00:00Z", "2024-11-04T07:59:59Z"]
    frame = spark.createDataFrame([(text,) for text in texts], "text string").select(
        F.col("text").cast("timestamp").alias("t")
    )
    rows = tumble(frame, "t", "1 day").orderBy("t").selectExpr("window_start", "unix_millis(window_time) ms").collect()
    assert [row.window_start for row in rows] == [dt.datetime(2024, 3, 10)] * 2 + [dt.datetime(2024, 11, 3)] * 2
    ends = [dt.datetime(2024, 3, 11, 7), dt.datetime(2024, 11, 4, 8)]
    assert [EPOCH + row.ms * MS for row in rows] == [end - MS for end in ends for _ in range(2)]


def test_two_instants_an_hour_apart_share_a_window_when_the_clock_goes_back(spark):
    texts = ["2024-11-03T08:30:00Z", "2024-11-03T09:30:00Z"]
    frame = spark.createDataFrame([(text,) for text in texts], "text string").select(
        F.col("text").cast("timestamp").alias("t")
    )
    starts = {row.window_start for row in tumble(frame, "t", "1 hour").collect()}
    assert starts == {dt.datetime(2024, 11, 3, 1)}


def test_a_time_without_zone_is_never_shifted(spark):
    """02:30 of that day is not on the clocks of Los Angeles."""
    frame = spark.createDataFrame([(dt.datetime(2024, 3, 10, 2, 30),)], "t timestamp_ntz")
    assert tumble(frame, "t", "1 hour").first().window_start == dt.datetime(2024, 3, 10, 2)


# Mistakes.


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: tumble(f, "bidtime", "0 s"), "TUMBLE .* requires size to be positive"),
        (lambda f: tumble(f, "bidtime", "10 min", "10 min"), r"TUMBLE .* must satisfy abs\(offset\) < size"),
        (lambda f: tumble(f, "bidtime", "10 min", "-16 min"), r"abs\(offset\) < size.*offset -960000 ms"),
        (lambda f: hop(f, "bidtime", "0 s", "1 s"), "HOP .* requires slide and size to be positive"),
        (lambda f: hop(f, "bidtime", "1 ms", "1 day"), "HOP .* every row in 86,400,000 windows"),
        (lambda f: cumulate(f, "bidtime", "-1 s", "5 s"), "CUMULATE .* requires maxSize and step to be positive"),
        (lambda f: cumulate(f, "bidtime", "2 s", "5 s"), "maxSize must be an integral multiple of step"),
        (lambda f: session(f, "bidtime", "0 s"), "SESSION .* requires gap to be positive"),
        (lambda f: session(f, "bidtime", "1 s", "nobody"), "column 'nobody' is not found among bidtime, price, item"),
        (lambda f: tumble(f, "price", "1 s"), "TUMBLE: time column 'price' is of type int"),
        (lambda f: tumble(f, "when", "1 s"), "TUMBLE: time column: column 'when' is not found"),
        (lambda f: tumble(f, "bidtime", "1 month"), "size '1 month' is not an interval of days"),
        (lambda f: tumble(f, "bidtime", "0.5 ms"), "is not a whole number of milliseconds"),
        (lambda f: tumble(f, "bidtime", 5), "size 5 is not an interval"),
        (lambda f: tumble(f, "bidtime", "200000 days"), "longer than 100,000 days"),
        (lambda f: hop(tumble(f, "bidtime", "1 s"), "bidtime", "1 s", "1 s"), "Column 'window_end' is ambiguous"),
        (lambda f: tumble_rows(f, 0, order_by="bidtime"), "count 0 is not a positive number of rows"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_window_is_refused_with_the_reason(bids, call, message):
    with pytest.raises(PlanError, match=message):
        call(bids)


# Windows of rows, top-N, deduplication.


def test_windows_of_rows_count_rows_per_key(bids):
    rows = tumble_rows(
        bids.withColumn("even", F.col("price") % 2), 2, order_by="bidtime", partition_by="even"
    ).collect()
    found = sorted((row.even, row.item, row.window_number, row.window_start, row.window_time) for row in rows)
    assert found == [
        (0, "A", 1, at(5), at(7)), (0, "C", 1, at(5), at(7)), (0, "F", 2, at(17), at(17)),
        (1, "B", 1, at(9), at(11)), (1, "D", 1, at(9), at(11)), (1, "E", 2, at(13), at(13)),
    ]  # fmt: skip


def test_top_n_ranks_the_rows_of_each_window(bids):
    best = window_top_n(tumble(bids, "bidtime", "10 minutes"), 2, desc("price"), rank_column="rownum")
    assert sorted((row.item, row.rownum) for row in best.collect()) == [("B", 2), ("C", 2), ("D", 1), ("F", 1)]
    second = window_top_n(tumble(bids, "bidtime", "10 minutes"), 2, desc("price"), first=2)
    assert sorted(row.item for row in second.collect()) == ["B", "C"]


def test_equals_share_a_rank_but_not_a_row_number(spark):
    frame = spark.createDataFrame(
        [(at(1), "a", 5), (at(2), "b", 5), (at(3), "c", 4)], "t timestamp_ntz, k string, v int"
    )
    windowed = tumble(frame.coalesce(1), "t", "1 hour")

    def ranks(kind):
        return [
            row.r for row in window_top_n(windowed, 3, desc("v"), rank=kind, rank_column="r").orderBy("k").collect()
        ]

    assert ranks("row_number") == [1, 2, 3]
    assert ranks("rank") == [1, 1, 3]
    assert ranks("dense_rank") == [1, 1, 2]


def test_deduplication_keeps_the_first_or_the_last_row_of_each_window(bids):
    windowed = tumble(bids, "bidtime", "10 minutes")
    assert sorted(row.item for row in window_deduplicate(windowed, "bidtime").collect()) == ["B", "C"]
    assert sorted(row.item for row in window_deduplicate(windowed, "bidtime", keep="last").collect()) == ["D", "F"]
    same = bids.withColumn("bidtime", F.lit("2020-04-15 08:05:00").cast("timestamp")).coalesce(1)
    first, *_, last = [row.item for row in same.collect()]
    windowed = tumble(same, "bidtime", "10 minutes")
    kept = {keep: window_deduplicate(windowed, "bidtime", keep=keep).first().item for keep in ("first", "last")}
    assert kept == {"first": first, "last": last}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: window_top_n(w, 0, "price"), "no ranks from 1 to 0"),
        (lambda w: window_top_n(w, 1, "price", rank="ntile"), "rank 'ntile' is not one of"),
        (lambda w: window_top_n(w, 1, ()), "order_by is empty"),
        (lambda w: window_top_n(w, 1, "price", rank_column="Item"), "has a column 'Item' already"),
        (lambda w: window_top_n(w.drop("window_end"), 1, "price"), "column 'window_end' is not found"),
        (lambda w: window_deduplicate(w, "bidtime", keep="any"), "neither first nor last"),
    ],
)
def test_top_n_says_what_it_lacks(bids, call, message):
    with pytest.raises(PlanError, match=message):
        call(tumble(bids, "bidtime", "10 minutes"))
