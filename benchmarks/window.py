"""The suite of windows: assignment against Spark's own, aggregates by window against aggregates by a plain key."""

import time
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.memory import MEGABYTE, resident_memory
from benchmarks.results import Results
from benchmarks.server import ServerProcess, server_process
from benchmarks.spark import TASKS, local_spark, run_query
from benchmarks.timing import alternating, medians
from spark_client import RemoteSession, connect
from spark_client.windows import hop, tumble

__all__ = ["run_window"]

FUNCTIONS = Path(__file__).with_name("aggregate_functions.py")
BIDS = 5_000_000
BIDS_PER_SECOND = 100
"""Of event time: five million are fourteen hours, which are 84 windows of ten minutes."""
BOUNDS = ("window_start", "window_end")
STREAM_SECONDS = 120
STREAM_EVENTS_PER_SECOND = 1_000_000 // 60
CHECKPOINTS_SECONDS = 5


def run_window(results: Results, quick: bool) -> None:
    """Measures tables first, then a stream."""
    with local_spark() as spark, server_process(FUNCTIONS) as server:
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        remote = connect(spark, server.target)
        count = BIDS // 100 if quick else BIDS
        bids = _bids(spark, count).cache()
        bids.count()
        _measure_tables(results, remote, bids, count, quick)
        bids.unpersist()
        _measure_stream(results, spark, server, remote, 10 if quick else STREAM_SECONDS)


def _bids(spark: SparkSession, count: int) -> DataFrame:
    """Bids as in Nexmark: an auction, a bidder, a price, a time."""
    numbers = spark.range(0, count, 1, TASKS)
    return numbers.select(
        F.pmod(F.xxhash64("id"), F.lit(1_000)).alias("auction"),
        (F.rand(1) * 1_000).alias("price"),
        F.expr(f"timestamp_ntz '2024-05-01 00:00:00' + make_dt_interval(0, 0, 0, id / {BIDS_PER_SECOND})").alias("at"),
        # There are as many keys as windows of ten minutes.
        F.floor(F.col("id") / (BIDS_PER_SECOND * 600)).alias("k"),
    )


def _measure_tables(results: Results, remote: RemoteSession, bids: DataFrame, count: int, quick: bool) -> None:
    average = remote.function("vectorized_average")("price")
    tumbled, hopped = tumble(bids, "at", "10 minutes"), hop(bids, "at", "5 minutes", "1 hour")
    hour = tumble(bids, "at", "1 hour")
    queries = {
        "assign": tumbled.select(*BOUNDS, "price"),
        "spark_window": bids.select(F.window("at", "10 minutes"), "price").select("window.*", "price"),
        "plain_key": remote.group_by(bids, "k").agg(average),
        "tumble": remote.group_by(tumbled, *BOUNDS).agg(average),
        "builtin": tumbled.groupBy(*BOUNDS).agg(F.avg("price")),
        "tumble_hour": remote.group_by(hour, *BOUNDS).agg(average),
        "hop": remote.group_by(hopped, *BOUNDS).agg(average),
    }
    sides = {name: partial(run_query, query) for name, query in queries.items()}
    took = medians(alternating(sides, 1 if quick else 3))
    note = f"{count:,} bids"
    results.add("tumble_assign_vs_spark_window", took["spark_window"] / took["assign"], f"rows/s over theirs, {note}")
    results.add(
        "tumble_remote_avg_vs_plain_key", took["tumble"] / took["plain_key"], f"time over time, {note}; at most 1.2"
    )
    results.add("tumble_remote_avg_vs_builtin", took["builtin"] / took["tumble"], f"rows/s over theirs, {note}")
    hops = took["hop"] / took["tumble_hour"]
    results.add("hop_12_panes_vs_tumble", hops, f"time over time, 1 hour by 5 minutes, {note}; at most 1.5")
    results.add("tumble_remote_avg_rows_per_second", count / took["tumble"], "")


def _measure_stream(
    results: Results, spark: SparkSession, server: ServerProcess, remote: RemoteSession, length: int
) -> None:
    """A million events per minute of the run; compares memory of the last third with that of the second third."""
    source = spark.readStream.format("rate").option("rowsPerSecond", STREAM_EVENTS_PER_SECOND).load()
    events = source.withWatermark("timestamp", "5 seconds").withColumn("price", F.col("value") * 1.0)
    average = remote.function("vectorized_average")("price")
    averages = remote.group_by(tumble(events, "timestamp", "10 seconds"), *BOUNDS).agg(average)
    query = averages.writeStream.format("noop").outputMode("append").trigger(processingTime="1 second").start()
    samples: list[int] = []
    begin = time.monotonic()
    try:
        while query.isActive and ((passed := time.monotonic() - begin) < length or not query.recentProgress):
            query.awaitTermination(min(CHECKPOINTS_SECONDS, length / 10))  # type: ignore[arg-type]
            samples.append(resident_memory(server))
        done = sum(progress["numInputRows"] for progress in query.recentProgress)
    finally:
        query.stop()
    # The first third is excluded: workers start and buffers grow to their size.
    third = len(samples) // 3
    growth = (max(samples[2 * third :]) - max(samples[third : 2 * third])) / MEGABYTE
    results.add("stream_events_per_minute", done / passed * 60, f"of a million offered, {length} s")
    results.add("stream_rss_growth", growth, "MB, Python workers and server, last third over the one before")
