"""Estimates of calls over real frames: rows, different calls and amounts, before anything is called."""

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, Window, connect
from tests.udf_server.aggregate_functions import CountAll
from udf_server.aggregate.declaration import declare_aggregate

CALLED = []


@udf.scalar(nulls="skip", cost=lambda text, again="": {"tokens": len(text) + len(again), "usd": 0.25})
async def ask(text: str, again: str = "") -> str:
    CALLED.append(text)
    return text


@pytest.fixture
def remote(serve, spark):
    return connect(spark, serve(ask).target)


@pytest.mark.connect
def test_an_estimate_counts_calls_and_different_calls(spark, remote):
    frame = spark.createDataFrame([("ab",), ("ab",), ("abcd",), (None,)], "prompt string")
    found = remote.estimate(frame, remote.function("ask", on_error="null")("prompt").alias("answer"))
    assert (found.function, found.rows, found.calls, found.distinct_calls) == ("ask@1", 4, 3, 2)
    assert dict(found.amounts) == {"tokens": 6, "usd": 0.5}
    assert dict(found.amounts_without_cache) == {"tokens": 8, "usd": 0.75}
    assert str(found) == (
        "ask@1: 4 rows, 3 calls, 2 of them different\n"
        "  each different call once, as with a cache: 6 tokens, 0.5 usd\n"
        "  all calls, as without a cache: 8 tokens, 0.75 usd\n"
    )
    assert CALLED == []


@pytest.mark.connect
def test_an_estimate_of_no_rows_is_nothing(spark, remote):
    found = remote.estimate(spark.range(0), remote.function("ask")(F.col("id").cast("string")))
    assert (found.rows, found.calls, found.distinct_calls, dict(found.amounts)) == (0, 0, 0, {})
    assert "nothing" in str(found)


@pytest.mark.connect
def test_an_estimate_of_several_calls_has_their_sums_and_that_of_each(spark, remote):
    ask = remote.function("ask")
    frame = spark.createDataFrame([("ab", "x"), ("ab", "y")], "prompt string, again string")
    found = remote.estimate(frame, ask("prompt"), ask("prompt", "again").alias("b"))
    first, second = found.parts
    assert (first.distinct_calls, second.distinct_calls) == (1, 2)
    assert (found.function, found.rows, found.calls, found.distinct_calls) == ("ask@1", 2, 4, 3)
    assert dict(found.amounts) == {"tokens": 8, "usd": 0.75}
    assert dict(found.amounts_without_cache) == {"tokens": 10, "usd": 1.0}
    assert str(found).startswith(f"{first}{second}2 calls of each row: 2 rows, 4 calls, 3 of them different\n")
    assert CALLED == []


def test_functions_over_many_rows_have_no_estimate_and_the_message_says_why(spark, serve):
    remote = connect(spark, serve(ask, declare_aggregate(CountAll)).target)
    frame, counted = spark.range(2), remote.function("count_all")()
    for call in (counted, counted.over(Window.partitionBy("id"))):
        with pytest.raises(
            PlanError, match="estimate of the aggregate function count_all@1: none, because it is called"
        ):
            remote.estimate(frame, call)
    with pytest.raises(PlanError, match="of a process table function have no estimate"):
        remote.estimate(frame, frame)
    with pytest.raises(PlanError, match="estimate takes a frame and a call"):
        remote.estimate(frame)
    lines = str(remote.explain("SELECT count_all(), count(ask('x')) FROM range(3)", estimate=True))
    assert "estimate of count_all: none, because it is called for bundles" in lines


def test_what_has_no_estimate_is_refused_when_planned(spark, remote):
    call = remote.function("ask")
    frame = spark.range(1).selectExpr("cast(id AS string) AS prompt")
    with pytest.raises(PlanError, match="a call of a remote scalar function"):
        remote.estimate(frame, frame.prompt)
    with pytest.raises(PlanError, match="an argument is a remote call, which would be made"):
        remote.estimate(frame, call(call("prompt")))
    with pytest.raises(PlanError, match="the frame is a stream"):
        remote.estimate(spark.readStream.format("rate").load(), call("value"))
    assert CALLED == []
