"""Values of cases against values of Spark."""

import datetime
from decimal import Decimal

import pytest

from tests.conformance.column_types import UnknownType, parse_type
from tests.conformance.values import parse_value, same


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("INT NOT NULL", "int"),
        ("STRING (optional)", "string"),
        ("VARCHAR(20)", "string"),
        ("DECIMAL(10, 2)", "decimal(10,2)"),
        ("TIMESTAMP(3)", "timestamp_ntz"),
        ("TIMESTAMP(3) WITH LOCAL TIME ZONE", "timestamp"),
        ("TIMESTAMP_LTZ(3)", "timestamp"),
        ("ARRAY<INT NOT NULL>", "array<int>"),
        ("MAP<STRING, ARRAY<BIGINT>>", "map<string,array<bigint>>"),
        ("MULTISET<STRING>", "map<string,int>"),
        ("ROW<f0 INT, f1 ROW<a STRING NOT NULL>>", "struct<`f0`:int,`f1`:struct<`a`:string>>"),
        ("TABLE<STRING>", "array<string>"),
        ("TABLE<word STRING, n INT>", "array<struct<`word`:string,`n`:int>>"),
        ("INTERVAL DAY(3) TO SECOND(3)", "interval day to second"),
    ],
)  # fmt: skip
def test_types_are_spelled_as_spark_does(text, ddl):
    assert parse_type(text).ddl == ddl


def test_a_type_nobody_knows_is_refused_by_name():
    with pytest.raises(UnknownType, match="numeric column"):
        parse_type("numeric column")


def test_values_become_what_their_column_takes():
    assert parse_value("1.50", parse_type("DECIMAL(10,2)")) == Decimal("1.50")
    assert parse_value("2020-01-01T00:00:00.5", parse_type("TIMESTAMP(3)")) == datetime.datetime(
        2020, 1, 1, 0, 0, 0, 500_000
    )
    instant = parse_value("2020-01-01T00:00:00Z", parse_type("TIMESTAMP_LTZ(3)"))
    assert instant == datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    assert parse_value([[1, "x"], None], parse_type("ARRAY<ROW<a INT, b STRING>>")) == [(1, "x"), None]
    assert parse_value({"k": [1, None]}, parse_type("MAP<STRING, ARRAY<INT>>")) == {"k": [1, None]}
    assert parse_value(None, parse_type("INT")) is None
    interval = parse_type("INTERVAL SECOND(3)")
    texts = ("+1 00:00:01.500", "INTERVAL '86401.5' SECOND", 86_401_500)
    assert {parse_value(text, interval) for text in texts} == {datetime.timedelta(days=1, seconds=1.5)}
    assert same("-0 00:10:00.000", datetime.timedelta(minutes=-10)) and not same("ten", datetime.timedelta(minutes=10))


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (5, Decimal("5.00")),
        ([1, ["a"]], {"x": 1, "y": ["a"]}),
        ([["a", 1]], {"a": 1}),
        (5, 5.0),
        ("1.50", Decimal("1.5")),
        (0.1, 0.10000000149011612),
        ("NaN", float("nan")),
        ("2020-01-01T00:00:00.5", datetime.datetime(2020, 1, 1, 0, 0, 0, 500_000)),
        ("2020-01-01T00:00:00Z", datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC).astimezone().replace(tzinfo=None)),
        ("2020-01-01", datetime.date(2020, 1, 1)),
        ("abc", b"abc"),
        (True, True),
        ([1, "x"], (1, "x")),
        ({"1": [2]}, {1: [2]}),
    ],
)
def test_a_value_is_the_expected_one_in_the_type_it_came_in(expected, actual):
    assert same(expected, actual)


@pytest.mark.parametrize(
    ("expected", "actual"),
    [
        (5, 5.5), ("5", "05"), (None, 0), (0, None), (1, True), ([1], [1, 2]), ("1.50", Decimal("1.51")),
        ({"a": 1}, {"a": 2}), ("2020-01-01T00:00:00", datetime.datetime(2020, 1, 1, 0, 0, 1)), (1, "x"), ([1], 1),
    ],
)  # fmt: skip
def test_another_value_is_not_the_expected_one(expected, actual):
    assert not same(expected, actual)


def test_an_average_of_integers_may_have_been_cut_off():
    assert same(3, 3.75, truncated=True)
    assert same(-3, -3.75, truncated=True)
    assert not same(4, 3.75, truncated=True)
