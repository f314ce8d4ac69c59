"""A stream whose source becomes idle: its last window is closed all the same."""

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
