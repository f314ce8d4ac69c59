"""Items of subqueries that nothing reads: they are not computed, and their remote calls are not made."""

import pytest
from pyspark.errors import AnalysisException

import udf_server as udf
from spark_client import PlanError
from udf_server.aggregate.declaration import declare_aggregate


class Total(udf.AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0]

    def accumulate(self, accumulator: list[int], x: int) -> None:
        accumulator[0] += x

    def get_value(self, accumulator: list[int]) -> int:
        return accumulator[0]


@pytest.fixture
def calls():
    return []


@pytest.fixture
def session(remote, calls):
    @udf.scalar
    async def paid(x: int) -> int:
        calls.append(x)
        return x

    found = remote(paid, declare_aggregate(Total))
    found.register()
    return found


@pytest.mark.parametrize(
    "text",
    [
        "WITH w AS (SELECT id, paid(id) AS p, total(id) OVER (ORDER BY id) AS t FROM range(3)) SELECT t FROM w",
        "SELECT w.t FROM (SELECT paid(id) AS p, total(id) OVER (ORDER BY id) AS t FROM range(3)) AS w",
        "SELECT t FROM (SELECT p, t FROM (SELECT paid(id) AS p, total(id) OVER (ORDER BY id) AS t FROM range(3)))",
        "SELECT t FROM (SELECT total(p) OVER () AS o, t FROM "
        "(SELECT paid(id) AS p, total(id) OVER (ORDER BY id) AS t FROM range(3)))",
    ],
)
def test_calls_that_nothing_reads_are_not_made(session, calls, text):
    assert sorted(row.t for row in session.sql(text).collect()) == [0, 1, 3]
    assert calls == []


def test_windows_stay_that_qualify_needs(session):
    text = """
        SELECT id FROM (SELECT id, total(id) OVER (ORDER BY id) AS t, sum(id) OVER (ORDER BY id) AS s FROM range(3)
        QUALIFY id > 1)"""
    assert [row.id for row in session.sql(text).collect()] == [2]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT * FROM ({})", [(0, 0, 0), (1, 1, 1), (2, 2, 3)]),
        ("SELECT w.* FROM ({}) AS w", [(0, 0, 0), (1, 1, 1), (2, 2, 3)]),
        ("SELECT struct(w.*).p FROM ({}) AS w", [(0,), (1,), (2,)]),
        ("SELECT a + c FROM ({}) AS w(a, b, c)", [(0,), (2,), (5,)]),
        ("SELECT t FROM ({}) WHERE p > 1", [(3,)]),
        ("SELECT t FROM ({}) JOIN (SELECT 2L AS p) USING (p)", [(3,)]),
        ("SELECT t FROM ({}) NATURAL JOIN (SELECT 2L AS p)", [(3,)]),
        ("SELECT t FROM ({}) ORDER BY P DESC LIMIT 1", [(3,)]),
    ],
)
def test_what_is_read_in_any_way_is_there(session, text, rows):
    inner = "SELECT id, paid(id) AS p, total(id) OVER (ORDER BY id) AS t FROM range(3)"
    assert sorted(tuple(row) for row in session.sql(text.format(inner)).collect()) == rows


@pytest.mark.parametrize(
    ("inner", "rows"),
    [
        ("SELECT 1 AS one, total(id) AS t FROM range(3)", 1),
        ("SELECT DISTINCT id % 2 AS k, total(id) OVER () AS t, 1 AS one FROM range(4)", 2),
        ("SELECT explode(array(id, id)) AS k, total(id) OVER () AS t, 1 AS one FROM range(2)", 4),
        ("SELECT id % 2 AS k, 1 AS one, total(id) AS t FROM range(4) GROUP BY 1", 2),
        ("SELECT id AS k, 1 AS one, total(id) AS t FROM range(4) GROUP BY ALL", 4),
        ("SELECT id % 2 AS k, 1 AS one, total(id) AS t FROM range(4) GROUP BY k", 2),
    ],
)
def test_the_number_of_rows_stays(session, inner, rows):
    assert session.sql(f"SELECT one FROM ({inner})").count() == rows


@pytest.mark.parametrize(
    "inner",
    [
        "SELECT nope AS n, total(id) OVER () AS t FROM range(3)",
        "SELECT nope AS n, t FROM (SELECT total(id) OVER () AS t FROM range(3))",
    ],
)
def test_an_error_in_what_nothing_reads_is_an_error(session, inner):
    with pytest.raises((AnalysisException, PlanError), match="nope"):
        session.sql(f"SELECT t FROM ({inner})")


def test_an_expression_that_nothing_reads_cannot_fail(session, spark):
    text = "SELECT t FROM (SELECT 1 div id AS n, total(id) OVER (PARTITION BY id) AS t FROM range(2))"
    spark.conf.set("spark.sql.ansi.enabled", "true")
    assert sorted(row.t for row in session.sql(text).collect()) == [0, 1]
