"""`python -m tests.chaos.soak_stream`: streams with many keys and a trigger each second; nothing must grow.

Three queries run at once: an aggregate by key in update mode, whose keys are never removed; a process table function
whose state has a time-to-live; and an aggregate of windows. State, files, memory of the driver, its workers and the
server, and the CPU time of a micro-batch are sampled, plotted as SVG and compared, see `flatness`. Each micro-batch has
the same number of rows and one more second of event time, however late it is: what it has to do does not depend on the
load of the machine.
"""

import argparse
import os
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from spark_client import connect
from spark_client.windows import tumble
from tests.chaos.flatness import courses
from tests.chaos.servers import ChaosServer
from tests.chaos.soak import SAMPLES, plot

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
ROUND = 20
"""Each key has a row once in this number of micro-batches."""
WARM_UP = 30
"""The number of micro-batches of each query before the first sample, by which each key has had rows."""
STARTS = 5
"""The number of times that a query is started at most."""
SETTINGS = {
    "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-Xms2g -XX:+AlwaysPreTouch -XX:+UseSerialGC",
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB, "spark.sql.streaming.minBatchesToRetain": "5",
    "spark.sql.streaming.stateStore.maintenanceInterval": "10s",
}  # fmt: skip


def started(remote, keys, folder):
    """Starts the three queries over rows of `keys` keys, each once the one before runs.

    On a busy machine a Python process may need longer than the ten seconds that Spark waits for it, the more so if
    three queries start at once. So a query that fails before its first micro-batch has ended is started again.
    """
    spark = SparkSession.active()
    rows = spark.readStream.format("rate-micro-batch").option("advanceMillisPerBatch", 1000)
    rows = rows.option("rowsPerBatch", max(keys // ROUND, 1)).option("numPartitions", 2).load()
    rows = rows.selectExpr(f"value % {keys} AS k", "value AS id", "1L AS x", "timestamp AS at")
    totals = remote.function("totals")("x").alias("total")
    windows = tumble(rows.withWatermark("at", "2 seconds"), "at", "10 seconds")
    queries = {
        "expiring": remote.process("seen", rows, partition_by="k", uid="seen"),
        "update": remote.group_by(rows, "k").agg(totals),
        "windows": remote.group_by(windows, "window_start", "window_end", "k").agg(totals),
    }
    found = []
    for name, frame in queries.items():
        sink = frame.writeStream.format("noop").queryName(name)
        sink = sink.outputMode("update" if name == "update" else "append").trigger(processingTime="1 second")
        for _ in range(STARTS):
            query = sink.option("checkpointLocation", f"{folder}/{name}").start()
            while query.isActive and batches(query) < 1:
                time.sleep(0.1)
            if query.isActive:
                break
        found.append(query)
    return found


def batches(query):
    """The number of the query's micro-batches that have ended."""
    return (query.lastProgress or {"batchId": -1})["batchId"] + 1


class CpuTime:
    """The CPU time of a micro-batch of any query, between two samples."""

    def __init__(self):
        self._seconds, self._batches, self._latest = {}, 0, 0.0

    def of_a_batch(self, processes, ended):
        """Milliseconds; those of the sample before if no micro-batch has ended since."""
        seconds = {}
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                seconds[process.pid] = times.user + times.system
        if ended > self._batches:
            spent = sum(seconds[pid] - self._seconds.get(pid, 0.0) for pid in seconds)
            self._latest = 1000 * spent / (ended - self._batches)
            self._seconds, self._batches = seconds, ended
        return self._latest


def sample(queries, folder, server, seconds, cpu):
    """A row of what must not grow."""
    row = {"seconds": seconds}
    driver = next(each for each in psutil.Process().children() if "java" in each.name())
    workers = [each for each in driver.children(recursive=True) if each.is_running()]
    server = psutil.Process(server.pid)
    row["micro-batch: CPU ms"] = cpu.of_a_batch([driver, *workers, server], sum(map(batches, queries)))
    for name, processes in (("driver", [driver]), ("workers", workers), ("server", [server])):
        row[f"{name} memory MB"] = row[f"{name} threads"] = row[f"{name} files"] = 0
        for process in processes:
            try:
                row[f"{name} memory MB"] += process.memory_full_info().uss / (1 << 20)
                row[f"{name} threads"] += process.num_threads()
                row[f"{name} files"] += process.num_fds()
            except psutil.NoSuchProcess:
                continue
    stored = [path.stat() for path in Path(folder).rglob("*") if path.is_file() and path.exists()]
    row["checkpoint entries"] = len(stored)
    row["checkpoint MB"] = sum(each.st_size for each in stored) / (1 << 20)
    for query in queries:
        progress = query.lastProgress or {}
        row[f"{query.name}: state rows"] = sum(each["numRowsTotal"] for each in progress.get("stateOperators") or ())
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--out", type=Path, default=Path("build/soak-stream.svg"))
    asked = parser.parse_args()
    failed, rows = [], []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        server = ChaosServer()
        stack.callback(server.kill)
        builder = SparkSession.builder.master("local[2]")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        stack.callback(spark.stop)
        queries = started(connect(spark, server.target), asked.keys, folder)
        while all(query.isActive for query in queries) and min(map(batches, queries)) < WARM_UP:
            time.sleep(1.0)
        cpu, began = CpuTime(), time.monotonic()
        while all(query.isActive for query in queries) and (passed := time.monotonic() - began) < asked.minutes * 60:
            time.sleep(max(asked.minutes * 60 / SAMPLES, 1.0))
            rows.append(sample(queries, folder, server, passed, cpu))
        failed = [f"{query.name}: {query.exception() or 'ended'}" for query in queries if not query.isActive]
        ran = ", ".join(f"{query.name} {batches(query)}" for query in queries)
        for query in queries:
            query.stop()
    print(f"{asked.keys} keys; micro-batches: {ran}", *failed, sep="\n")
    found = courses(rows) if rows else []
    if rows:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(plot(rows))
        print(*found, asked.out, sep="\n")
    sys.stdout.flush()
    os._exit(1 if failed or not rows or any(course.grew for course in found) else 0)


if __name__ == "__main__":
    main()
