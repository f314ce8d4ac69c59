"""A call in several clauses of a SELECT is made once per row: the calls are counted, the rows are Spark's own."""

import pytest

import udf_server as udf
from spark_client import connect
from spark_client.sql.fewer_calls.joined_calls import DerivedCalls
from tests.conftest import serving
from tests.spark.ten_rows import ten_rows

CALLS: list[int] = []


@udf.scalar
def seen(x: int) -> int:
    CALLS.append(x)
    return x + 10


@udf.scalar
def half(x: int) -> int:
    CALLS.append(x)
    return x // 2


@udf.scalar(nulls="skip")
def known(x: int) -> int:
    CALLS.append(x)
    return x


@udf.scalar(returns="struct<a bigint, b bigint>")
def pair(x: int) -> dict:
    CALLS.append(x)
    return {"a": x, "b": 2 * x}


@udf.scalar(deterministic=False)
def dice(x: int) -> int:
    CALLS.append(x)
    return x


@pytest.fixture(scope="module")
def functions(spark):
    with ten_rows(spark, seen, half, known, pair, dice) as remote:
        yield remote


def counted(run, query, **values):
    CALLS.clear()
    frame = run(query, **values)
    rows = [tuple(row) for row in frame.collect()]
    return frame.columns, rows if "ORDER BY" in query else sorted(rows, key=repr), len(CALLS)


@pytest.mark.parametrize(
    ("query", "calls"),
    [
        ("SELECT seen(k) FROM ten WHERE seen(k) > 12 AND v > 0", 6),
        ("SELECT seen(k) + 1, * FROM ten AS q WHERE SEEN(q.k) > 12 AND q.v > 0", 6),
        ("SELECT q.*, seen(k) AS k2, count(*) OVER () FROM ten q WHERE v > 0 AND (seen(k) > 12 OR v = 1)", 6),
        ("SELECT s.*, seen(s.a) FROM ten WHERE seen(s.a) > 12", 10),
        ("SELECT seen(k), count(*) FROM ten GROUP BY seen(k) HAVING seen(k) > 12 AND count(*) > 0", 10),
        ("SELECT seen(k) AS x, count(*) FROM ten WHERE seen(k) > 12 GROUP BY x ORDER BY x LIMIT 2", 10),
        ("SELECT seen(half(k)) FROM ten WHERE half(k) > 1 AND seen(half(k)) > 3 AND v > 0", 6 + 4),
        ("SELECT k, seen(k) FROM ten WHERE seen(k) > 12 AND EXISTS (SELECT 1 FROM range(5) r WHERE r.id = ten.k)", 5),
        ("WITH ten AS (SELECT k, seen(k) AS x FROM ten WHERE seen(k) > 12) SELECT x FROM ten", 10),
        ("SELECT CASE WHEN seen(id) > 12 THEN 1 END FROM range(5) WHERE seen(id) IN (SELECT k + 10 FROM ten)", 5),
        ("SELECT count(*), sum(seen(k)) FROM ten WHERE seen(k) > 12 GROUP BY ALL", 10),
        ("SELECT pair(k).a, pair(k).b + 1 FROM ten WHERE pair(k).a > 1 AND v > 0", 6),
    ],
)
def test_a_call_in_several_clauses_is_made_once_per_row(functions, query, calls):
    *mine, made = counted(functions.sql, query)
    *sparks, more = counted(functions.spark.sql, query)
    assert mine == sparks
    assert made == calls < more


@pytest.mark.parametrize(
    "query",
    [
        "SELECT seen(k) AS k FROM ten WHERE v = 1 ORDER BY seen(k)",
        "SELECT id FROM range(3) r WHERE 12 IN (SELECT seen(k) FROM ten WHERE seen(k) > 11 AND ten.k <= r.id + 1)",
        "SELECT dice(k) FROM ten WHERE dice(k) > 3",
        "SELECT seen(z) FROM ten LATERAL VIEW explode(array(k)) AS z WHERE seen(z) > 12",
        "SELECT seen(k) FROM ten |> SELECT `seen(k)` AS x |> WHERE seen(x) > 25",
    ],
)
def test_what_cannot_be_done_is_as_without(functions, query):
    """Another meaning of the name, a correlated subquery, calls that are never equal."""
    assert counted(functions.sql, query) == counted(functions.spark.sql, query)


def test_a_join_whose_equality_is_spark_own_is_as_without_and_warns(functions):
    query = "SELECT seen(a.k) FROM ten a JOIN ten b USING (k) WHERE seen(a.k) > 12"
    with pytest.warns(DerivedCalls, match="a condition with seen on both sides of a join"):
        found = counted(functions.sql, query)
    assert found == counted(functions.spark.sql, query)


def test_a_branch_keeps_rows_from_a_function_that_skips_nulls(functions):
    query = "SELECT k, CASE WHEN v > 0 THEN {} END AS x FROM ten"
    *guarded, few = counted(functions.sql, query.format("known(CASE WHEN v > 0 THEN k END)"))
    *called, all_rows = counted(functions.sql, query.format("known(k)"))
    assert guarded == called and (few, all_rows) == (6, 10)


@pytest.mark.connect
def test_parameters_fields_and_statements_are_rewritten_as_well(functions, spark):
    query = "SELECT seen(k) AS x FROM {rows} WHERE seen(k) > {least} AND v > :v"
    assert counted(functions.sql, query, args={"v": 0}, rows=spark.table("ten"), least=12)[1:] == (
        [(14,), (15,), (17,), (18,)], 6,
    )  # fmt: skip
    functions.sql("CREATE TEMP VIEW some AS SELECT seen(k) AS x FROM ten WHERE seen(k) > 12 AND v > 0")
    assert counted(spark.sql, "SELECT * FROM some")[2] == 6
    spark.catalog.dropTempView("some")


def test_a_call_keeps_the_options_of_its_registration(spark):
    @udf.scalar
    def fails(x: int) -> int:
        raise ValueError("no")

    with serving(fails) as server:
        remote = connect(spark, server.target)
        remote.register("fails", on_error="null")
        query = "SELECT id, fails(id) AS x FROM range(2) WHERE fails(id) IS NULL"
        assert [tuple(row) for row in remote.sql(query).collect()] == [(0, None), (1, None)]
        assert "1 call per row for 2" in remote.explain(query)
