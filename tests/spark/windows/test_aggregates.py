"""Remote aggregates over windows: all kinds, cascades, and panes that are sent once."""

import datetime as dt

import pytest
from pyspark.sql import functions as F

from spark_client import PlanError
from spark_client.windows import cumulate, hop, session, tumble
from tests.spark_client.executor.aggregate.world import ALL, Counted
from udf_server.aggregate.declaration import declare_aggregate

WINDOW = ["window_start", "window_end"]


@pytest.fixture
def functions(remote):
    Counted.rows = 0
    return remote(*map(declare_aggregate, [*ALL, Counted]))


@pytest.fixture
def events(spark):
    """Rows of two keys, every 7 seconds, over three and a half minutes around midnight."""
    begin = dt.datetime(1969, 12, 31, 23, 58)
    rows = [(begin + dt.timedelta(seconds=7 * i), "xy"[i % 2], i) for i in range(30)]
    return spark.createDataFrame(rows, "t timestamp_ntz, k string, v bigint")


def windows_of(frame):
    return {
        "tumble": tumble(frame, "t", "1 minute", "10 s"),
        "hop": hop(frame, "t", "20 s", "1 minute"),
        "hop of any size": hop(frame, "t", "20 s", "50 s"),
        "hop with gaps": hop(frame, "t", "1 minute", "10 s"),
        "cumulate": cumulate(frame, "t", "20 s", "1 minute"),
        "session": session(frame.where("v % 5 < 3"), "t", "10 s", "k"),
    }


@pytest.mark.parametrize("kind", ["tumble", "hop", "hop of any size", "hop with gaps", "cumulate", "session"])
def test_remote_aggregates_of_windows_agree_with_sparks_own(functions, events, kind):
    """Tests panes, and Spark's own aggregates beside them, which need the rows of every window."""
    windowed = windows_of(events)[kind]
    total = functions.function("total")
    own = windowed.groupBy(*WINDOW, "window_time", "k").agg(F.sum("v").alias("sum"), F.count("v").alias("count"))
    expected = sorted(map(tuple, own.collect()))
    alone = functions.group_by(windowed, *WINDOW, "window_time", "k").agg(total("v").alias("t")).select(
        *WINDOW, "window_time", "k", "t.*"
    )  # fmt: skip
    assert sorted(map(tuple, alone.collect())) == expected
    both = functions.group_by(windowed, *WINDOW, "window_time", "k").agg(total("v").alias("t"), F.sum("v").alias("s"))
    assert sorted((*row[:4], row.s, row.t["count"]) for row in both.collect()) == expected


def test_rows_of_a_window_of_many_panes_are_sent_once(functions, events):
    count = functions.function("counted")
    windowed = hop(events, "t", "5 s", "2 minutes")
    rows = functions.group_by(windowed, *WINDOW, "k").agg(count("v").alias("t")).collect()
    assert Counted.rows == 30, "of 720 rows in windows"
    assert sum(row.t["count"] for row in rows) == 24 * 30


def test_what_a_filter_left_of_the_windows_is_all_that_is_aggregated(functions, events):
    total = functions.function("total")
    windowed = hop(events, "t", "20 s", "1 minute").where("second(window_start) = 20")
    rows = functions.group_by(windowed, *WINDOW).agg(total("v").alias("t")).collect()
    assert {row.window_start.second for row in rows} == {20}


def test_conditions_and_arguments_may_name_the_windows_columns(functions, events):
    total = functions.function("total")
    windowed = hop(events, "t", "20 s", "1 minute")
    late = total("v").filter(F.col("t") >= F.col("window_end") - F.expr("interval 20 seconds")).alias("late")
    rows = functions.group_by(windowed, *WINDOW).agg(late).collect()
    own = windowed.where("t >= window_end - interval 20 seconds").groupBy(*WINDOW).agg(F.count("v").alias("n"))
    assert {row.window_start: row.n for row in own.collect()}.items() <= {
        row.window_start: row.late["count"] for row in rows
    }.items()


