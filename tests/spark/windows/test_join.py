"""Window join on tables."""

import datetime as dt

import pytest
from pyspark.sql import functions as F

from spark_client import PlanError
from spark_client.windows import hop, tumble, window_join


def at(minute):
    return dt.datetime(2020, 4, 15, 12, minute)


@pytest.fixture
def sides(spark):
    """Tables as in FLIP-145: rows of 5-minute windows, with some common keys."""
    left = spark.createDataFrame([(at(2), 1, "L1"), (at(6), 2, "L2"), (at(3), 3, "L3"), (at(8), None, "L4")],
                                 "lt timestamp_ntz, num int, l string")  # fmt: skip
    right = spark.createDataFrame([(at(1), 2, "R2"), (at(4), 3, "R3"), (at(7), 2, "R5"), (at(9), None, "R4")],
                                  "rt timestamp_ntz, num int, r string")  # fmt: skip
    return tumble(left, "lt", "5 minutes"), tumble(right, "rt", "5 minutes")


def pairs(frame):
    return sorted((row.l or "", row.r or "") for row in frame.collect())


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [("L2", "R5"), ("L3", "R3")]),
        ("left", [("L1", ""), ("L2", "R5"), ("L3", "R3"), ("L4", "")]),
        ("right", [("", "R2"), ("", "R4"), ("L2", "R5"), ("L3", "R3")]),
        ("full", [("", "R2"), ("", "R4"), ("L1", ""), ("L2", "R5"), ("L3", "R3"), ("L4", "")]),
    ],
)
def test_rows_of_a_window_are_joined_by_key_and_padded_with_nulls(sides, how, expected):
    joined = window_join(*sides, "num", how)
    assert joined.columns == ["window_start", "window_end", "window_time", "num", "lt", "l", "rt", "r"]
    assert pairs(joined) == expected
    assert all(row.window_start is not None for row in joined.collect())


def test_semi_and_anti_joins_keep_rows_of_the_left_alone(sides):
    assert sorted(row.l for row in window_join(*sides, "num", "semi").collect()) == ["L2", "L3"]
    assert sorted(row.l for row in window_join(*sides, "num", "anti").collect()) == ["L1", "L4"]
    assert "r" not in window_join(*sides, "num", "semi").columns


def test_null_keys_meet_only_when_asked_to(sides):
    assert ("L4", "R4") in pairs(window_join(*sides, "num", null_safe=True))
    assert ("L4", "R4") not in pairs(window_join(*sides, "num"))


def test_a_condition_is_one_more(sides):
    left, right = sides
    joined = window_join(left, right.withColumnRenamed("num", "other"), condition=F.col("num") > F.col("other"))
    assert pairs(joined) == [("L3", "R2")]


def test_overlapping_windows_join_once_per_window(spark):
    frame = spark.createDataFrame([(at(1), "x")], "t timestamp_ntz, k string")
    one = hop(frame, "t", "5 minutes", "10 minutes")
    assert window_join(one, one.withColumnRenamed("t", "t2"), "k").count() == 2


def test_what_cannot_be_joined_is_refused(sides):
    left, right = sides
    with pytest.raises(PlanError, match="how 'cross' is not one of inner"):
        window_join(left, right, "num", "cross")
    with pytest.raises(PlanError, match="right frame: column 'window_start' is not found"):
        window_join(left, right.drop("window_start"), "num")
    with pytest.raises(PlanError, match="both frames have a column 'num'"):
        window_join(left, right)
