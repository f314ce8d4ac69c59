"""Calls of one SELECT are one operator of Spark where that makes no further call: rows and calls are Spark's own."""

import pytest
from pyspark.errors import PythonException

import udf_server as udf
from tests.counted_calls import CountedCalls
from tests.properties import few_quickly
from tests.spark.ten_rows import ten_rows

CALLS = CountedCalls()


@udf.scalar
def plus(x: int) -> int:
    CALLS.add("plus")
    return x + 10


@udf.scalar
def half(x: int) -> int:
    CALLS.add("half")
    return x // 2


@udf.scalar(returns="struct<sum: bigint, words: array<string>>")
def pair(one: int, other: int = 7):
    CALLS.add("pair")
    return {"sum": one + other, "words": [str(one), str(other)]}


@udf.scalar(deterministic=False)
def dice(x: int) -> int:
    CALLS.add("dice")
    return x


@udf.scalar
def small(x: int) -> int:
    CALLS.add("small")
    if x > 5:
        raise ValueError(f"{x} is not small")
    return x


# Functions of other servers, because a name in Spark means one function.


@udf.scalar
def twice(x: int) -> int:
    return 2 * x


@udf.scalar(nulls="skip")
def less(x: int) -> int:
    if x > 5:
        raise ValueError(f"{x} is too large")
    return x - 1


@pytest.fixture(scope="module")
def functions(spark):
    with ten_rows(spark, plus, half, pair, dice, small) as remote:
        yield remote


def counted(run, query, **values):
    """Returns the columns, the rows and the calls."""
    CALLS.clear()
    frame = run(query, **values)
    rows = [tuple(row) for row in frame.collect()]
    schema = [(field.name, field.dataType) for field in frame.schema]
    return schema, rows if "ORDER BY" in query else sorted(rows, key=repr), dict(CALLS)


def operators(functions, query):
    """Returns how many operators evaluate Python functions."""
    return functions.explain(query).count("EvalPython [")


FUSED = [
    "SELECT plus(k), half(v) FROM ten",
    "SELECT k, plus(k) AS p, *, half(plus(k)), plus(K) + 1, pair(half(v), 1).sum AS s FROM ten AS q WHERE v > 0",
    "SELECT CAST(plus(s.a) AS STRING) AS t, -half(k + 1), pair(q.k).words[0], pair(v) FROM ten q",
    "SELECT plus(a.k), half(b.v) FROM ten a JOIN ten b ON a.k = b.k + 1 WHERE a.v > 0",
    "SELECT DISTINCT plus(v) AS x, half(v) AS y FROM ten",
    "SELECT plus(k) AS x, half(k) AS y FROM ten UNION SELECT half(k), plus(v) FROM ten",
    "SELECT plus(k) AS k, half(k) AS h FROM ten",
    "WITH t AS (SELECT k + 1 AS k FROM ten) (SELECT plus(k), half(k) FROM t ORDER BY k LIMIT 3)",
    "SELECT k FROM ten WHERE plus(k) <> half(k) AND v > 0",
    "SELECT max(x), sum(double(y)) FROM (SELECT plus(k) AS x, half(k) AS y, v FROM ten) AS t",
    "SELECT x, sum(T.y) FROM (SELECT x, y FROM (SELECT plus(v) AS x, half(k) AS y FROM ten) AS t) AS t GROUP BY x",
    "SELECT u.k FROM (SELECT * FROM ten WHERE plus(k) - half(k) > 12) AS u WHERE u.v > 0",
]


@pytest.mark.parametrize("query", few_quickly(6, FUSED))
def test_calls_of_one_select_are_one_operator_for_each_query(functions, query):
    schema, rows, calls = counted(functions.sql, query)
    assert (schema, rows) == counted(functions.spark.sql, query)[:2]
    more = counted(functions.spark.sql, query)[2]
    assert calls.keys() == more.keys() and all(calls[name] <= more[name] for name in calls)
    # Calls after a LIMIT are operators of their own.
    assert operators(functions, query) == (2 if "UNION" in query or "LIMIT" in query else 1)


