"""A stream whose source becomes idle: its last window is closed all the same."""

import functools
import time

import pytest
from pyspark.sql import functions as F

from spark_client import PlanError
from spark_client.windows import tumble, with_watermark


def test_the_last_window_is_closed_when_the_source_has_been_idle(spark, tmp_path):
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "rows.json").write_text(f'{{"at": {int(time.time())}, "v": 1}}\n{{"v": 7}}\n')
    rows = spark.readStream.schema("at bigint, v bigint").json(str(folder))
    timed = rows.select(F.timestamp_seconds("at").alias("at"), "v")
    windowed = tumble(with_watermark(timed, "at", "0 s", idle_timeout="1 second"), "at", "2 seconds")
    sums = windowed.groupBy("window_start", "window_end", "window_time").agg(F.sum("v").alias("s"))
    query = sums.writeStream.format("memory").queryName("idle").outputMode("append").start()
    try:
        ends = time.monotonic() + 90
        while not (found := spark.table("idle").collect()) and time.monotonic() < ends:
            time.sleep(0.1)
    finally:
        query.stop()
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert [row.s for row in found] == [1]


def test_the_clock_does_not_advance_the_watermark_past_rows_that_are_still_to_be_read(spark, tmp_path):
    """The rows are years old. After each of them the clock ticks, and after the first one the query starts again."""
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()

    def started():
        rows = spark.readStream.schema("at timestamp, v bigint, a array<struct<b:string>>").json(str(folder))
        rows = rows.withColumn("m", F.expr("interval 3 months"))
        timed = with_watermark(rows, "at", "0 s", idle_timeout="1 hour")
        windowed = tumble(timed.where("a[0].b = 'x' AND m = interval '3' month"), "at", "1 minute")
        sums = windowed.groupBy("window_start", "window_end", "window_time").agg(F.sum("v").alias("s"))
        sink = sums.writeStream.format("parquet").option("path", str(out))
        return sink.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def waited(condition):
        ends = time.monotonic() + 90
        while not (found := condition()):
            assert time.monotonic() < ends
            time.sleep(0.1)
        return found

    def ticked(query, after):
        """The first micro-batch of the clock alone, after one with rows."""
        counts = {}
        for progress in query.recentProgress:
            sources = {source["description"][:4]: source["numInputRows"] for source in progress["sources"]}
            counts[progress["batchId"]] = (sources.pop("Rate"), sum(sources.values()))
        read = min((batch for batch, (_, rows) in counts.items() if rows and batch > after), default=None)
        return next(
            (b for b, (clock, rows) in sorted(counts.items()) if read is not None and b > read and clock and not rows),
            None,
        )

    query, batch = started(), -1
    try:
        for minute in (0, 1, 2, 30):
            line = f'{{"at": "2024-01-01T10:{minute:02}:00Z", "v": {minute + 1}, "a": [{{"b": "x"}}]}}\n'
            (folder / f"{minute}.json").write_text(line)
            batch = waited(functools.partial(ticked, query, batch))
            if minute == 0:
                query.stop()
                query = started()
        waited(lambda: spark.read.schema("s bigint").parquet(str(out)).count() == 3)
    finally:
        query.stop()
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert sorted(row.s for row in spark.read.parquet(str(out)).collect()) == [1, 2, 3]


def test_a_watermark_takes_a_time_and_lengths_that_make_sense(spark):
    frame = spark.range(1).selectExpr("current_timestamp() AS at", "id")
    assert with_watermark(frame, "at", "1 s", idle_timeout="1 s").columns == ["at", "id"]
    with pytest.raises(PlanError, match="time column 'id' is of type bigint; expected timestamp"):
        with_watermark(frame, "id", "1 s")
    with pytest.raises(PlanError, match="delay '-1 s' is negative"):
        with_watermark(frame, "at", "-1 s")
    stream = spark.readStream.format("rate").load()
    with pytest.raises(PlanError, match="idle_timeout '0 s' is not longer than zero"):
        with_watermark(stream, "timestamp", "1 s", idle_timeout="0 s")