def test_grouping_sets_over_windows_go_by_panes_as_well(functions, events):
    count = functions.function("counted")
    windowed = cumulate(events, "t", "20 s", "1 minute")
    sets = [["window_start", "window_end", "k"], ["window_start", "window_end"]]
    rows = (
        functions.grouping_sets(windowed, sets, "window_start", "window_end", "k").agg(count("v").alias("t")).collect()
    )
    assert Counted.rows == 2 * 30
    own = windowed.groupBy("window_start", "window_end").count().collect()
    whole = [row for row in rows if row.k is None]
    assert sorted((row.window_end, row.t["count"]) for row in whole) == sorted((r.window_end, r["count"]) for r in own)


def test_an_aggregate_of_windows_is_aggregated_by_larger_windows(functions, events):
    total = functions.function("total")
    small = functions.group_by(tumble(events, "t", "20 s"), *WINDOW, "window_time").agg(total("v").alias("t"))
    inner = small.select(F.col("window_time").alias("rowtime"), F.col("t.sum").alias("v"))
    large = functions.group_by(tumble(inner, "rowtime", "1 minute"), *WINDOW).agg(total("v").alias("t")).collect()
    at_once = functions.group_by(tumble(events, "t", "1 minute"), *WINDOW).agg(total("v").alias("t")).collect()
    assert {row.window_start: row.t["sum"] for row in large} == {row.window_start: row.t["sum"] for row in at_once}


@pytest.mark.parametrize("known", [True, False])
def test_a_window_that_grew_without_rows_is_left_out_when_only_updates_are_asked_for(functions, spark, known):
    """Tests panes, Spark's own aggregates beside them, and a filter that hides how the windows were made."""
    rows = [(dt.datetime(2024, 1, 1, 0, m), k, v) for m, k, v in [(0, "x", 1), (2, "x", 4), (1, "y", 2), (5, "y", 8)]]
    frame = spark.createDataFrame(rows, "t timestamp_ntz, k string, v bigint")
    total = functions.function("total")
    windowed = cumulate(frame, "t", "1 minute", "3 minutes", emit_only_on_update=True)
    windowed = windowed if known else windowed.where("v > 0")
    expected = [(1, "x", 1), (2, "y", 2), (3, "x", 5), (6, "y", 8)]
    for aggregates in (
        [total("v").alias("t")],
        [total("v").alias("t"), F.max("v")],
        [F.struct(F.sum("v").alias("sum")).alias("t")],
    ):
        found = functions.group_by(windowed, *WINDOW, "k").agg(*aggregates)
        assert sorted((row.window_end.minute, row.k, row.t["sum"]) for row in found.collect()) == expected
    # Emitted rows can be grouped like any other rows.
    again = functions.group_by(found, *WINDOW).agg(F.count("*").alias("n"))
    assert again.count() == 4


def test_only_updates_can_be_detected_while_the_time_is_there(functions, events):
    windowed = cumulate(events, "t", "20 s", "1 minute", emit_only_on_update=True)
    with pytest.raises(PlanError, match="emitOnlyOnUpdate needs the time column"):
        functions.group_by(windowed.drop("t"), *WINDOW).agg(F.sum("v"))
    with pytest.raises(PlanError, match="emitOnlyOnUpdate 1 is neither true nor false"):
        cumulate(events, "t", "20 s", "1 minute", emit_only_on_update=1)


def test_changes_count_in_the_windows_of_their_own_time(functions, spark):
    """A window that has no rows left is not in the result."""
    minute = [dt.datetime(2024, 1, 1, 0, m) for m in range(4)]
    changes = [("+I", minute[0], 1), ("+I", minute[1], 2), ("-U", minute[0], 1), ("+U", minute[2], 5)]
    frame = spark.createDataFrame(changes, "row_kind string, t timestamp_ntz, v bigint")
    total = functions.function("total")
    rows = functions.group_by(hop(frame, "t", "1 minute", "2 minutes"), *WINDOW).agg(total("v").alias("t")).collect()
    found = sorted((row.window_start.minute, row.t["sum"]) for row in rows)
    assert found == [(0, 2), (1, 7), (2, 5)]
