"""Window functions in SQL: their places, their spelling, and grouping over them."""

import datetime as dt

import pytest

import udf_server as udf
from spark_client import PlanError
from spark_client.windows import hop, tumble
from tests.spark_client.executor.aggregate.world import Counted, Total
from udf_server.aggregate.declaration import declare_aggregate

TUMBLED = "TABLE(TUMBLE(TABLE bid, DESCRIPTOR(t), INTERVAL '10' MINUTES))"
BIDS = [
    ("8:05", 4, "C"), ("8:07", 2, "A"), ("8:09", 5, "D"), ("8:11", 3, "B"), ("8:13", 1, "E"), ("8:17", 6, "F"),
]  # fmt: skip
"""The example of FLIP-145."""


class Longest(udf.AggregateFunction):
    """Returns the longest text; a classic aggregate."""

    def create_accumulator(self) -> str:
        return ""

    def accumulate(self, accumulator, text: str):
        return max(accumulator, text, key=len)

    def merge(self, accumulator, others):
        return max([accumulator, *others], key=len)

    def get_value(self, accumulator) -> str:
        return accumulator


@pytest.fixture
def functions(remote):
    Counted.rows = 0
    return remote(*map(declare_aggregate, [Total(), Counted(), Longest()]))


@pytest.fixture(autouse=True)
def bid(spark):
    rows = [(at(clock), price, item) for clock, price, item in BIDS]
    spark.createDataFrame(rows, "t timestamp_ntz, price bigint, item string").createOrReplaceTempView("bid")
    yield
    spark.catalog.dropTempView("bid")


def at(clock):
    hour, minute = map(int, clock.split(":"))
    return dt.datetime(2020, 4, 15, hour, minute)


def rows(frame):
    return sorted(tuple(row) for row in frame.collect())


SUMS = [(at("8:00"), at("8:10"), 11), (at("8:10"), at("8:20"), 10)]


@pytest.mark.parametrize(
    "source",
    [
        TUMBLED,
        "TUMBLE(TABLE bid, DESCRIPTOR(t), INTERVAL '10' MINUTES)",
        "tumble(TABLE bid, descriptor(`t`), interval '10' minute) AS w",
        "TABLE(TUMBLE(DATA => TABLE bid, TIMECOL => DESCRIPTOR(t), SIZE => INTERVAL '600' SECOND))",
        "TUMBLE(TABLE bid, DESCRIPTOR(t), INTERVAL 10 MINUTES, INTERVAL '0' SECOND)",
        "TUMBLE(TABLE bid, DESCRIPTOR(t), INTERVAL '10' MINUTE(2), INTERVAL '00:00' MINUTE TO SECOND(3))",
        "TUMBLE(TABLE (SELECT t, price FROM bid), DESCRIPTOR(t), INTERVAL '0 00:10' DAY TO MINUTE)",
        f"(SELECT * FROM {TUMBLED}) w",
        f"LATERAL (SELECT * FROM {TUMBLED}) w",
    ],
)
def test_a_window_function_is_written_in_many_ways(functions, source):
    query = f"SELECT window_start, window_end, sum(price) FROM {source} GROUP BY window_start, window_end"
    assert rows(functions.sql(query)) == SUMS


def test_rows_keep_their_columns_and_get_those_of_the_window(functions, spark):
    found = functions.sql(f"SELECT * FROM {TUMBLED}")
    assert found.columns == ["t", "price", "item", "window_start", "window_end", "window_time"]
    assert rows(found) == rows(tumble(spark.table("bid"), "t", "10 minutes"))


def test_common_table_expressions_are_seen_by_a_window_function_and_may_hold_one(functions):
    query = """
        WITH dear AS (SELECT * FROM bid WHERE price > 3),
             w AS (SELECT * FROM HOP(TABLE dear, DESCRIPTOR(t), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES))
        SELECT window_start, total(price).sum FROM w GROUP BY window_start, window_end
    """
    expected = [(at("8:00"), 9), (at("8:05"), 9), (at("8:10"), 6), (at("8:15"), 6)]
    assert rows(functions.sql(query)) == expected


def test_a_view_of_windows_is_queried_as_any_other(functions, spark):
    functions.sql(f"CREATE TEMPORARY VIEW by_window AS SELECT * FROM {TUMBLED}")
    try:
        query = "SELECT window_start, window_end, sum(price) FROM by_window GROUP BY window_start, window_end"
        assert rows(functions.sql(query)) == SUMS
    finally:
        spark.catalog.dropTempView("by_window")


def test_windows_are_joined_and_ranked(functions):
    joined = f"""
        SELECT l.item, r.item FROM (SELECT * FROM {TUMBLED}) l JOIN {TUMBLED} r
        ON l.window_start = r.window_start AND l.window_end = r.window_end AND l.price = r.price + 1
    """
    assert rows(functions.sql(joined)) == [("D", "C")]
    ranked = f"""
        SELECT item, n FROM (
          SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end ORDER BY price DESC) AS n FROM {TUMBLED}
        ) WHERE n <= 2
    """
    assert rows(functions.sql(ranked)) == [("B", 2), ("C", 2), ("D", 1), ("F", 1)]


