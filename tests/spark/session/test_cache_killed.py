"""Spark applications that are killed with SIGKILL, run again, and pay nothing twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.servers import ChaosServer

pytestmark = [pytest.mark.slow, pytest.mark.long]

ROOT = Path(__file__).parents[3]
PLUGIN = """
import asyncio, os
import udf_server as udf

paid, killed = open(os.environ["PAID"], "a", buffering=1), os.environ["KILLED"]

@udf.scalar(cache_ttl="1 h", buffer_capacity=10, timeout="30 s")
async def charge(x: int) -> int:
    print(x, file=paid)
    await asyncio.sleep(0.1)
    while x % 200 >= 100 and not os.path.exists(killed):
        await asyncio.sleep(0.05)
    return -x
"""
"""A half of the rows of a task, less those in flight, is not paid for until the application has been killed."""
START = """
import sys
from pyspark.sql import SparkSession
from spark_client import connect

target, folder = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "2").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
remote = connect(spark, target)
charge = remote.function("charge")
"""
JOB = """
rows = spark.range(0, 400, 1, 2).select("id", charge("id").alias("y"))
rows.write.mode("overwrite").parquet(folder + "/out")
"""
QUERY = """
rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).parquet(folder + "/in")
(
    rows.select("id", charge("id").alias("y")).writeStream.format("parquet").option("path", folder + "/out")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start().awaitTermination()
)
"""


class World:
    """A server, and the arguments of all calls that its function got."""

    def __init__(self, folder, cache):
        self.folder, self.paid_file, self.killed_file = folder, folder / "paid.txt", folder / "killed"
        plugin = folder / "charging.py"
        plugin.write_text(PLUGIN)
        self.paid_file.touch()
        files = {"PAID": str(self.paid_file), "KILLED": str(self.killed_file)}
        self.server = ChaosServer("--cache-url", cache, plugin=str(plugin), **files)

    def paid(self):
        return sorted(int(line) for line in self.paid_file.read_text().split())

    def spark(self, script):
        return subprocess.Popen(
            [sys.executable, "-c", START + script, self.server.target, str(self.folder)], cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        )  # fmt: skip

    def killed(self, script, calls):
        """Kill the application with all its processes once the function was called this often."""
        process = self.spark(script)
        while len(self.paid()) < calls:
            assert process.poll() is None, process.stderr.read().decode()[-3000:]
            time.sleep(0.01)
        for each in [*psutil.Process(process.pid).children(recursive=True), process]:
            each.send_signal(signal.SIGKILL)
        process.communicate()
        self.killed_file.touch()

    def run(self, script):
        _, problems = self.spark(script).communicate(timeout=100)
        return problems.decode()


def output(spark, folder):
    return sorted((row.id, row.y) for row in spark.read.parquet(str(folder / "out")).collect())


def test_a_killed_application_pays_for_no_row_twice(spark, tmp_path):
    world = World(tmp_path, "memory:")
    try:
        world.killed(JOB, 120)
        problems = world.run(JOB)
        assert output(spark, tmp_path) == [(x, -x) for x in range(400)], problems[-3000:]
        assert world.paid() == list(range(400))
    finally:
        world.server.kill()


def test_a_micro_batch_that_runs_again_pays_for_no_row_twice(spark, tmp_path):
    """The server is restarted as well: its values are in a folder."""
    world = World(tmp_path, f"file://{tmp_path}/cache")
    try:
        spark.range(0, 400, 1, 2).write.parquet(str(tmp_path / "in"))
        world.killed(QUERY, 60)  # of the 200 rows of the first micro-batch
        time.sleep(1.0)  # the calls that ran have ended
        world.server.signal(signal.SIGTERM)
        while not world.server.ended:
            time.sleep(0.02)
        world.server.kill()  # closes its output
        world.server.start()
        before = world.paid()
        assert 60 <= len(before) < 200
        problems = world.run(QUERY)
        assert output(spark, tmp_path) == [(x, -x) for x in range(400)], problems[-3000:]
        assert world.paid() == list(range(400))
    finally:
        world.server.kill()
