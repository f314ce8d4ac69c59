"""The summary of real Spark jobs."""

import re
import threading
import time

import pytest
from pyspark.sql import functions as F

import udf_server as udf
from spark_client import SummaryUnavailable, connect
from tests.spark_client.executor.aggregate.world import Total
from udf_server.aggregate.declaration import declare_aggregate


@udf.scalar
async def checked(x: int) -> int:
    if x % 10 == 0:
        raise ValueError(x)
    return x


def test_a_job_is_summed_up_over_its_tasks(remote, spark, capsys):
    session = remote(checked)
    check = session.function("checked", on_error="null")
    frame = spark.range(0, 1000, 1, 4).select(check("id").alias("y"))
    frame.collect()
    with session.summary(progress=3600) as summary:
        assert frame.where("y is not null").count() == 900
    (row,) = [row for row in summary.rows() if row.statistics.rows]
    statistics = row.statistics
    assert (row.function, row.on_error, row.tasks) == ("checked@1", "null", 4)
    assert (statistics.rows, statistics.ok, statistics.failed, statistics.calls) == (1000, 900, 100, 1000)
    assert statistics.batches >= 4 and statistics.bytes_out > 8000 and statistics.bytes_in > 8000
    assert 0 < statistics.function_seconds <= statistics.batch_seconds
    assert statistics.quantile(0.5) <= statistics.quantile(0.99)
    (shown,) = summary.frame().select("function", "rows", "failed", "p99_seconds").collect()
    assert tuple(shown)[:3] == ("checked@1", 1000, 100)
    assert shown.p99_seconds > 0
    assert "remote-udf: " in capsys.readouterr().err


def test_whole_rows_and_aggregates_are_in_it(remote, spark):
    session = remote(checked, declare_aggregate(Total))
    frame = spark.range(1, 10, 1, 2)
    with session.summary() as summary:
        session.with_columns(frame, {"y": session.function("checked", on_error="null")("id")}).collect()
        session.group_by(frame, (F.col("id") % 2).alias("k")).agg(session.function("total")("id")).collect()
    found = {row.function: row.statistics for row in summary.rows()}
    assert found["checked@1"].rows == 9
    assert found["total@1"].rows > 0
    assert {row.function for row in summary.rows()} == {"checked@1", "total@1"}


@pytest.mark.connect
def test_a_directory_takes_the_place_of_accumulators_on_spark_connect(spark, serve, tmp_path):
    session = connect(spark, serve(checked).target, summary_directory=str(tmp_path))
    check = session.function("checked", on_error="null")
    frame = spark.range(0, 100, 1, 4).select(check("id").alias("y"))
    with session.summary() as before:
        pass
    with session.summary(progress=3600) as summary:
        assert frame.where("y is not null").count() == 90
    frame.collect()
    assert before.rows() == []
    (row,) = [row for row in summary.rows() if row.statistics.rows]
    assert (row.function, row.on_error, row.tasks) == ("checked@1", "null", 4)
    assert (row.statistics.rows, row.statistics.ok, row.statistics.failed) == (100, 90, 10)
    assert summary.frame().select("rows").collect()[0].rows == 100
    classic = not type(spark).__module__.startswith("pyspark.sql.connect")
    assert len(list(tmp_path.glob("*/*.json"))) == (0 if classic else 8)


@pytest.mark.connect
def test_spark_connect_without_a_directory_says_that_it_has_none(spark, serve):
    session = connect(spark, serve(checked).target)
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        with pytest.raises(SummaryUnavailable):
            session.summary()
    else:
        with session.summary() as summary:
            pass
        assert summary.rows() == []


def test_micro_batches_of_a_stream_are_one_row(remote, spark, tmp_path):
    session = remote(checked)
    (tmp_path / "in").mkdir()
    spark.range(1, 10).write.parquet(str(tmp_path / "in"), mode="append")
    spark.range(11, 20).write.parquet(str(tmp_path / "in"), mode="append")
    stream = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    with session.summary() as summary:
        query = stream.select(session.function("checked")("id")).writeStream.format("noop")
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
    (row,) = summary.rows()
    assert (row.stage, row.statistics.rows) == (None, 18)
    assert row.tasks >= 2
    assert "checked@1, stream: 18 rows" in summary.text()


@pytest.mark.connect
def test_progress_shows_rows_of_tasks_that_still_run(spark, serve, tmp_path, capsys):
    release = threading.Event()

    @udf.scalar(buffer_capacity=100)
    def gated(x: int) -> int:
        if x >= 700:
            release.wait(60)
        return x

    session = connect(spark, serve(gated).target, summary_directory=str(tmp_path))
    frame = spark.range(0, 1000, 1, 1).select(session.function("gated", batch_rows=100)("id").alias("y"))
    job = threading.Thread(target=frame.collect)
    lines, until = "", time.monotonic() + 60
    with session.summary(progress=0.1) as summary:
        job.start()
        while not re.search(r" [1-9]\d* rows \(", lines) and time.monotonic() < until:
            time.sleep(0.05)
            lines += capsys.readouterr().err
        ended = summary.total()[0]
        release.set()
        job.join(60)
    assert re.search(r" [1-9]\d* rows \(", lines), lines
    assert ended == 0
    assert "1,000 rows (" in capsys.readouterr().err
