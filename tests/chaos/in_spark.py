"""Faults of Spark itself: jobs in processes of their own, since one process holds one Spark."""

import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from tests.chaos.jobs import Tally
from tests.chaos.servers import ChaosServer

__all__ = ["SPARK_FAULTS"]

ROOT = Path(__file__).parents[2]

START = """
import os, sys, threading, time, urllib.request
import psutil
from pyspark.sql import SparkSession, functions as F
from spark_client import connect

target, rows, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]

def session(master, **settings):
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    for name, value in settings.items():
        builder = builder.config(name.replace("_", "."), value)
    return builder.getOrCreate()

def tell(frame):
    found = frame.agg(
        F.count("*"), F.countDistinct("id"), F.sum((F.col("y") != F.col("id") * 3 + 1).cast("long"))
    ).first()
    print("found", *found, flush=True)
"""

EXECUTOR = """
spark = session("local-cluster[2,1,1024]")
slow = connect(spark, target).function("slow")

def kill():
    # Once both have been at work for a while.
    while True:
        executors = [
            child for child in psutil.Process().children(recursive=True)
            if any("CoarseGrainedExecutorBackend" in part for part in child.cmdline())
        ]
        with urllib.request.urlopen(sys.argv[4] + "/metrics") as page:
            lines = [line for line in page.read().decode().splitlines() if line.startswith("udf_rows_total")]
        if len(executors) == 2 and sum(float(line.split()[-1]) for line in lines) > rows / 20:
            break
        time.sleep(0.05)
    executors[0].kill()
    print("killed", flush=True)

threading.Thread(target=kill, daemon=True).start()
frame = spark.range(0, rows, 1, 4).select("id", slow("id").alias("y"))
frame.write.mode("overwrite").parquet(folder + "/out")
tell(spark.read.parquet(folder + "/out"))
"""

SPECULATION = """
spark = session(
    "local-cluster[2,1,1024]", spark_sql_adaptive_enabled="false",
    spark_speculation="true", spark_speculation_interval="100ms",
    spark_speculation_multiplier="1.1", spark_speculation_quantile="0.1", spark_speculation_minTaskRuntime="200ms",
)
slow = connect(spark, target).function("slow")
# The last of four partitions has nearly all the rows, so its task is run twice.
most = (F.col("id") > rows // 20).cast("int") * rows
frame = spark.range(0, rows, 1, 1).repartitionByRange(4, most + F.col("id") % 7)
frame = frame.select("id", slow("id").alias("y"))
frame.write.mode("overwrite").parquet(folder + "/out")
tell(spark.read.parquet(folder + "/out"))
"""

STREAM = """
first = not os.path.exists(folder + "/in")
spark = session("local[2]")
if first:
    spark.range(0, rows, 1, 10).write.parquet(folder + "/in")
slow = connect(spark, target).function("slow")
frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(folder + "/in")
query = (
    frame.select("id", slow("id").alias("y")).writeStream.format("parquet")
    .option("path", folder + "/out").option("checkpointLocation", folder + "/checkpoint")
    .trigger(availableNow=True).start()
)
if first:
    # In the middle of a batch, after a few.
    while not (query.lastProgress and query.lastProgress["batchId"] >= 2):
        time.sleep(0.01)
    time.sleep(0.2)
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(9)
query.awaitTermination()
tell(spark.read.parquet(folder + "/out"))
"""


def rows_served(url):
    """Rows that left the server with a value: more than the job has if tasks ran twice."""
    with urllib.request.urlopen(url + "/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("udf_rows_total") and '"ok"' in line))


def run(script, rows, *, times=1):
    """The tally of a job that writes what it got; the last of so many runs tells."""
    server, began = ChaosServer(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(times):
                done = subprocess.run(
                    [sys.executable, "-c", START + script, server.target, str(rows), folder, server.metrics], cwd=ROOT,
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
                    capture_output=True, text=True, timeout=580, check=False,
                )  # fmt: skip
        served = rows_served(server.metrics)
    finally:
        server.kill()
    tally = Tally(rows, time.monotonic() - began, note=f"{served:,} rows served")
    found = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("found")]
    if not found:
        tally.failures.append(f"status {done.returncode}: {done.stderr[-1500:]}")
        return tally, done.stdout
    count, distinct, wrong = map(int, found[0])
    tally.lost, tally.doubled, tally.wrong = rows - distinct, count - distinct, wrong
    return tally, done.stdout


def executor_lost(scale, seed):
    """SIGKILL of one of two Spark executors"""
    tally, printed = run(EXECUTOR, max(1_000_000 // scale, 100_000))
    if "killed" not in printed:
        tally.failures.append("no executor was killed in time")
    return tally


def speculation(scale, seed):
    """speculative execution: the same task on two executors"""
    return run(SPECULATION, max(1_000_000 // scale, 100_000))[0]


def stream_restarted(scale, seed):
    """SIGKILL of a streaming query in mid-batch, started again from its checkpoint"""
    return run(STREAM, max(500_000 // scale, 100_000), times=2)[0]


SPARK_FAULTS = (executor_lost, speculation, stream_restarted)
