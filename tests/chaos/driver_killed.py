"""Kills the driver of streaming queries in the middle of a micro-batch and starts it again from its checkpoint."""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from tests.chaos.in_spark import ROOT, START
from tests.chaos.jobs import Tally
from tests.chaos.servers import ChaosServer

__all__ = ["driver_killed"]

FILES, KILLS = 6, 3
"""The number of micro-batches, and of drivers that are killed before one may end."""

INPUT = f"""
session("local[2]").range(0, rows, 1, {FILES}).write.parquet(folder + "/in")
"""

QUERIES = """
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
spark = session("local[2]", spark_sql_shuffle_partitions="4", spark_sql_streaming_stateStore_providerClass=ROCKSDB)
remote = connect(spark, target)

def rows_in():
    return spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(folder + "/in")

def start(frame, name):
    return (
        frame.writeStream.format("parquet").option("path", f"{folder}/{name}")
        .option("checkpointLocation", f"{folder}/checkpoint-{name}").trigger(availableNow=True).start()
    )

# Two of four tasks are done before the others begin: there are letters of a micro-batch that is not over. The
# number of tasks is another one each time.
spread = rows_in().repartition(4 + os.getpid() % 3, "id")
calls = {"y": remote.function("half_bad")("id")}
good = remote.with_columns(spread, calls, on_error="dead-letter", dead_letter=folder + "/letters")
keyed = rows_in().select((F.col("id") % 100).alias("k"), "id")
numbered = remote.process("running", keyed, partition_by="k", uid="running", options={"buckets": 4})
for query in [start(good, "good"), start(numbered, "numbered")]:
    query.awaitTermination()

tell(spark.read.parquet(folder + "/good"))
letters = spark.read.parquet(folder + "/letters")
replayed = remote.replay(folder + "/letters")
print("letters", letters.count(), letters.select("id").distinct().count(), letters.where("id % 2 = 0").count(),
      letters.select("_run").distinct().count(), replayed.select("id").distinct().count(), flush=True)
# Each row of a key has a number of its own, counted from 1.
found = spark.read.parquet(folder + "/numbered")
keys = found.groupBy("k").agg(F.count("*").alias("c"), F.countDistinct("n").alias("d"), F.max("n").alias("m"))
print("numbered", found.count(), found.select("id").distinct().count(), keys.where("c != d OR c != m").count(),
      flush=True)
"""


def driver_killed(scale, seed):
    """SIGKILL of a streaming driver with dead letters and process-function state, in mid-batch"""
    rows, rng = max(100_000 // scale, 20_000) // 200 * 200, random.Random(seed)
    tally, server, began = Tally(rows), ChaosServer(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            finished(driver(INPUT, server, rows, folder), folder)
            hits = [killed(driver(QUERIES, server, rows, folder), folder, rng) for _ in range(KILLS)]
            status, printed, problems = finished(driver(QUERIES, server, rows, folder), folder)
    finally:
        server.kill()
    tally.seconds = time.monotonic() - began
    tally.note = f"{sum(hits)} of {KILLS} kills while there were letters of a micro-batch that was not committed"
    if not any(hits):
        tally.not_exercised = "no driver was killed between letters and their commit"
    told = {line.split()[0]: list(map(int, line.split()[1:])) for line in printed.splitlines()}
    if status or told.keys() != {"found", "letters", "numbered"}:
        tally.failures.append(f"status {status}: {problems[-1500:]}")
        return tally
    count, distinct, wrong = told["found"]
    letters, failed, false, runs, replayed = told["letters"]
    numbers, ids, bad_keys = told["numbered"]
    tally.lost = (rows - distinct - failed) + (rows - ids)
    tally.doubled = (count - distinct) + (letters - failed) + (numbers - ids)
    tally.wrong = wrong + false + bad_keys + (runs - 1) + (failed - replayed)
    return tally


def driver(script, server, rows, folder):
    """Start a Spark driver as a process. Its output goes to files, because nothing reads it before its end."""
    with Path(folder, "stdout").open("w") as printed, Path(folder, "stderr").open("w") as problems:
        return subprocess.Popen(
            [sys.executable, "-c", START + script, server.target, str(rows), folder], cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            stdout=printed, stderr=problems,
        )  # fmt: skip


def finished(process, folder):
    """Wait for the end; return the status and the output."""
    status = process.wait(500)
    return status, Path(folder, "stdout").read_text(), Path(folder, "stderr").read_text()


def killed(process, folder, rng):
    """Send SIGKILL once an uncommitted micro-batch has letters; return whether it was still uncommitted at the end."""
    letters, commits = Path(folder, "letters"), Path(folder, "checkpoint-good", "commits")

    def uncommitted():
        batches = {file.name.split("-")[6] for file in letters.glob("part-*.parquet")}
        return {batch for batch in batches if not (commits / batch).exists()}

    before = uncommitted()
    while process.poll() is None and not uncommitted() - before:
        time.sleep(0.01)
    time.sleep(rng.uniform(0.0, 0.2))
    with contextlib.suppress(psutil.NoSuchProcess):
        # Its JVM, too, which would continue with its tasks for a moment.
        for child in psutil.Process(process.pid).children(recursive=True):
            child.kill()
        process.kill()
    process.wait()
    return bool(uncommitted() - before)
