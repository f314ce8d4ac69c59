"""Budgets of a remote session over the tasks of real Spark jobs."""

import asyncio

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from remote_udf.errors import InvalidOption
from spark_client import connect


@udf.scalar
async def ask(x: int, context: udf.CallContext) -> int:
    await asyncio.sleep(0.001)
    context.spend(usd=0.5)
    return x


@udf.scalar
def fails(x: int) -> int:
    raise ValueError("always")


@pytest.mark.connect
def test_tasks_of_a_session_spend_one_budget_and_the_rest_follows_the_policy(serve, spark):
    serving = serve(ask)
    remote = connect(spark, serving.target, budget={"calls": 300, "usd": 1_000}, over_budget="on-error")
    call = remote.function("ask")("id")
    frame = spark.range(0, 200, 1, 4)
    first = remote.with_columns(frame, {"y": call}, on_error="null").where("y is not null").count()
    second = remote.with_columns(frame, {"y": call}, on_error="column")
    codes = {row["code"]: row["count"] for row in second.groupBy(F.col("y_error.code").alias("code")).count().collect()}
    assert first == 200
    assert codes == {None: 100, "BUDGET_SPENT": 100}
    assert serving.metric("udf_spent_total", function="ask", version="1", caller="", unit="usd") == 150


@pytest.mark.connect
def test_a_job_fails_at_the_cap_of_its_session(serve, spark):
    remote = connect(spark, serve(ask).target, budget={"usd": 10})
    frame = spark.range(0, 100, 1, 2)
    with pytest.raises(Exception, match="BudgetExceeded: function ask@1: the budget of this job is spent: 10 "):
        frame.select(remote.function("ask")("id")).collect()
    remote.register("ask")
    with pytest.raises(Exception, match="the budget of this job is spent: 10 of 10 usd"):
        remote.sql("SELECT ask(id) FROM range(10)").collect()
    assert connect(spark, remote.config.target, budget={"usd": 10}).sql("SELECT ask(1)").count() == 1


@pytest.mark.connect
def test_a_server_that_was_restarted_keeps_no_budget_for_tasks_in_new_processes(serve, spark):
    serving = serve(ask)
    remote = connect(spark, serving.target, budget={"calls": 100})
    serving.stop()
    again = serve(ask, port=int(serving.target.rsplit(":")[-1]))
    with pytest.raises(Exception, match=r"BudgetNotKept: .* or this one has restarted"):
        spark.range(10).select(remote.function("ask")("id")).collect()
    assert again.metric("udf_calls_total", function="ask", version="1") == 0
    assert len(connect(spark, again.target, budget={"calls": 100}).sql("SELECT ask(1)").collect()) == 1


def test_a_job_whose_rows_fail_too_often_fails_over_all_tasks(serve, spark):
    remote = connect(spark, serve(fails).target, budget={"errors": 500})
    frame = spark.range(0, 4_000, 1, 8)
    calls = {"y": remote.function("fails", buffer_capacity=10)("id")}
    with pytest.raises(Exception, match="rows of this job have failed; its budget allows 500"):
        remote.with_columns(frame, calls, on_error="null").collect()


def test_a_summary_compares_a_budget_with_what_was_spent(serve, spark):
    remote = connect(spark, serve(ask).target, budget={"calls": 1_000, "usd": 40, "tokens": 5, "errors": "1 %"})
    with remote.summary() as summary:
        spark.range(0, 20, 1, 2).select(remote.function("ask")("id")).collect()
    lines = summary.text().splitlines()
    spent = "20 of 1,000 calls, 10 of 40 usd, 0 of 5 tokens, 0 of 1 % errors"
    assert f"budget of the session: these tasks have spent {spent}" in lines
    assert any("warning: no call has reported 'tokens' (reported: usd)" in line for line in lines)


def test_a_summary_counts_as_errors_what_the_budget_counts(serve, spark):
    remote = connect(spark, serve(fails).target, budget={"errors": 5}, over_budget="on-error")
    calls = {"y": remote.function("fails", buffer_capacity=1)("id")}
    with remote.summary() as summary:
        rows = remote.with_columns(spark.range(0, 100, 1, 1), calls, on_error="column").collect()
    failed = sum(row.y_error.code == "FUNCTION_ERROR" for row in rows)
    assert 5 < failed < 100
    assert f"budget of the session: these tasks have spent {failed} of 5 errors" in summary.text().splitlines()


@pytest.mark.parametrize(
    ("budget", "over", "why"),
    [
        ({"usd": -1}, "fail", "usd=-1 is not a number of more than 0"),
        ({"usd": "10"}, "fail", "usd='10' is not a number of more than 0"),
        ({"calls": True}, "fail", "calls=True is not a number"),
        ({"errors": "101 %"}, "fail", "'101%' is not a share"),
        ({"errors": "few"}, "fail", "'few' is not a share"),
        ({"errors": "0 %"}, "fail", "errors='0 %' is not more than 0"),
        ({"": 1}, "fail", "'' is not a unit"),
        ({}, "fail", "is not a mapping with units"),
        ([1], "fail", "is not a mapping with units"),
        ({"usd": 1}, "stop", "over_budget='stop' is not one of fail, on-error"),
        (None, "on-error", "over_budget needs a budget"),
    ],
)  # fmt: skip
def test_a_budget_that_is_none_is_refused_by_connect(spark, budget, over, why):
    with pytest.raises(InvalidOption, match=why):
        connect(spark, "localhost:1", budget=budget, over_budget=over)


def test_functions_in_the_workers_process_have_no_budget(spark, plugin):
    path = plugin("import udf_server as udf\n\n@udf.scalar\ndef one(x: int) -> int:\n    return 1\n")
    with pytest.raises(InvalidOption, match="a budget needs a server"):
        connect(spark, f"local:{path}", budget={"calls": 1})
