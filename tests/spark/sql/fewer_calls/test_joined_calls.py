"""A condition with a remote call over a join calls for the rows of one side, as often as the text says."""

import pytest

import udf_server as udf
from spark_client import connect
from spark_client.sql.fewer_calls.joined_calls import DerivedCalls


@udf.scalar
async def g(x: int) -> int:
    return x


@pytest.fixture
def world(spark, serve, tmp_path):
    """Two tables of twelve rows, whose keys may be null, and a counter of calls of `g` since its last reading."""
    server = serve(g)
    remote = connect(spark, server.target)
    for name, key in (("joined_a", "a"), ("joined_b", "b")):
        spark.range(12).selectExpr(f"id AS {key}", "id % 3 AS v").write.parquet(str(tmp_path / name))
        spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
        spark.range(12).selectExpr(f"id AS {key}").createOrReplaceTempView(f"{name}_not_null")

    def calls():
        return server.metric("udf_rows_total", function="g", version="1", outcome="ok")

    def counted(query):
        before = calls()
        rows = sorted((tuple(row) for row in remote.sql(query).collect()), key=repr)
        return rows, calls() - before

    return counted


@pytest.mark.parametrize(
    ("query", "rows", "needed"),
    [
        ("SELECT a FROM joined_a JOIN joined_b ON a = b WHERE g(a) > 8", [9, 10, 11], 12),
        ("SELECT a FROM joined_a JOIN joined_b ON a = b AND g(a) > 8", [9, 10, 11], 12),
        ("SELECT a FROM joined_a, joined_b WHERE a = b AND 8 < g(b) AND joined_a.v = 0", [9], 12),
        ("SELECT a FROM joined_a LEFT JOIN joined_b ON a = b WHERE g(a) > 8", [9, 10, 11], 12),
        (
            "SELECT x.a FROM joined_a x JOIN joined_b y ON x.a = y.b JOIN joined_a z ON y.b = z.a WHERE g(x.a) > 8",
            None,
            12,
        ),
        ("SELECT a FROM joined_a_not_null JOIN joined_b_not_null ON a = b WHERE g(a) > 8", [9, 10, 11], 12),
        ("SELECT n FROM (SELECT count(*) AS n FROM joined_a JOIN joined_b ON a = b WHERE g(a) > 8)", [3], 12),
    ],
)
def test_each_needed_call_is_made_once(world, query, rows, needed):
    found, calls = world(query)
    assert found == sorted(((row,) for row in (rows or [9, 10, 11])), key=repr)
    assert calls == needed


def test_conditions_that_spark_derives_without_a_call_stay_and_a_warning_says_what_is_called_twice(world):
    query = "SELECT a FROM joined_a JOIN joined_b ON a = b WHERE g(a) > 1 AND b < 4"
    with pytest.warns(DerivedCalls, match="condition with g on both sides of a join: 2 calls in the plan for 1"):
        rows, calls = world(query)
    assert rows == [(2,), (3,)]
    assert calls == 8


def test_what_an_equality_does_with_nulls_stays(spark, world):
    for name, key in (("joined_a", "n"), ("joined_b", "m")):
        spark.sql(f"SELECT nullif(v, 0) AS {key} FROM {name} WHERE v < 2").createOrReplaceTempView(f"{name}_nulls")
    assert world("SELECT n, m FROM joined_a_nulls JOIN joined_b_nulls ON n = m WHERE g(n) > 0")[0] == [(1, 1)] * 16


def test_statements_that_write_are_planned_before_they_run(spark, world, tmp_path):
    world(
        f"INSERT OVERWRITE DIRECTORY '{tmp_path / 'out'}' USING parquet "
        "SELECT a FROM joined_a JOIN joined_b ON a = b WHERE g(a) > 8"
    )
    assert sorted(row.a for row in spark.read.parquet(str(tmp_path / "out")).collect()) == [9, 10, 11]