NOT_FUSED = [
    "SELECT x, coalesce(1, y) AS y FROM (SELECT plus(k) AS x, small(k) AS y FROM ten) AS t",
    "SELECT x, sum(y) FROM (SELECT plus(k) AS x, half(k) AS y FROM ten) AS t GROUP BY x HAVING x > 12",
    "SELECT x FROM (SELECT plus(k) AS x, half(k) AS y FROM ten) AS t",
    "SELECT x, y FROM (SELECT plus(k) AS x, half(k) AS y FROM ten) AS t WHERE x > 15",
    "WITH t AS (SELECT plus(k) AS x, small(k) AS y FROM ten) SELECT x FROM t",
    "SELECT k FROM ten WHERE plus(k) > 16 AND half(k) < 4 AND v > 0",
    "SELECT k FROM ten WHERE k < 5 AND plus(k) < 20 AND small(k) > 0",
    "SELECT plus(k), CASE WHEN 1 = 2 THEN small(k) END AS c FROM ten",
    "SELECT plus(k), small(k) + NULL AS c FROM ten",
    "SELECT plus(k), small(k) = n AS c FROM (SELECT k, CAST(NULL AS BIGINT) AS n FROM ten)",
    "SELECT plus(k), coalesce(1, small(k)) AS c FROM ten",
    "SELECT plus(k), IF(true, 1, small(k)) AS c, false AND small(k) > 1 AS d FROM ten",
    "SELECT plus(k), half(CAST(rand(3) * 0 AS BIGINT)) AS r FROM ten",
    "SELECT plus(k), dice(k), dice(k) AS again FROM ten",
    "SELECT plus(k) AS p, half(p) AS h, plus(v) AS q FROM ten",
    "SELECT plus(k), half(k), count(*) OVER (PARTITION BY half(k)) AS n FROM ten",
    "SELECT plus(k), half(v), explode(array(k)) AS e FROM ten",
    "SELECT plus(v), half(v), count(*) FROM ten GROUP BY plus(v), half(v)",
    "SELECT k FROM ten o WHERE EXISTS (SELECT 1 FROM ten i WHERE plus(i.k) = plus(o.k + 1))",
]


@pytest.mark.parametrize("query", NOT_FUSED)
def test_calls_that_would_be_made_in_addition_are_left_to_spark(functions, query):
    assert counted(functions.sql, query) == counted(functions.spark.sql, query)


@pytest.mark.connect
def test_parameters_fields_and_options_hold_in_fused_calls(spark, remote):
    functions = remote(twice, less)
    query = "SELECT twice(k + :n) AS x, less(CAST(:n AS BIGINT)), {least} AS least FROM {rows}"
    rows = spark.range(2).toDF("k")
    assert [tuple(row) for row in functions.sql(query, args={"n": 4}, rows=rows, least=3).collect()] == [
        (8, 3, 3), (10, 3, 3),
    ]  # fmt: skip
    functions.register("less", on_error="null")
    query = "SELECT twice(id), less(id), less(less(id)) FROM range(5, 7)"
    assert sorted(map(tuple, functions.sql(query).collect())) == [(10, 4, 3), (12, None, None)]
    assert functions.explain(query).count("EvalPython [") == 1


def test_an_error_names_its_function_and_arguments(functions):
    with pytest.raises(PythonException, match=r"6 is not small"):
        functions.sql("SELECT plus(k), half(small(k)) FROM ten").collect()


def test_explain_lists_the_functions_of_one_operator(functions):
    lines = functions.explain("SELECT plus(k), half(plus(k)), half(v) FROM ten WHERE v > 0").splitlines()
    assert lines[0].startswith("1. plus: a scalar function on the server, 1 call per row for 2 in the text, ")
    assert "in one operator with half; output ordered" in lines[0] and "run before it: ((id % 3) > 0)" in lines[0]
    assert "half: a scalar function on the server, 2 calls per row, in one operator with plus" in lines[1]
    of_frame = functions.explain(functions.sql("SELECT plus(k), half(v) FROM ten"))
    assert "plus: a scalar function on the server, 1 call per row, in one operator with half" in of_frame


def test_a_view_makes_only_the_calls_that_are_read(functions, spark):
    functions.sql("CREATE OR REPLACE TEMP VIEW called AS SELECT plus(k) AS x, small(k) AS y FROM ten")
    assert counted(functions.sql, "SELECT x FROM called")[2] == {"plus": 10}
    spark.catalog.dropTempView("called")


def test_arguments_of_an_aggregate_are_one_operator(remote, spark):
    from tests.spark_client.executor.aggregate.world import ALL
    from udf_server.aggregate.declaration import declare_aggregate

    functions = remote(twice, less, *map(declare_aggregate, ALL))
    query = "SELECT total(twice(id)), total(less(id)) FROM range(4)"
    assert operators(functions, query) == 1
    assert functions.sql(query).collect() == [((12, 4), (2, 4))]


def test_equal_shapes_share_a_registered_function(functions, spark):
    def names():
        # With a pattern: Spark cannot list a temporary function such as f@1, which `register` in other tests makes.
        return {each.name for each in spark.catalog.listFunctions(pattern="*fused*")}

    functions.sql("SELECT plus(k), half(v) FROM ten")
    before = names()
    assert before
    functions.sql("SELECT plus(v) AS a, half(k) AS b FROM ten WHERE k > 3")
    assert names() == before
