"""Faults of Spark itself: the jobs run in separate processes, because a process has only one Spark."""

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pyspark

from tests.chaos.jobs import Tally
from tests.chaos.servers import ChaosServer
from tests.ports import free_port

__all__ = ["SPARK_FAULTS"]

ROOT = Path(__file__).parents[2]
MOST_GROWTH = 1.2
"""The allowed growth of a server's memory from the first 40 short tasks to the last of 240."""

START = """
import contextlib, os, sys, threading, time, urllib.request
import psutil
from pyspark.sql import SparkSession, functions as F
from spark_client import connect

target, rows, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]

# No task begins before both executors are there.
BOTH = dict(
    spark_cores_max="2", spark_scheduler_minRegisteredResourcesRatio="1.0",
    spark_scheduler_maxRegisteredResourcesWaitingTime="200s",
)

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
spark = session("local-cluster[2,1,1024]", **BOTH)
slower = connect(spark, target).function("slower")

def is_executor(process):
    with contextlib.suppress(psutil.Error):  # it may be gone
        return any("CoarseGrainedExecutorBackend" in part for part in process.cmdline())

def kill():
    # Once both have been at work for a while.
    while True:
        executors = [child for child in psutil.Process().children(recursive=True) if is_executor(child)]
        with urllib.request.urlopen(sys.argv[4] + "/metrics") as page:
            lines = [line for line in page.read().decode().splitlines() if line.startswith("udf_rows_total")]
        if len(executors) == 2 and sum(float(line.split()[-1]) for line in lines) > rows / 20:
            break
        time.sleep(0.05)
    executors[0].kill()
    print("killed", flush=True)

threading.Thread(target=kill, daemon=True).start()
frame = spark.range(0, rows, 1, 4).select("id", slower("id").alias("y"))
frame.write.mode("overwrite").parquet(folder + "/out")
tell(spark.read.parquet(folder + "/out"))
"""

SPECULATION = """
spark = session(
    sys.argv[5], **BOTH, spark_executor_memory="512m",
    spark_speculation="true", spark_speculation_interval="100ms",
    spark_speculation_multiplier="1.1", spark_speculation_quantile="0.1", spark_speculation_minTaskRuntime="200ms",
)
straggling = connect(spark, target).function("straggling")
# One of four tasks is slow, until it is run a second time beside itself.
frame = spark.range(0, rows, 1, 4).select("id", straggling("id").alias("y"))
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

# 240 tasks of one batch each, in jobs of 40.
SHORT = """
spark = session("local[2]")
fast = connect(spark, target).function("fast")
process, resident, wrong = psutil.Process(int(sys.argv[6])), [], 0
for first in range(0, rows, rows // 6):
    frame = spark.range(first, first + rows // 6, 1, 40).select("id", fast("id").alias("y"))
    found = frame.agg(F.count("*"), F.sum((F.col("y") != F.col("id") * 3 + 1).cast("long"))).first()
    wrong += rows // 6 - found[0] + found[1]
    maps = len(open(f"/proc/{process.pid}/maps").readlines())
    resident.append(process.memory_info().rss)
    print("server", resident[-1] >> 20, "MB,", maps, "mappings", flush=True)
print("resident", *resident)
print("found", rows - wrong, rows - wrong, wrong, flush=True)
"""


def rows_served(url):
    """The rows that the server has answered with a value. If tasks ran twice, these are more than the job has."""
    with urllib.request.urlopen(url + "/metrics", timeout=30) as page:
        lines = page.read().decode().splitlines()
    return int(sum(float(line.split()[-1]) for line in lines if line.startswith("udf_rows_total") and '"ok"' in line))


@contextlib.contextmanager
def cluster():
    """The URL of a standalone cluster whose two workers have different hosts: Spark copies no task to the same host."""
    port = free_port()
    url, started = f"spark://127.0.0.1:{port}", []
    roles = [("master.Master", ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"])] + [
        ("worker.Worker", ["--host", host, "--webui-port", "0", "-c", "1", "-m", "1g", url])
        for host in ("127.0.0.2", "127.0.0.3")
    ]
    spark_class = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with tempfile.TemporaryDirectory() as folder:
        settings = {**os.environ, "SPARK_WORKER_DIR": folder, "SPARK_LOG_DIR": folder, "PYSPARK_PYTHON": sys.executable}
        try:
            for role, arguments in roles:
                command = [spark_class, f"org.apache.spark.deploy.{role}", *arguments]
                started.append(subprocess.Popen(command, env=settings, stderr=subprocess.DEVNULL, cwd=ROOT))
            yield url
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()


def run(script, rows, *, times=1, master=""):
    """The tally of a job that writes its results, and the output of the last of its runs."""
    server, began = ChaosServer(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as folder:
            for _ in range(times):
                done = subprocess.run(
                    [sys.executable, "-c", START + script, server.target, str(rows), folder, server.metrics, master,
                     str(server.pid)],
                    cwd=ROOT,
                    env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
                    capture_output=True, text=True, timeout=580, check=False,
                )  # fmt: skip
        served = rows_served(server.metrics)
    finally:
        server.kill()
    tally = Tally(rows, time.monotonic() - began, note=f"{served:,} rows served", served=served)
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
    with cluster() as master:
        tally, _ = run(SPECULATION, max(1_000_000 // scale, 100_000), master=master)
    if tally.served <= tally.rows:
        tally.not_exercised = "no task was run a second time"
    return tally


def stream_restarted(scale, seed):
    """SIGKILL of a streaming query in mid-batch, started again from its checkpoint"""
    return run(STREAM, max(500_000 // scale, 100_000), times=2)[0]


def short_tasks(scale, seed):
    """240 short tasks on the server's host, each with a stream and shared memory of its own"""
    # Enough rows of a task for shared memory.
    tally, printed = run(SHORT, max(2_400_000 // scale, 1_200_000))
    resident = [int(size) for line in printed.splitlines() if line.startswith("resident") for size in line.split()[1:]]
    if resident:
        first, last = resident[0], resident[-1]
        tally.note = f"{first >> 20} MB after the first 40 tasks, {last >> 20} MB after all"
        if last > first * MOST_GROWTH:
            tally.failures.append(f"memory grew by {last / first - 1:.0%}")
    return tally


SPARK_FAULTS = (executor_lost, speculation, stream_restarted, short_tasks)
