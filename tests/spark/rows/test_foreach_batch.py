"""A function of foreachBatch: on Spark Connect it runs in another process."""

import pytest

import udf_server as udf
from spark_client import connect


@udf.scalar
def plus_ten(x: int) -> int:
    return x + 10


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
