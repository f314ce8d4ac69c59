"""What `remote.explain` tells of the cost of calls: what the session has measured, and estimates without calls."""

import pytest

import udf_server as udf
from spark_client import PlanError, connect
from tests.counted_calls import CountedCalls
from udf_server import CallContext

CALLS = CountedCalls()


@udf.scalar(cost=lambda x: {"usd": 0.5})
async def priced(context: CallContext, x: int) -> int:
    CALLS.add("priced")
    context.spend(usd=0.25)
    return x


@udf.scalar
async def counting(context: CallContext, x: int) -> bool:
    CALLS.add("counting")
    context.spend(tokens=3)
    return x % 2 == 0


@udf.scalar(returns="struct<value bigint, confidence double>")
async def guess(x: int) -> dict:
    return {"value": x, "confidence": 1.0 if x % 2 else 0.0}


@pytest.fixture
def remote(spark, serve):
    CALLS.clear()
    spark.range(0, 100, 1, 2).selectExpr("id", "id % 10 AS k").createOrReplaceTempView("t")
    yield connect(spark, serve(priced, counting, guess).target)
    spark.catalog.dropTempView("t")


def lines_of(remote, query, **options):
    shown = str(remote.explain(query, **options)).partition("\n\n")[0]
    return [line.partition(". ")[2] for line in shown.splitlines()]


def test_explain_tells_what_calls_of_this_session_have_cost(spark, remote):
    assert not [line for line in lines_of(remote, "SELECT priced(id) FROM t") if "has cost" in line]
    remote.sql("SELECT priced(id) FROM t").collect()
    for shown in (
        lines_of(remote, "SELECT priced(id) + 1 FROM t"),
        lines_of(remote, remote.with_columns(spark.range(3), {"y": remote.function("priced")("id")})),
        lines_of(remote, spark.range(3).select(remote.function("priced")("id"))),
    ):
        (line,) = [line for line in shown if "has cost" in line]
        assert line.startswith("priced@1: a call has cost ")
        assert line.endswith(" s of its task, 0.25 usd, the mean of 100 in this session")


def test_an_estimate_has_a_line_per_call_and_a_total_and_calls_nothing(remote):
    found = lines_of(remote, "SELECT priced(k), counting(id + 1) FROM t WHERE id < 50", estimate=True)
    assert found[0] == (
        "estimate of priced(k): 50 rows, 50 calls: 25 usd; 10 of them different: 5 usd; "
        "time unknown, because this session has no measurement of it"
    )
    assert found[1].startswith("estimate of counting(id + 1): 50 rows, 50 calls: nothing; 50 of them different: ")
    assert found[2].startswith("estimate of all calls: 100 calls: 25 usd; ")
    assert not CALLS


def test_rows_that_a_budget_has_refused_do_not_make_calls_cheaper(spark, remote):
    bounded = connect(spark, remote.config.target, budget={"tokens": 30}, over_budget="on-error")
    calls = {"y": bounded.function("counting")("id")}
    assert bounded.with_columns(spark.table("t"), calls, on_error="null").where("y IS NULL").count() == 90
    (line, *_) = lines_of(bounded, "SELECT counting(id) FROM t", estimate=True)
    assert line.startswith("estimate of counting(id): 100 rows, 100 calls: 300 tokens; ")


def test_an_estimate_uses_what_was_measured_where_the_declaration_says_nothing(remote):
    remote.sql("SELECT priced(id) FROM t WHERE counting(id)").collect()
    CALLS.clear()
    first, second, total = lines_of(remote, "SELECT priced(id) FROM t WHERE counting(id) AND k = 3", estimate=True)[:3]
    counted, price = (first, second) if first.startswith("estimate of counting") else (second, first)
    assert counted.startswith("estimate of counting(id): 10 rows, 10 calls: 30 tokens; 10 of them different: ")
    assert price.startswith("estimate of priced(id): at most 10 rows, 10 calls: 5 usd; ")
    assert " s of tasks, " in total and " s with 2 tasks at once" in total
    assert total.startswith("estimate of all calls: 20 calls: 30 tokens, 5 usd; ")
    assert not CALLS


