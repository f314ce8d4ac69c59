"""A remote function on a stream: readings arrive as files, each is looked up, and they are counted by minute.

    make demo                          # once: it installs what this needs
    .venv/bin/python -m examples.streaming

Stops when every file has been read.
"""

import tempfile
from pathlib import Path

from pyspark.sql import functions as F

from examples.session import local_session
from spark_client import connect

PLUGIN = '''
import asyncio

import udf_server as udf


@udf.scalar(timeout="2 s", max_attempts=3)
async def sensor_room(sensor: int) -> str:
    """Where a sensor hangs; imagine a slow service here."""
    await asyncio.sleep(0.01)
    if sensor % 7 == 0:
        raise LookupError(f"nobody knows sensor {sensor}")
    return "hall" if sensor % 2 else "attic"
'''


def main() -> None:
    folder = Path(tempfile.mkdtemp(prefix="remote-udf-streaming-"))
    (folder / "rooms.py").write_text(PLUGIN)
    source = folder / "readings"
    source.mkdir()
    for minute in range(3):
        lines = [
            f"{sensor},2024-05-01T12:{minute:02d}:{sensor % 60:02d},{20 + sensor % 5}\n" for sensor in range(1, 201)
        ]
        (source / f"{minute}.csv").write_text("".join(lines))

    spark = local_session(2)
    remote = connect(spark, plugins=[str(folder / "rooms.py")])
    sensor_room = remote.function("sensor_room")

    readings = (
        spark.readStream.schema("sensor bigint, at timestamp, degrees double")
        .option("maxFilesPerTrigger", 1)
        .csv(source.as_uri())
        .withWatermark("at", "1 minute")
    )
    # Rows are emitted as they are answered; for those without an answer room_error has the reason.
    placed = remote.with_columns(readings, {"room": sensor_room("sensor")}, output_mode="unordered", on_error="column")
    minutes = placed.groupBy(F.window("at", "1 minute").start.alias("minute"), "room").agg(
        F.count("*").alias("readings"),
        F.round(F.avg("degrees"), 2).alias("degrees"),
        F.first("room_error.message", ignorenulls=True).alias("without a room"),
    )
    query = (
        minutes.writeStream.outputMode("complete").format("memory").queryName("minutes")
        .option("checkpointLocation", (folder / "checkpoint").as_uri())
        .trigger(availableNow=True)
        .start()
    )  # fmt: skip
    query.awaitTermination()
    spark.table("minutes").orderBy("minute", "room").show(truncate=40)
    spark.stop()


if __name__ == "__main__":
    main()
