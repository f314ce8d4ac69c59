"""Whole-row execution: several calls of a row at once, unordered output, error policies."""

import threading
from dataclasses import dataclass

import pytest
from pyspark.sql import Row
from pyspark.sql import functions as F

import udf_server as udf
from remote_udf.errors import InvalidOption
from spark_client import PlanError

LETTERS = ["_function", "_error", "_time", "_run", "_micro_batch", "_partition"]


@udf.scalar
async def plus_ten(x: int) -> int:
    return x + 10


@udf.scalar
def no_threes(x: int) -> int:
    if x % 10 == 3:
        raise ValueError(f"{x} ends in three")
    return x


@pytest.mark.connect
def test_new_columns_stand_behind_the_others_and_replace_those_of_their_name(remote, spark):
    session = remote(plus_ten)
    plus = session.function("plus_ten")
    frame = spark.createDataFrame([(1, "a"), (2, "b")], "x bigint, name string")
    result = session.with_columns(frame, {"X": plus("x"), "y": plus(F.col("x") * 100)})
    assert result.columns == ["X", "name", "y"]
    assert [tuple(row) for row in result.collect()] == [(11, "a", 110), (12, "b", 210)]


@pytest.mark.connect
def test_select_gives_the_columns_asked_for_in_their_order(remote, spark):
    session = remote(plus_ten)
    plus = session.function("plus_ten")
    frame = spark.createDataFrame([(1, "a")], "x bigint, name string")
    result = session.select(frame, plus("x").alias("y"), "*", F.upper("name").alias("up"), plus(plus("x")))
    assert result.columns == ["y", "x", "name", "up", "plus_ten(plus_ten(x))"]
    assert tuple(result.first()) == (11, 1, "a", "A", 21)


@pytest.mark.connect
def test_arguments_that_are_alike_are_the_columns_that_spark_finds(remote, spark):
    session = remote(plus_ten)
    plus = session.function("plus_ten")
    frame = spark.sql("SELECT 1L AS x, map('k', 2L, 'K', 3L) AS m, named_struct('f', 4L) AS s, 5L AS `a.b`")
    texts = ["x", "X", "`x`", "m.k", "m.K", "M.K", "s.f", "S.F", "`a.b`", "`A.B`"]
    calls = [plus(text).alias(f"y{index}") for index, text in enumerate(texts)]
    expected = (11, 11, 11, 12, 13, 13, 14, 14, 15, 15)
    assert tuple(session.select(frame, *calls).first()) == expected
    assert tuple(session.select(frame, "m.k", "x", *calls).first()) == (2, 1, *expected)
    nested = session.select(frame, plus(plus("x")).alias("y"), plus(plus("X")).alias("z"), plus("m.K").alias("m"))
    assert tuple(nested.first()) == (21, 21, 13)
    with pytest.raises(Exception, match=r"nothing.*cannot be resolved|UNRESOLVED"):
        session.select(frame, plus("x").alias("y"), plus("nothing").alias("z")).collect()


@pytest.mark.connect
def test_columns_of_one_name_stay_apart(remote, spark):
    session = remote(plus_ten)
    frame = spark.createDataFrame([(1, 2, 3)], "a bigint, b bigint, x bigint").toDF("a", "a", "x")
    result = session.with_columns(frame, {"y": session.function("plus_ten")("x")})
    assert result.columns == ["a", "a", "x", "y"]
    assert tuple(result.first()) == (1, 2, 3, 13)
    twice = session.select(frame, "x", session.function("plus_ten")("x").alias("x"))
    assert twice.columns == ["x", "x"]
    assert tuple(twice.first()) == (3, 13)


@pytest.mark.connect
def test_one_call_may_fill_two_columns(remote, spark):
    session = remote(plus_ten)
    call = session.function("plus_ten")("id")
    rows = session.with_columns(
        spark.range(1), {"a": call, "b": call, "c": session.function("plus_ten")(call)}
    ).collect()
    assert rows == [Row(id=0, a=10, b=10, c=20)]


def test_calls_of_one_row_are_in_flight_together(remote, spark):
    both = threading.Barrier(2, timeout=20)

    @udf.scalar
    def left(x: int) -> int:
        both.wait()
        return x

    @udf.scalar
    def right(x: int) -> int:
        both.wait()
        return -x

    session = remote(left, right)
    for mode in ("ordered", "unordered"):
        calls = {"l": session.function("left")("id"), "r": session.function("right")("id")}
        rows = session.with_columns(spark.range(0, 1, 1, 1), calls, output_mode=mode).collect()
        assert rows == [Row(id=0, l=0, r=0)]