@pytest.mark.connect
def test_an_estimate_is_of_the_rows_that_are_left_by_a_limit_and_a_join(spark, remote):
    (line, *_) = [
        line for line in lines_of(remote, "SELECT priced(id) FROM t ORDER BY k LIMIT 7", estimate=True)
        if line.startswith("estimate of ")
    ]  # fmt: skip
    assert "7 rows, 7 calls: 3.5 usd" in line
    spark.range(5).createOrReplaceTempView("few")
    (line, *_) = lines_of(remote, "SELECT priced(t.id) FROM t JOIN few ON t.id = few.id", estimate=True)
    assert line.startswith("estimate of priced(t.id): 5 rows, 5 calls: 2.5 usd; ")
    spark.catalog.dropTempView("few")
    assert not CALLS


def test_what_has_no_estimate_says_why(spark, remote):
    inner, outer = sorted(lines_of(remote, "SELECT priced(priced(id)) FROM t", estimate=True)[:2])
    assert outer.startswith("estimate of priced(priced(id)): none, because an argument is the value of another call")
    assert inner.startswith("estimate of priced(id): 100 rows, ")
    spark.readStream.format("rate").load().createOrReplaceTempView("ticks")
    shown = lines_of(remote, "SELECT priced(value) FROM ticks", estimate=True)
    assert shown[0] == "estimate of priced(value): none, because the rows of a stream are not known"
    spark.catalog.dropTempView("ticks")
    with pytest.raises(PlanError, match="an estimate needs the text of a query"):
        remote.explain(spark.range(3), estimate=True)
    assert not CALLS


def test_explain_tells_the_threshold_of_a_cascade(spark, remote):
    sample = spark.range(0, 400)
    cascade = remote.cascade(remote.function("guess"), remote.function("priced"), target=0.9, sample=sample)
    told = "cascade: guess@1, and priced@1 for rows with a confidence below 0"
    cascade.register("which")
    for shown in (
        lines_of(remote, "SELECT which(id) FROM t"),
        lines_of(remote, spark.range(3).select(cascade("id"))),
    ):
        assert [line for line in shown if line.startswith(told)]
        assert sum("has cost" in line for line in shown) == 2
    (operator, *_) = lines_of(remote, remote.with_columns(spark.range(3), {"y": cascade("id")}))
    assert operator.startswith("1 operator of remote calls over whole rows (guess, priced below 0); ")


@pytest.mark.connect
def test_an_estimate_makes_no_call_to_get_its_rows(spark, remote):
    spark.range(5).select(remote.function("priced")("id").alias("p")).createOrReplaceTempView("called")
    for query in (
        "SELECT counting(p) FROM (SELECT priced(id) AS p FROM t)",
        "WITH c AS (SELECT priced(id) AS p FROM t) SELECT counting(p) FROM c",
        "SELECT counting(p) FROM called",
        "SELECT counting(id) FROM (SELECT id, priced(id) AS p FROM t) WHERE p > 3",
    ):
        (line,) = [line for line in lines_of(remote, query, estimate=True) if line.startswith("estimate of counting")]
        assert line.endswith(": none, because its rows need calls of priced, which would be made"), line
    operators = remote.with_columns(spark.range(5), {"p": remote.function("priced")("id")})
    for frame in (spark.table("called"), operators):
        with pytest.raises(PlanError, match=r"estimate of counting@1: its rows need calls of priced.*; store their"):
            remote.estimate(frame, remote.function("counting")("p"))
    assert not CALLS
    spark.catalog.dropTempView("called")


def test_rows_that_are_kept_or_need_no_call_have_an_estimate(spark, remote):
    called = spark.range(5).select("id", remote.function("priced")("id").alias("p")).persist()
    called.count()
    CALLS.clear()
    assert remote.estimate(called, remote.function("priced")("p")).calls == 5
    called.unpersist()
    frame = spark.range(5).select("id", remote.function("priced")("id").alias("p"))
    assert remote.estimate(frame, remote.function("priced")("id")).calls == 5
    query = "WITH c AS (SELECT id FROM t WHERE k = 3) SELECT priced(id) FROM c"
    assert lines_of(remote, query, estimate=True)[0].startswith("estimate of priced(id): 10 rows, 10 calls: 5 usd; ")
    assert not CALLS


def test_a_prediction_has_no_estimate_and_the_total_says_so(remote):
    query = "SELECT priced(k) FROM t UNION ALL SELECT priced FROM ML_PREDICT(TABLE t, MODEL priced, DESCRIPTOR(id))"
    lines = [line for line in lines_of(remote, query, estimate=True) if line.startswith("estimate of ")]
    assert lines[1].startswith("estimate of ML_PREDICT(TABLE")
    assert ": none, because the model is called for each row of its table; " in lines[1]
    assert lines[2].startswith("estimate of the calls that have one: 100 calls: 50 usd; ")