def test_remote_classic_and_built_in_aggregates_stand_beside_each_other(functions):
    query = f"""
        SELECT window_start, total(price).sum AS s, longest(item) FILTER (WHERE price > 1) AS l,
               total(DISTINCT price % 2).count AS d, count(DISTINCT price % 2) AS own, max(price)
        FROM {TUMBLED} GROUP BY window_start, window_end HAVING total(price).sum > 10
    """
    assert [row.asDict() for row in functions.sql(query).collect()] == [
        {"window_start": at("8:00"), "s": 11, "l": "C", "d": 2, "own": 2, "max(price)": 5}
    ]


@pytest.mark.parametrize("aggregate", ["sum(price)", "total(price).sum"])
def test_grouping_sets_stand_beside_the_window(functions, aggregate):
    """GROUPING_ID covers some of the keys, as in Flink."""
    query = f"""
        SELECT window_start, dear, GROUPING_ID(dear) AS id, {aggregate}
        FROM TUMBLE(TABLE (SELECT *, price > 4 AS dear FROM bid), DESCRIPTOR(t), INTERVAL '10' MINUTES)
        GROUP BY ROLLUP (dear), window_start, window_end
    """
    found = {(row[0].minute, row[1], row[2], row[3]) for row in functions.sql(query).collect()}
    assert found == {
        (0, None, 1, 11), (0, True, 0, 5), (0, False, 0, 6), (10, None, 1, 10), (10, True, 0, 6), (10, False, 0, 4),
    }  # fmt: skip


def test_rows_of_overlapping_windows_are_sent_once(functions, spark):
    hopped = "HOP(TABLE bid, DESCRIPTOR(t), INTERVAL '1' MINUTE, INTERVAL '24' MINUTES)"
    query = f"""
        SELECT window_start, counted(price).sum FROM {hopped} w WHERE w.price > 1
        GROUP BY window_start, window_end
    """
    found = rows(functions.sql(query))
    assert Counted.rows == 5, "of 120 rows in windows"
    own = hop(spark.table("bid").where("price > 1"), "t", "1 minute", "24 minutes").groupBy("window_start").sum("price")
    assert found == rows(own)


def test_windows_that_a_condition_names_are_all_sent(functions):
    query = """
        SELECT window_start, counted(price).sum
        FROM CUMULATE(TABLE bid, DESCRIPTOR(t), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES)
        WHERE window_end > TIMESTAMP_NTZ '2020-04-15 08:10:00' GROUP BY window_start, window_end
    """
    assert rows(functions.sql(query)) == [(at("8:10"), 4), (at("8:10"), 10)]


def test_sessions_are_of_their_key_and_cascade_into_larger_windows(functions):
    query = """
        SELECT window_start, sum(n), total(s).sum FROM TUMBLE(
          TABLE (
            SELECT window_time AS ended, count(*) AS n, total(price).sum AS s
            FROM SESSION(
              TABLE (SELECT *, price % 2 AS odd FROM bid) PARTITION BY odd, DESCRIPTOR(t), INTERVAL '4' MINUTES)
            GROUP BY odd, window_start, window_end, window_time
          ), DESCRIPTOR(ended), INTERVAL '15' MINUTES)
        GROUP BY window_start, window_end
    """
    # Even prices are at 8:05, 8:07 and 8:17; odd ones at 8:09, 8:11 and 8:13, and their session ends at 8:17.
    assert rows(functions.sql(query)) == [(at("8:00"), 2, 6), (at("8:15"), 4, 15)]


@pytest.fixture
def changes(spark):
    changes = [("+I", "8:05", 4), ("+I", "8:07", 2), ("-U", "8:05", 4), ("+U", "8:12", 9), ("+I", "8:31", 1),
               ("-D", "8:31", 1)]  # fmt: skip
    rows_of = [(kind, at(clock), price) for kind, clock, price in changes]
    frame = spark.createDataFrame(rows_of, "row_kind string, t timestamp_ntz, price bigint").coalesce(1)
    frame.createOrReplaceTempView("changes")
    yield "TUMBLE(TABLE changes, DESCRIPTOR(t), INTERVAL '10' MINUTES)"
    spark.catalog.dropTempView("changes")


