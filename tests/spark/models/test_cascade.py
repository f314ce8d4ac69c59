"""Cascades over real frames: which rows call the dear function, how the threshold is chosen, and what is refused."""

import math

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import PlanError, connect
from tests.counted_calls import CountedCalls
from udf_server import CallContext

CALLS = CountedCalls()
DEAR = CountedCalls()
"""How often the dear function was called for each number."""
ROWS = 400
GUESSED = "struct<value string, confidence double>"


@udf.scalar(returns=GUESSED)
async def guess(context: CallContext, x: int) -> dict:
    """Right if it is confident: from 0.4 on."""
    CALLS.add("guess")
    context.spend(usd=0.01)
    confidence = x % 100 / 100
    return {"value": word(x) if confidence >= 0.4 else "wrong", "confidence": confidence}


@udf.scalar
async def know(context: CallContext, x: int) -> str:
    CALLS.add("know")
    DEAR.add(x)
    context.spend(usd=1.0)
    return word(x)


@udf.scalar(returns=GUESSED)
async def know_as_struct(x: int) -> dict:
    DEAR.add(x)
    return {"value": word(x), "confidence": None}


@udf.scalar(returns=GUESSED)
async def moody(x: int) -> dict | None:
    """Fails, or returns nulls, or a confidence that is none, for rows that it is confident of otherwise."""
    answers = {
        1: None, 2: {"value": None, "confidence": 1.0}, 3: {"value": "odd", "confidence": None},
        4: {"value": "odd", "confidence": math.nan}, 5: {"value": "odd", "confidence": 1.5},
    }  # fmt: skip
    if x == 1_000_000:
        raise ValueError("not this one")
    return answers.get(x - 1_000_000, {"value": word(x), "confidence": 0.9})


@udf.scalar
async def strict(x: int) -> str:
    if x >= 1_000_000:
        raise ValueError("too large")
    return word(x)


def word(x):
    return "even" if x % 2 == 0 else "odd"


@pytest.fixture
def remote(spark, serve):
    CALLS.clear()
    DEAR.clear()
    return connect(spark, serve(guess, know, know_as_struct, moody, strict).target)


def cascade_of(remote, cheap="guess", dear="know", rows=ROWS, target=0.9, **more):
    sample = more.pop("sample", None)
    sample = remote.spark.range(0, rows, 1, 2) if sample is None else sample
    return remote.cascade(remote.function(cheap), remote.function(dear), target=target, sample=sample, **more)


@pytest.mark.connect
@pytest.mark.parametrize("dear", ["know", "know_as_struct"])
@pytest.mark.parametrize("how", ["select", "with_columns", "unordered", "spark.sql", "remote.sql"])
def test_rows_that_the_cheap_function_answers_never_call_the_dear_one(spark, remote, dear, how):
    cascade = cascade_of(remote, dear=dear)
    assert cascade.threshold == pytest.approx(0.4, abs=0.011)
    DEAR.clear()
    frame = spark.range(1_000, 1_400, 1, 3)
    if how == "select":
        found = frame.select("id", cascade("id").alias("word"))
    elif how.endswith("sql"):
        cascade.register("which")
        frame.createOrReplaceTempView("numbers")
        run = spark.sql if how == "spark.sql" else remote.sql
        found = run("SELECT id, which(id) AS word FROM numbers")
    else:
        mode = "unordered" if how == "unordered" else "ordered"
        found = remote.with_columns(frame, {"word": cascade(F.col("id"))}, output_mode=mode)
    assert {row.id: row.word for row in found.collect()} == {x: word(x) for x in range(1_000, 1_400)}
    deferred = [x for x in range(1_000, 1_400) if x % 100 / 100 < cascade.threshold]
    assert dict(DEAR) == dict.fromkeys(deferred, 1)
    assert len(deferred) == pytest.approx(160, abs=5)


@pytest.mark.connect
@pytest.mark.parametrize("whole_rows", [True, False])
def test_errors_and_nulls_of_the_cheap_function_go_to_the_dear_one(spark, remote, whole_rows):
    cascade = cascade_of(remote, cheap="moody")
    assert cascade.accepted_share == 1
    frame, call = spark.range(1_000_000, 1_000_008), cascade("id").alias("word")
    DEAR.clear()
    found = remote.select(frame, "id", call) if whole_rows else frame.select("id", call)
    assert [row.word for row in sorted(found.collect())] == [word(x) for x in range(8)]
    assert sorted(DEAR) == list(range(1_000_000, 1_000_006))


def test_an_error_of_the_dear_function_follows_its_policy(spark, remote):
    dear = remote.function("strict", on_error="column")
    sample = spark.range(0, ROWS)
    cascade = remote.cascade(remote.function("moody"), dear, target=0.9, sample=sample)
    frame = spark.range(1_000_000, 1_000_007)
    (row,) = frame.where("id = 1000000").select(cascade("id").alias("word")).collect()
    assert (row.word.value, row.word.error.message) == (None, "ValueError: too large")
    failed = remote.with_columns(frame, {"word": cascade("id")}).where("word_error IS NOT NULL")
    assert failed.count() == 6
    plain = cascade_of(remote, cheap="moody", dear="strict")
    with pytest.raises(Exception, match="too large"):
        frame.select(plain("id")).collect()


