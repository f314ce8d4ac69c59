"""The output of `RemoteSession.explain`."""

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError


@udf.scalar
async def plus_ten(x: int) -> int:
    return x + 10


@pytest.fixture
def functions(spark, remote):
    spark.range(9).selectExpr("id AS k", "id % 3 AS v").createOrReplaceTempView("nine")
    yield remote(plus_ten)
    spark.catalog.dropTempView("nine")


@pytest.fixture
def windows(spark, tmp_path):
    """Creates a stream of windows, `w`, and one that is joined to it."""
    for name in ("w", "w2"):
        source = spark.readStream.schema("k string, v bigint, at timestamp").csv(str(tmp_path))
        source.withWatermark("at", "1 second").createOrReplaceTempView(f"{name}_rows")
    yield lambda name: f"TABLE(TUMBLE(TABLE {name}_rows, DESCRIPTOR(at), INTERVAL '10' SECOND))"
    spark.catalog.dropTempView("w_rows")
    spark.catalog.dropTempView("w2_rows")


def stages(functions, query):
    """Returns the lines before Spark's plan."""
    return functions.explain(query).partition("\n\n")[0].splitlines()


@pytest.mark.connect
def test_equal_calls_are_made_once_and_conditions_without_calls_run_before(functions):
    (line,) = stages(functions, "SELECT plus_ten(k), plus_ten(k) + 1 FROM nine WHERE v > 1 AND k < 7")
    assert line.startswith("1. plus_ten: a scalar function on the server, 1 call per row for 2 in the text")
    assert "output ordered" in line
    assert "run before it: (((id % 3) > 1) AND (id < 7))" in line


def test_a_call_in_where_and_select_is_made_once_after_the_other_conditions(functions):
    (line,) = stages(functions, "SELECT plus_ten(k) FROM nine WHERE plus_ten(k) > 12 AND v > 1")
    assert "1 call per row for 2 in the text" in line
    assert "run before it: ((id % 3) > 1)" in line


@pytest.mark.parametrize("where", ["plus_ten(k)", "k"])
def test_calls_below_a_sort_of_a_table_are_made_twice_and_explain_says_so(spark, remote, where):
    called = []

    @udf.scalar(name="plus_ten", deterministic=False)
    async def counted(x: int) -> int:
        called.append(x)
        return x + 10

    session = remote(counted)
    spark.range(0, 6, 1, 2).selectExpr("id AS k").createOrReplaceTempView("six")
    try:
        query = f"SELECT k, plus_ten(k) AS x FROM six ORDER BY {where.replace('plus_ten(k)', 'x')}"
        session.sql(query).collect()
        assert sorted(called) == sorted([*range(6), *range(6)])
        assert stages(session, query)[1].startswith("2. ORDER BY: Spark makes the calls below it twice")
        assert "ORDER BY" not in session.explain("SELECT plus_ten(k) FROM six SORT BY k").partition("\n\n")[0]
    finally:
        spark.catalog.dropTempView("six")


def test_a_call_beside_a_join_is_listed_as_often_as_spark_makes_it(functions):
    query = "SELECT plus_ten(a.k) FROM nine a JOIN nine b USING (v) WHERE plus_ten(a.k) > 12"
    (line,) = stages(functions, query)
    assert "2 calls per row" in line


def test_a_statement_is_explained_by_its_query_and_not_run(functions, spark):
    lines = stages(functions, "CREATE TABLE never AS SELECT plus_ten(k) AS x FROM nine")
    assert "1 call per row" in lines[0]
    assert not spark.catalog.tableExists("never")
    with pytest.raises(PlanError, match="INSERT without a query"):
        functions.explain("INSERT INTO never")
    with pytest.raises(PlanError, match="FROM without a query has no plan"):
        functions.explain("FROM nine INSERT INTO never SELECT plus_ten(k) INSERT INTO never SELECT plus_ten(v)")
    with pytest.raises(PlanError, match="DROP without a query has no plan"):
        functions.explain("DROP VIEW nine")
    assert "1 call per row" in stages(functions, "WITH n AS (FROM nine) INSERT INTO never SELECT plus_ten(k) FROM n")[0]
    assert spark.catalog.tableExists("nine")


RANKED = "SELECT * FROM (SELECT *, ROW_NUMBER() OVER ({window}) AS n FROM {w}) WHERE {condition}"
BY = "PARTITION BY window_start, window_end"


@pytest.mark.parametrize(
    ("window", "condition", "told"),
    [
        (f"{BY} ORDER BY v", "n <= 2", "window top-N of a stream: ROW_NUMBER from 1 to 2"),
        (f"{BY} ORDER BY v", "n <= v", "no window top-N of a stream: WHERE keeps no ranks up to a constant"),
        ("PARTITION BY window_start ORDER BY v", "n = 1", "PARTITION BY lacks window_end"),
        (f"{BY} ORDER BY v NULLS LAST", "n = 1", "NULLS FIRST or NULLS LAST differs from Spark's default"),
    ],
)
def test_a_missed_window_top_n_says_why(functions, windows, window, condition, told):
    query = RANKED.format(window=window, condition=condition, w=windows("w"))
    assert any(told in line for line in stages(functions, query))


@pytest.mark.parametrize(
    ("condition", "told"),
    [
        (
            "ON a.window_start = b.window_start AND a.window_end = b.window_end AND a.k = b.k",
            "window join of streams: a and b",
        ),
        (
            "ON a.window_start = b.window_start AND a.k = b.k",
            "no window join of streams: ON must have equality of window_start and of window_end",
        ),
        ("USING (window_start, window_end)", "no window join of streams: it has USING"),
    ],
)
def test_a_missed_window_join_says_why(functions, windows, condition, told):
    query = f"SELECT a.v AS one, b.v AS other FROM {windows('w')} a JOIN {windows('w2')} b {condition}"
    assert any(told in line for line in stages(functions, query))


@pytest.mark.connect
def test_a_dataframe_is_explained_like_a_text(functions, spark):
    plus_ten = functions.function("plus_ten")
    column = functions.explain(spark.range(9).select(plus_ten("id"), plus_ten("id") + 1))
    assert column.startswith("1. plus_ten: a scalar function on the server, 1 call per row; output ordered")
    assert "== Physical Plan ==" in column
    many = functions.explain(spark.range(9).select(*(plus_ten(F.col("id") + number) for number in range(9))))
    assert many.startswith(
        "1. 9 operators of Spark make calls, each with Python workers of its own; write remote.select"
    )
    rows = functions.explain(functions.with_columns(spark.range(9), {"y": plus_ten("id")}))
    assert rows.startswith("1. 1 operator of remote calls over whole rows (plus_ten); ")
    assert functions.explain(spark.range(9)).startswith("1. all of it is left to Spark")