def test_equal_calls_of_a_row_are_made_once_even_if_written_differently(remote, spark):
    seen = []

    @udf.scalar
    async def noted(x: int) -> int:
        seen.append(x)
        return x

    session = remote(noted)
    noted_ = session.function("noted")
    frame = spark.range(4).withColumn("same", F.col("id") + 0)
    calls = {"a": noted_("id"), "b": noted_("id"), "c": noted_("same"), "d": noted_(F.col("id") * 2)}
    rows = session.with_columns(frame, calls).collect()
    assert [(row.a, row.b, row.c, row.d) for row in rows] == [(x, x, x, 2 * x) for x in range(4)]
    assert sorted(seen) == sorted([0, 1, 2, 3, 0, 2, 4, 6])


@pytest.mark.connect
def test_unordered_output_has_the_same_rows(remote, spark):
    session = remote(plus_ten, no_threes)
    calls = {"y": session.function("plus_ten")("id"), "z": session.function("no_threes")("id")}
    result = session.with_columns(spark.range(0, 5000, 1, 2), calls, output_mode="unordered", on_error="null")
    found = sorted((row.id, row.y, row.z) for row in result.collect() if row.z is not None)
    assert found == [(x, x + 10, x) for x in range(5000) if x % 10 != 3]
    assert result.where("z IS NULL").count() == 500


def test_unordered_rows_leave_while_a_slow_one_is_still_called(remote, spark):
    release = threading.Event()
    passed = []

    @udf.scalar(timeout="60 s")
    def wait_for_zero(x: int) -> int:
        if x == 0:
            assert release.wait(50)
        return x

    @udf.scalar
    def watch(x: int) -> int:
        passed.append(x)
        if len(passed) >= 300:
            release.set()
        return x

    session = remote(wait_for_zero, watch)
    # Spark passes rows on when a buffer of 64 KiB is full; the padding fills it.
    frame = spark.range(0, 1000, 1, 1).withColumn("padding", F.repeat(F.lit("x"), 2000))
    slow = session.with_columns(frame, {"y": session.function("wait_for_zero")("id")}, output_mode="unordered")
    # The second operator gets rows of the first while its row 0 still waits, which ends the waiting.
    result = session.with_columns(slow, {"z": session.function("watch")("y")}, output_mode="unordered")
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
    try:
        assert {row.id for row in result.select("id").collect()} == set(range(1000))
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert release.is_set()


@pytest.mark.connect
def test_failing_is_the_default_and_says_which_row_and_why(remote, spark):
    session = remote(no_threes)
    failing = session.with_columns(spark.range(10), {"y": session.function("no_threes")("id")})
    with pytest.raises(Exception, match="no_threes") as caught:
        failing.collect()
    text = str(caught.value)
    assert "no_threes(x=3) of no_threes@1 failed: FUNCTION_ERROR: ValueError: 3 ends in three (1 attempt)" in text
    assert "Remote traceback" in text
    assert "raise ValueError" in text


@pytest.mark.connect
def test_an_error_column_says_what_happened_to_each_row(remote, spark):
    session = remote(no_threes)
    result = session.with_columns(
        spark.range(2, 4), {"y": session.function("no_threes")("id")}, on_error="column"
    ).collect()
    error = Row(code="FUNCTION_ERROR", message="ValueError: 3 ends in three", attempts=1, retryable=False)
    assert result == [Row(id=2, y=2, y_error=None), Row(id=3, y=None, y_error=error)]


@pytest.mark.connect
def test_rows_with_an_error_column_are_called_again_and_get_a_new_one(remote, spark):
    session = remote(no_threes)
    call = session.function("no_threes")
    before = session.with_columns(spark.range(2, 4), {"y": call("id")}, on_error="column")
    again = before.selectExpr("Y_error", "id + 1 AS id", "y", "y_error.message AS why")
    result = session.with_columns(again, {"y": call("id")}, on_error="column")
    assert result.columns == ["id", "y", "y_error", "why"]
    assert [(row.id, row.y, row.y_error and row.y_error.code) for row in result.collect()] == [
        (3, None, "FUNCTION_ERROR"), (4, 4, None),
    ]  # fmt: skip


