"""Calls in SQL below LIMIT and beside joins: for which rows they are made."""

import pytest

import udf_server as udf
from spark_client import connect
from tests.counted_calls import CountedCalls

CALLS = CountedCalls()
ROWS = 2_000


@udf.scalar
async def up(x: int) -> int:
    CALLS.add("up")
    return x + 1


@udf.scalar
async def word(x: int) -> str:
    CALLS.add("word")
    return str(x)


@udf.scalar(returns="struct<a bigint, b bigint>")
async def pair(x: int) -> dict:
    CALLS.add("pair")
    return {"a": x, "b": -x}


@udf.scalar(rows=True, returns="n bigint")
def upto(x: int) -> list[dict]:
    CALLS.add("upto")
    return [{"n": n} for n in range(x % 3)]


@pytest.fixture
def remote(spark, serve):
    CALLS.clear()
    spark.range(0, ROWS, 1, 4).selectExpr("id", "id % 7 AS k").createOrReplaceTempView("t")
    spark.range(0, 20, 1, 2).selectExpr("id AS few").createOrReplaceTempView("u")
    yield connect(spark, serve(up, word, pair, upto).target)
    for view in ("t", "u"):
        spark.catalog.dropTempView(view)


def rows_of(spark, remote, query):
    """The rows by remote.sql, which must be those by Spark, with what remote.sql has called."""
    remote.register()
    expected = spark.sql(query)
    found = remote.sql(query)
    assert [(each.name, each.dataType) for each in found.schema] == [
        (each.name, each.dataType) for each in expected.schema
    ]
    rows = expected.collect()
    CALLS.clear()
    assert found.collect() == rows
    return dict(CALLS)


@pytest.mark.connect
@pytest.mark.parametrize(
    ("query", "calls"),
    [
        ("SELECT up(id) FROM t ORDER BY k, id LIMIT 10", {"up": 10}),
        (
            "SELECT *, up(id), word(k) AS z FROM t x WHERE x.k <> 1 ORDER BY x.k DESC, id LIMIT 10",
            {"up": 10, "word": 10},
        ),
        ("SELECT up(id) AS k2, -id AS v FROM t ORDER BY v LIMIT 10 OFFSET 5", {"up": 10}),
        ("SELECT up(up(id)), id + up(id) AS v FROM t ORDER BY id DESC LIMIT 3", {"up": 6}),
        ("SELECT pair(id).a, pair(id).b AS b, t.*, count(*) OVER () FROM t ORDER BY id LIMIT 4", {"pair": ROWS}),
        ("SELECT pair(id).a, pair(id).b AS b, t.* FROM t ORDER BY id LIMIT 4", {"pair": 4}),
        ("WITH a AS (SELECT up(id) AS y FROM t ORDER BY id LIMIT 5) SELECT count(y) FROM a", {"up": 5}),
        ("SELECT * FROM (SELECT up(id) AS y FROM t ORDER BY k, id LIMIT 10) WHERE y > 3", {"up": 10}),
        # As an item it is a call like any other, although such a function is mostly called in FROM.
        ("SELECT y FROM (SELECT id, k + 1 AS z, upto(id) AS y FROM t ORDER BY k, id LIMIT 10) AS s", {"upto": 10}),
        # What depends on calls, or may need more tasks, is left to Spark.
        ("SELECT up(id) AS y FROM t ORDER BY y LIMIT 10", {"up": ROWS}),
        ("SELECT id, up(id) FROM t ORDER BY 1 LIMIT 10", {"up": ROWS}),
        ("SELECT rand(3) * 0 + id AS r, up(id) FROM t ORDER BY r LIMIT 10", {"up": ROWS}),
        ("SELECT word(max(id)) FROM t GROUP BY k ORDER BY k LIMIT 3", {"word": 7}),
        ("SELECT up(id) FROM t ORDER BY id LIMIT 0", {}),
    ],
)
def test_calls_are_made_for_the_rows_that_are_left(spark, remote, query, calls):
    assert rows_of(spark, remote, query) == calls


def test_a_large_limit_keeps_its_tasks(spark, remote):
    assert rows_of(spark, remote, "SELECT up(id) FROM t ORDER BY id LIMIT 10001")["up"] >= ROWS


@pytest.mark.connect
def test_a_limit_alone_reads_as_few_partitions_as_its_rows_need(spark, remote):
    assert remote.sql("SELECT up(id) FROM t LIMIT 10").count() == 10
    CALLS.clear()
    assert len(remote.sql("SELECT up(id) FROM t LIMIT 10").collect()) == 10
    assert CALLS == {"up": 10}


def test_a_limit_within_a_query_is_applied_before_calls(spark, remote):
    found = remote.sql("SELECT sum(y) FROM (SELECT up(id) AS y FROM t LIMIT 10)")
    found.collect()
    assert CALLS == {"up": 10}


def test_an_insert_calls_for_the_rows_that_it_writes(spark, remote, tmp_path):
    spark.sql(f"CREATE TABLE written (y BIGINT) USING parquet LOCATION '{tmp_path}'")
    try:
        remote.sql("INSERT INTO written SELECT up(id) FROM t LIMIT 10")
        remote.sql("INSERT INTO written SELECT up(id) FROM t ORDER BY k, id LIMIT 10")
        assert CALLS == {"up": 20}
        assert spark.table("written").count() == 20
    finally:
        spark.sql("DROP TABLE written")


@pytest.mark.connect
@pytest.mark.parametrize(
    ("query", "calls"),
    [
        ("SELECT id, up(id) FROM t JOIN u ON id = few", 20),
        ("SELECT up(id) AS y FROM t WHERE k = 1 AND id < 20", 3),
        ("SELECT y FROM (SELECT id, up(id) AS y FROM t) WHERE id < 20", 20),
        # The call is an item of a subquery below the join, so Spark makes it before.
        ("SELECT y FROM (SELECT id, up(id) AS y FROM t) JOIN u ON id = few", ROWS),
    ],
)
def test_rows_that_a_join_or_a_condition_drops(spark, remote, query, calls):
    remote.sql(query).collect()
    assert {"up": calls} == CALLS


@pytest.mark.connect
def test_explain_tells_where_calls_are_limited(remote):
    shown = str(remote.explain("SELECT up(id) FROM t ORDER BY k, id LIMIT 10"))
    assert "1. LIMIT: up called after ORDER BY and LIMIT, for 10 rows at most, in one task\n2. up: " in shown
    assert "twice" not in shown
    assert "LIMIT: " not in str(remote.explain("SELECT up(id) FROM t LIMIT 10"))
