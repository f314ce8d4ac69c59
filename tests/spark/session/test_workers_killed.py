"""Python workers and executors of Spark that are killed or frozen in the middle of calls: every row counts once."""

import os
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.servers import ChaosServer

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
PLUGIN = """
import asyncio, os, time
from dataclasses import dataclass
from typing import Annotated
import udf_server as udf

paid = open(os.environ["PAID"], "a", buffering=1)

@udf.scalar(cache_ttl="1 h", cache_errors="1 h", buffer_capacity=40, max_attempts=3, timeout="60 s")
async def charge(x: int, context: udf.CallContext) -> int:
    await asyncio.sleep(0.05)
    if x % 7 == 0 and context.attempt == 1:
        raise udf.RetryableError("again")
    print(x, file=paid)
    if x % 11 == 0:
        raise ValueError("bad")
    return -x

class Totals(udf.AggregateFunction):
    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def accumulate(self, accumulator, x: int):
        accumulator[0] += x
        accumulator[1] += 1

    def merge(self, accumulator, others):
        time.sleep(0.01)
        for other in others:
            accumulator[0] += other[0]
            accumulator[1] += other[1]

    def get_value(self, accumulator) -> list[int]:
        return accumulator

@dataclass
class Count:
    n: int = 0

class Numbered(udf.ProcessTableFunction):
    returns = "n bigint, id bigint"

    def eval(
        self, ctx, count: Annotated[Count, udf.StateHint()],
        rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE],
    ):
        time.sleep(0.001)
        count.n += 1
        yield (count.n, rows["id"])
"""
JOB = """
import contextlib, random, sys, threading, time, urllib.request
from collections import Counter
import psutil
from pyspark.sql import SparkSession, functions as F
from spark_client import connect

target, metrics, folder, victim = sys.argv[1:]
spark = (
    SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
    .config("spark.cores.max", "2").config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
    .config("spark.executor.memory", "700m").config("spark.task.maxFailures", "10")
    .config("spark.sql.shuffle.partitions", "3").config("spark.sql.adaptive.enabled", "false")
    .config(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    .getOrCreate()
)
remote = connect(spark, target)
chosen, hits = random.Random(victim), []

def processes():
    found = {"executor": [], "worker": []}
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it may be gone
            command = " ".join(child.cmdline())
            if "CoarseGrainedExecutorBackend" in command:
                found["executor"].append(child)
            elif "daemon" in command and "java" not in child.parent().name():
                found["worker"].append(child)
    return found

def at_work():
    with urllib.request.urlopen(metrics + "/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("udf_streams_open{")) > 0

def strike(over):
    while not at_work():
        if over.wait(0.01):
            return
    over.wait(chosen.uniform(0.1, 0.6))
    alive = processes()["executor" if victim == "executor" else "worker"]
    if alive and not over.is_set():
        hit = chosen.choice(alive)
        with contextlib.suppress(psutil.NoSuchProcess):
            if victim == "frozen worker":
                hit.suspend()
                over.wait(8.0)
                hit.resume()
            else:
                hit.kill()
            hits.append(hit.pid)

@contextlib.contextmanager
def under_attack():
    over = threading.Event()
    thread = threading.Thread(target=strike, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()

rows, letters = 1200, folder + "/letters"
good, bad = [x for x in range(rows) if x % 11], [x for x in range(rows) if not x % 11]
frame = spark.range(0, rows, 1, 3)
charged = remote.with_columns(
    frame, {"y": remote.function("charge")("id")}, on_error="dead-letter", dead_letter=letters
)
with remote.summary() as summary, under_attack():
    remote.write_parquet(charged, folder + "/out")
assert sorted((row.id, row.y) for row in spark.read.parquet(folder + "/out").collect()) == [(x, -x) for x in good]
assert sorted(row.id for row in spark.read.parquet(letters).collect()) == bad
tasks, total = summary.total()
assert (tasks, total.rows, total.failed) == (3, rows, len(bad)), (tasks, total)

keyed = spark.range(0, 6_000, 1, 3).select((F.col("id") % 150).alias("k"), "id")
with under_attack():
    found = remote.group_by(keyed, "k").agg(remote.function("totals", kind="aggregate")("id").alias("t")).collect()
keys = {k: range(k, 6_000, 150) for k in range(150)}
assert {row.k: tuple(row.t) for row in found} == {k: (sum(ids), len(ids)) for k, ids in keys.items()}
assert len(found) == 150

def numbered(rows):
    return remote.process("numbered", rows, partition_by="k", uid="numbered").select("k", "n", "id")

def require_numbers(found):
    assert sorted(row.id for row in found) == list(range(2_000))
    assert Counter((row.k, row.n) for row in found) == Counter(
        (k, n + 1) for k in range(150) for n in range(len(range(k, 2_000, 150)))
    )

few = keyed.where("id < 2000")
with under_attack():
    found = numbered(few).collect()
require_numbers(found)

few.write.parquet(folder + "/in")  # a micro-batch from each of three files
stream = numbered(spark.readStream.schema(few.schema).option("maxFilesPerTrigger", 1).parquet(folder + "/in"))
sink = stream.writeStream.format("parquet").option("path", folder + "/numbered").trigger(availableNow=True)
with under_attack():
    sink.option("checkpointLocation", folder + "/checkpoint").start().awaitTermination()
require_numbers(spark.read.parquet(folder + "/numbered").collect())
print("hits", len(hits), flush=True)
"""


def held(server):
    """What the server holds for streams."""
    names = ("udf_streams_open", "udf_rows_in_flight", "udf_held_bytes", "udf_result_bytes", "udf_cache_orphaned_rows")
    with urllib.request.urlopen(server.metrics + "/metrics") as page:
        lines = page.read().decode().splitlines()
    return [line for line in lines if line.startswith(names) and float(line.split()[-1])]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["worker", "frozen worker", "executor"])
def test_rows_letters_statistics_and_payments_are_right_after(victim, tmp_path):
    (tmp_path / "paid.txt").touch()
    (tmp_path / "charging.py").write_text(PLUGIN)
    server = ChaosServer(plugin=str(tmp_path / "charging.py"), PAID=str(tmp_path / "paid.txt"))
    try:
        done = subprocess.run(
            [sys.executable, "-c", JOB, server.target, server.metrics, str(tmp_path), victim], cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=580, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        assert int(done.stdout.split()[-1]) > 0, "nothing was hit"
        paid = Counter(map(int, (tmp_path / "paid.txt").read_text().split()))
        assert paid == Counter(range(1200)), "a row was paid for twice"
        until = time.monotonic() + 15
        while held(server) and time.monotonic() < until:
            time.sleep(0.1)
        assert not held(server)
        assert "/memfd:" not in Path(f"/proc/{server.pid}/maps").read_text()
    finally:
        server.kill()
