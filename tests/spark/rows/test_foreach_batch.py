"""A function of foreachBatch: on Spark Connect it runs in another process."""

import pytest

import udf_server as udf
from spark_client import connect


@udf.scalar
def plus_ten(x: int) -> int:
    return x + 10


@udf.scalar
def no_ones(x: int) -> int:
    if x == 1:
        raise ValueError("one")
    return x


@pytest.fixture
def run(spark, tmp_path):
    """Runs a streaming query over the numbers 0, 1 and 2 with that function."""
    spark.range(0, 3, 1, 1).write.parquet(str(tmp_path / "in"))

    def start(function):
        stream = spark.readStream.schema("id bigint").parquet(str(tmp_path / "in"))
        writer = stream.writeStream.foreachBatch(function).trigger(availableNow=True)
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()

    return start


@pytest.mark.connect
def test_a_function_that_connects_itself_works_everywhere(spark, serve, run, tmp_path):
    target, out = serve(plus_ten).target, str(tmp_path / "out")

    def write(batch, number):
        from spark_client import connect

        plus_ten = connect(batch.sparkSession, target).function("plus_ten")
        batch.select(plus_ten("id").alias("y")).write.mode("append").parquet(out)

    run(write)
    assert sorted(row.y for row in spark.read.parquet(out).collect()) == [10, 11, 12]


@pytest.mark.connect
@pytest.mark.parametrize("captured", ["session", "function"])
def test_a_remote_function_may_come_from_outside_and_a_session_too_but_not_on_connect(
    spark, serve, run, tmp_path, captured
):
    session, out = connect(spark, serve(plus_ten).target), str(tmp_path / "out")
    function = session.function("plus_ten")

    def by_session(batch, number):
        session.with_columns(batch, {"y": session.function("plus_ten")("id")}).write.parquet(out)

    def by_function(batch, number):
        batch.select(function("id").alias("y")).write.parquet(out)

    chosen = by_session if captured == "session" else by_function
    if captured == "session" and type(spark).__module__.startswith("pyspark.sql.connect"):
        # PySpark's own words; see docs/errors.md for what to write.
        with pytest.raises(Exception, match=r"Cannot serialize the function `foreachBatch`.*contains a Spark session"):
            run(chosen)
    else:
        run(chosen)
        assert sorted(row.y for row in spark.read.parquet(out).collect()) == [10, 11, 12]


@pytest.mark.connect
def test_letters_of_a_micro_batch_that_runs_again_are_replaced_if_it_is_named(spark, serve, run, tmp_path):
    """On Spark Connect Spark does not say which micro-batch it is, so that letters are refused without a name."""
    target, letters = serve(no_ones).target, str(tmp_path / "letters")

    def write(batch, number, **named):
        from spark_client import connect

        remote = connect(batch.sparkSession, target, **named)
        calls = {"y": remote.function("no_ones")("id")}
        remote.with_columns(batch, calls, on_error="dead-letter", dead_letter=letters).collect()

    if type(spark).__module__.startswith("pyspark.sql.connect"):
        with pytest.raises(Exception, match=r"would write its letters twice.*micro_batch="):
            run(write)
    for _ in range(2):
        run(lambda batch, number: write(batch, number, micro_batch=("numbers", number)))
        # The state is that of a driver that was killed before the commit.
        for commit in ("0", ".0.crc"):
            (tmp_path / "checkpoint" / "commits" / commit).unlink(missing_ok=True)
    assert [(row.id, row["_micro_batch"]) for row in spark.read.parquet(letters).collect()] == [(1, 0)]