@pytest.mark.connect
def test_an_error_column_in_a_plain_select_is_a_field_beside_the_value(remote, spark):
    safe = remote(no_threes).function("no_threes", on_error="column")
    rows = spark.range(2, 4).select(safe("id").alias("r")).select("r.value", "r.error.code").collect()
    assert rows == [Row(value=2, code=None), Row(value=None, code="FUNCTION_ERROR")]


def test_an_inner_error_is_the_outer_calls_error_and_the_outer_call_is_not_made(remote, spark):
    seen = []

    @udf.scalar
    def outer(x: int) -> int:
        seen.append(x)
        return x * 2

    session = remote(no_threes, outer)
    inner = session.function("no_threes")("id")
    result = session.with_columns(
        spark.range(2, 5), {"y": session.function("outer")(inner), "i": inner}, on_error="column"
    ).collect()
    assert [(row.y, row.i, row.y_error and row.y_error.message) for row in result] == [
        (4, 2, None),
        (None, None, "ValueError: 3 ends in three"),
        (8, 4, None),
    ]
    assert sorted(seen) == [2, 4]


@pytest.mark.connect
def test_dead_letters_hold_the_failed_rows_and_the_result_the_others(remote, spark, tmp_path):
    session = remote(plus_ten, no_threes)
    folder = f"{tmp_path}/letters"
    calls = {"y": session.function("no_threes")("id"), "z": session.function("plus_ten")("id")}
    frame = spark.range(0, 100, 1, 3).withColumn("word", F.lit("w"))
    result = session.with_columns(frame, calls, on_error="dead-letter", dead_letter=folder)
    for _ in range(2):  # a second run replaces the files of the first
        assert {row.id for row in result.collect()} == {x for x in range(100) if x % 10 != 3}
    letters = spark.read.parquet(folder)
    assert letters.columns == ["id", "word", *LETTERS]
    assert sorted(row.id for row in letters.collect()) == list(range(3, 100, 10))
    first = letters.where("id = 3").first()
    assert (first.word, first["_function"], first["_error"].message) == (
        "w",
        "no_threes@1",
        "ValueError: 3 ends in three",
    )
    assert (first["_micro_batch"], first["_partition"], letters.select("_run").distinct().count()) == (None, 0, 1)


@pytest.mark.connect
@pytest.mark.parametrize("given", ["range", "literal rows", "files"])
def test_letters_belong_to_partitions_of_the_input_whatever_tasks_compute_them(remote, spark, tmp_path, given):
    session = remote(no_threes)
    frame = spark.range(0, 40, 1, 4)
    if given == "literal rows":  # Spark's optimizer may compute their columns itself
        frame = spark.createDataFrame([(x,) for x in range(40)], "id bigint")
    elif given == "files":
        frame.write.parquet(str(tmp_path / "files"))
        frame = session.read_parquet(str(tmp_path / "files"))
    calls = {"y": session.function("no_threes")("id")}
    failed = [x for x in range(40) if x % 10 == 3]
    for number, changed in enumerate((
        lambda result: result.coalesce(1),
        lambda result: result.coalesce(3),
        lambda result: result.union(result),
        lambda result: result.where("id < 0").union(result).coalesce(2),
    )):  # fmt: skip
        letters = f"{tmp_path}/letters{number}"
        result = session.with_columns(frame, calls, on_error="dead-letter", dead_letter=letters)
        for shown in (changed(result), result):  # the second run replaces the files of the first
            assert {row.id for row in shown.collect()} == {*range(40)} - {*failed}
            assert sorted(row.id for row in session.replay(letters).collect()) == failed


TYPED = """
    SELECT id, id * interval '1 00:00:01' day to second AS gap, timestamp_ntz'2020-01-01 12:00:00' AS ntz,
        timestamp'1500-01-01 00:00:00' AS at, NULL AS nothing, map('k', array(cast(id AS decimal(10, 2)))) AS nested,
        'v' AS `a.b`
    FROM range(10)"""