def test_changes_are_taken_back_in_the_window_of_their_own_time(functions, changes):
    """Tests built-in and remote aggregates; a window without remaining rows is not emitted."""
    own = f"SELECT window_start, count(*), sum(price), max(price), count(DISTINCT price) FROM {changes}"
    found = rows(functions.sql(f"{own} GROUP BY window_start, window_end"))
    assert found == [(at("8:00"), 1, 2, 2, 1), (at("8:10"), 1, 9, 9, 1)]
    named = f"SELECT row_kind, count(*) FROM {changes} GROUP BY row_kind, window_start, window_end"
    assert len(rows(functions.sql(named))) == 5, "a query that names the kind has a row per kind"


def test_an_aggregate_of_changes_takes_back_only_the_rows_of_its_filter(functions, changes):
    own = """count(*) FILTER (WHERE price > 2), sum(price) FILTER (WHERE price < 9),
             count(DISTINCT price) FILTER (WHERE price > 3), total(price).sum"""
    found = rows(functions.sql(f"SELECT window_start, {own} FROM {changes} GROUP BY window_start, window_end"))
    assert found == [(at("8:00"), 0, 2, 0, 2), (at("8:10"), 1, None, 1, 9)]


def test_grouping_sets_of_changes_have_a_grouping_id(functions, changes):
    query = f"SELECT window_start, price, grouping_id(price), count(*) FROM {changes}"
    found = {tuple(row) for row in functions.sql(f"{query} GROUP BY CUBE(price), window_start, window_end").collect()}
    first, second = at("8:00"), at("8:10")
    assert found == {(first, 2, 0, 1), (first, None, 1, 1), (second, 9, 0, 1), (second, None, 1, 1)}


def test_groups_of_changes_need_no_aggregate(functions, changes):
    found = rows(functions.sql(f"SELECT price, window_start FROM {changes} GROUP BY window_start, window_end, price"))
    assert found == [(2, at("8:00")), (9, at("8:10"))]


@pytest.mark.parametrize(
    ("query", "place", "message"),
    [
        ("SELECT *\nFROM TUMBLE(TABLE bid, DESCRIPTOR(t), INTERVAL '0' SECOND)", "line 2, column 6", "positive"),
        ("SELECT * FROM HOP(TABLE bid, DESCRIPTOR(t), INTERVAL '5' MINUTE)", "line 1, column 15", "lacks the arg"),
        ("SELECT * FROM TUMBLE(TABLE bid, DESCRIPTOR(x), INTERVAL '5' MINUTE)", "line 1, column 15", "'x' is not f"),
        ("SELECT * FROM TUMBLE(TABLE bid, DESCRIPTOR(item), INTERVAL '5' MINUTE)", "column 15", "type string"),
        ("SELECT * FROM TUMBLE(TABLE bid, DESCRIPTOR(t), INTERVAL '5' MONTH)", "line 1, column 15", "of months"),
        ("SELECT * FROM TUMBLE(TABLE bid, DESCRIPTOR(t), price)", "line 1, column 15", "constant"),
        ("SELECT * FROM TUMBLE(TABLE bid PARTITION BY item, DESCRIPTOR(t), INTERVAL '1' DAY)", "", "no PARTITION BY"),
        ("SELECT * FROM TUMBLE(DATA => TABLE bid, SIZE => INTERVAL '1' DAY)", "", "Illegal second argument"),
    ],
)
def test_an_error_names_the_place(functions, query, place, message):
    with pytest.raises(PlanError) as refused:
        functions.sql(query)
    assert place in str(refused.value)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("query", "place", "window"),
    [
        ("SELECT sum(price) FROM bid GROUP BY TUMBLE(t, INTERVAL '10' MINUTES)", 37, "TUMBLE"),
        ("SELECT total(price) FROM bid GROUP BY hop(t, INTERVAL '5' MINUTES, INTERVAL '10' MINUTES)", 39, "HOP"),
        ("SELECT TUMBLE_START(t, INTERVAL '10' MINUTES) FROM bid", 8, "TUMBLE"),
        ("SELECT * FROM TABLE(CUMULATE((SELECT * FROM bid), DESCRIPTOR(t), INTERVAL '5' MINUTES))", 21, "CUMULATE"),
    ],
)
def test_a_group_window_is_refused_with_the_form_to_write(functions, query, place, window):
    with pytest.raises(PlanError, match=rf"^line 1, column {place}: .*write FROM TABLE\({window}\(TABLE t, "):
        functions.sql(query).collect()


def test_explain_says_what_was_made_of_a_query(functions):
    query = """
        SELECT window_start, total(price).sum
        FROM HOP(TABLE bid, DESCRIPTOR(t), INTERVAL '5' MINUTES, INTERVAL '10' MINUTES)
        GROUP BY window_start, window_end
    """
    lines = functions.explain(query).splitlines()
    assert lines[:3] == [
        "1. HOP over t: native Spark expressions",
        "2. aggregate by window_start, window_end: total on the server",
        "3. HOP: rows are sent once per pane, not once per window",
    ]
    assert "== Physical Plan ==" in lines
    assert functions.explain("SELECT 1").startswith("1. all of it is left to Spark")