def test_a_cascade_tells_what_the_sample_has_shown_and_cost(spark, remote):
    cascade = cascade_of(remote)
    assert CALLS == {"guess": ROWS, "know": ROWS}
    assert (cascade.sample_rows, cascade.accepted_rows, cascade.agreement) == (ROWS, 240, 1.0)
    assert cascade.least_agreement > 0.9
    assert cascade.expected_cost(1_000)["usd"] == pytest.approx(10 + 400)
    shown = str(cascade)
    assert shown.startswith("cascade: guess@1, and know@1 for rows with a confidence below 0.4\n  sample: 400 rows\n")
    assert "guess@1 answers 60.0% of them; both agree on 100.0% of these, and on 97" in shown
    assert "at a confidence level of 0.95 (target 0.9)" in shown
    assert "the sample has cost: 400 calls of guess@1: " in shown
    assert "400 calls of know@1: " in shown
    assert "expected for 1,000 rows: 410 usd; know@1 alone: 1,000 usd" in shown


@pytest.mark.connect
def test_without_a_threshold_the_dear_function_is_called_for_every_row(spark, remote):
    cascade = cascade_of(remote, agree=lambda cheap, dear: F.lit(False))
    assert cascade.threshold is None
    assert "know@1 is called for every row, and guess@1 for none" in str(cascade)
    CALLS.clear()
    assert spark.range(7).select(cascade("id").alias("word")).collect()[1].word == "odd"
    assert remote.with_columns(spark.range(7), {"word": cascade("id")}).count() == 7
    assert CALLS == {"know": 14}


def test_two_cascades_and_calls_of_their_values_run_in_one_operator(spark, remote):
    cascade = cascade_of(remote)
    frame = spark.createDataFrame([(1, 2), (50, 99)], "a bigint, b bigint")
    DEAR.clear()
    found = remote.with_columns(frame, {"x": cascade("a"), "y": cascade("b"), "again": cascade("a")})
    assert [(row.x, row.y, row.again) for row in found.collect()] == [("odd", "even", "odd"), ("even", "odd", "even")]
    assert dict(DEAR) == {1: 1, 2: 1}


def test_a_stream_calls_the_dear_function_for_what_is_left_to_it(spark, remote, tmp_path):
    cascade = cascade_of(remote)
    source = tmp_path / "in"
    spark.range(1_000, 1_100).write.parquet(str(source))
    DEAR.clear()
    stream = spark.readStream.schema("id bigint").parquet(str(source))
    query = (
        remote.with_columns(stream, {"word": cascade("id")})
        .writeStream.format("memory").queryName("cascaded").trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    assert spark.table("cascaded").count() == 100
    assert sorted(DEAR) == list(range(1_000, 1_040))


@pytest.mark.parametrize("target", [0, 1, 1.5, -1, "0.9", True, math.nan])
def test_a_target_is_between_0_and_1(remote, target):
    with pytest.raises(PlanError, match=r"target is .*; expected a number between 0 and 1"):
        cascade_of(remote, target=target)
    assert not CALLS


@pytest.mark.parametrize(("rows", "needed"), [(0, 59), (58, 59)])
def test_a_sample_that_is_too_small_is_refused_before_calls(remote, rows, needed):
    with pytest.raises(PlanError, match=f"the sample has {rows} rows; the target 0.95 .* needs at least {needed}"):
        cascade_of(remote, rows=rows, target=0.95)
    assert not CALLS


def test_a_sample_that_is_too_large_is_refused_before_calls(remote):
    with pytest.raises(PlanError, match="more than 100,000 rows"):
        cascade_of(remote, rows=100_001)
    assert not CALLS


def test_what_does_not_fit_is_refused(spark, serve):
    @udf.scalar(returns=GUESSED)
    def boasting(x: int) -> dict:
        return {"value": "a", "confidence": 1.01}

    @udf.scalar(returns="struct<value string, confidence string>")
    def spelled(x: int) -> dict:
        return {"value": "a", "confidence": "high"}

    @udf.scalar(returns="struct<value map<string,string>, confidence double>")
    def mapped(x: int) -> dict:
        return {"value": {}, "confidence": 1.0}

    @udf.scalar(returns="map<string,string>")
    def known_map(x: int) -> dict:
        return {}

    @udf.scalar
    def number(x: int) -> int:
        return x

    remote = connect(spark, serve(boasting, spelled, mapped, known_map, number, know, guess, strict).target)
    with pytest.raises(PlanError, match=r"the confidence 1.01 for a row of the sample; expected .* 0 to 1"):
        cascade_of(remote, cheap="boasting")
    with pytest.raises(PlanError, match=r"the field 'confidence' of spelled.* is not a number"):
        cascade_of(remote, cheap="spelled")
    with pytest.raises(PlanError, match=r"number.* has no field 'value' and no field 'confidence'"):
        cascade_of(remote, cheap="number")
    with pytest.raises(PlanError, match="has no field 'score'"):
        cascade_of(remote, confidence="score")
    with pytest.raises(PlanError, match="the types of the values differ: number"):
        cascade_of(remote, dear="number")
    with pytest.raises(PlanError, match="the values cannot be compared; pass `agree`"):
        cascade_of(remote, cheap="mapped", dear="known_map")
    with pytest.raises(PlanError, match="agree returns a column of the type string; expected boolean"):
        cascade_of(remote, agree=lambda cheap, dear: cheap)
    with pytest.raises(PlanError, match="cheap is 'guess'; expected a scalar function"):
        remote.cascade("guess", remote.function("know"), target=0.9, sample=spark.range(100))
    with pytest.raises(PlanError, match="the sample is a stream"):
        cascade_of(remote, sample=spark.readStream.format("rate").load().select("value"))
    with pytest.raises(PlanError, match=r"answered 0 of 400 rows .* needs 29. One of its errors: .*too large"):
        cascade_of(remote, dear="strict", sample=spark.range(1_000_000, 1_000_400))
    good = cascade_of(remote)
    with pytest.raises(PlanError, match="takes 1 arguments, got 2"):
        good("id", "id")
    with pytest.raises(PlanError, match="estimate of know@1: a cascade calls it for a part of the rows only"):
        remote.estimate(spark.range(3), good("id"))