@pytest.mark.connect
def test_letters_are_replayed_as_they_were_run_by_run(remote, spark, tmp_path):
    session = remote(no_threes)
    call, letters = session.function("no_threes"), str(tmp_path / "letters")

    def run(frame):
        calls = {"y": call("id")}
        return session.with_columns(frame, calls, on_error="dead-letter", dead_letter=letters).collect()

    frame = spark.sql(TYPED)
    assert len(run(frame)) == 9
    again = session.replay(letters)
    assert [(field.name, field.dataType.simpleString()) for field in again.schema] == [
        (field.name, field.dataType.simpleString()) for field in frame.schema
    ]
    assert again.collect() == frame.where("id = 3").collect()
    # New letters go to the same directory.
    assert run(again.withColumn("id", F.lit(13))) == []
    assert [row.id for row in again.collect()] == [3]
    with pytest.raises(
        PlanError, match="has letters of several runs; pass one as `run`, the latest is first:"
    ) as caught:
        session.replay(letters)
    listed = [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]]
    assert [row.id for one in listed for row in session.replay(letters, run=one).collect()] == [13, 3]
    again = session.replay(letters, run=listed[0])
    assert len(run(again.withColumn("id", again["id"] + 1))) == 1


@pytest.mark.connect
def test_what_is_no_letter_is_not_replayed(remote, spark, tmp_path):
    session = remote(no_threes)
    spark.range(3).write.parquet(f"{tmp_path}/other")
    for path, run in ((tmp_path / "none", None), (tmp_path / "other", None), (tmp_path / "other", "0" * 32)):
        with pytest.raises(PlanError, match=rf"'{path}' are not dead letters|no dead letters (of run 0+ )?in '{path}'"):
            session.replay(str(path), run=run)
    with pytest.raises(PlanError, match="a value of the column `_run`"):
        session.replay(str(tmp_path), run="*")


@pytest.mark.connect
def test_an_input_with_the_columns_of_letters_is_refused(remote, spark):
    session = remote(no_threes)
    frame = spark.range(1).withColumn("_TIME", F.lit(1))
    with pytest.raises(PlanError, match="column '_TIME': a dead letter has a column of that name"):
        session.with_columns(
            frame, {"y": session.function("no_threes")("id")}, on_error="dead-letter", dead_letter="/x"
        )


@pytest.mark.connect
def test_the_error_budget_of_a_task_is_absolute_or_a_share(remote, spark):
    session = remote(no_threes)
    call = session.function("no_threes")("id")
    frame = spark.range(0, 1000, 1, 1)

    def run(**budget):
        return session.with_columns(frame, {"y": call}, on_error="null", **budget).where("y IS NULL").count()

    assert run(max_errors=100) == 100
    assert run(max_error_rate="10%") == 100
    with pytest.raises(Exception, match=r"ErrorBudgetExceeded: function no_threes@1: \d+ of \d+ rows of this task"):
        run(max_errors=99)
    with pytest.raises(Exception, match=r"more than max-error-rate 0.05 allow"):
        run(max_error_rate=0.05)


@pytest.mark.connect
def test_what_cannot_be_planned_is_refused_before_anything_runs(remote, spark):
    session = remote(plus_ten)
    plus = session.function("plus_ten")
    frame = spark.createDataFrame([(1, "a")], "x bigint, name string")
    with pytest.raises(PlanError, match=r"plus_ten@1, parameter 'x': expected bigint, found string"):
        session.with_columns(frame, {"y": plus("name")})
    with pytest.raises(PlanError, match="column 'y': expected the call of a remote function"):
        session.with_columns(frame, {"y": plus("x") + 1})
    with pytest.raises(PlanError, match="needs the option 'dead-letter'"):
        session.with_columns(frame, {"y": plus("x")}, on_error="dead-letter")
    with pytest.raises(PlanError, match="an error budget cannot be combined with on-error 'fail'"):
        session.with_columns(frame, {"y": plus("x")}, max_errors=3)
    with pytest.raises(InvalidOption, match="'sometimes' is not one of fail, null, column, dead-letter"):
        session.with_columns(frame, {"y": plus("x")}, on_error="sometimes")


@pytest.mark.connect
def test_struct_results_and_arguments_pass_through_whole_rows(remote, spark):
    @dataclass
    class Point:
        lat: float
        lon: float

    @udf.scalar
    def mirror(p: Point) -> Point:
        return Point(-p.lat, -p.lon)

    session = remote(mirror)
    frame = spark.createDataFrame([((1.0, 2.0),), (None,)], "p struct<lat:double,lon:double>")
    mirrored = session.function("mirror").with_options(on_error="null")
    rows = session.with_columns(frame, {"q": mirrored("p")}).collect()
    assert rows[0].q == Row(lat=-1.0, lon=-2.0)
    assert rows[1].q is None  # None has no lat
