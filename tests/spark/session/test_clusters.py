"""The same client in other deployments of Spark: executors of their own, and Spark Connect."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]

CLUSTER_JOB = """
import sys
from pyspark.sql import SparkSession, functions as F
from spark_client import EmbeddedServerFailed, connect

spark = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false").getOrCreate()
remote = connect(spark, plugins=[sys.argv[1]])
plus = remote.function("plus")
frame = spark.range(0, 10_000, 1, 4).select("id", plus("id").alias("y"), F.spark_partition_id().alias("p"))
assert frame.where("y = id + 1").count() == 10_000
rows = remote.with_columns(spark.range(0, 1000, 1, 4), {"y": plus("id")}, output_mode="unordered")
assert sorted(row.y for row in rows.collect()) == list(range(1, 1001))
print("done")
spark.stop()
"""

PLUGIN = """
import udf_server as udf

@udf.scalar
async def plus(x: int) -> int:
    return x + 1
"""


def run(arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **environment},
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )


@pytest.mark.timeout(600)
def test_executors_with_processes_of_their_own_reach_the_embedded_server(plugin, tmp_path):
    script = tmp_path / "job.py"
    script.write_text(CLUSTER_JOB)
    done = run([str(script), plugin(PLUGIN)])
    assert done.returncode == 0, done.stderr[-3000:]
    assert "done" in done.stdout


@pytest.mark.timeout(1530)
def test_every_test_marked_so_passes_on_spark_connect():
    """It runs in a separate process, since one process has either a classic session or a Connect one.

    The classic session has all examples of property tests, and all cases of others.
    """
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=quick", "--cases=1"]
    done = run(["-m", "pytest", *options, "-m", "connect and not long", "tests/spark"], REMOTE_UDF_TEST_SPARK="connect")
    # What failed stands above the frames of the JVM, of which there are hundreds.
    said = "\n".join(line for line in done.stdout.splitlines() if not re.match(r"(E  )?\s+at ", line))
    assert done.returncode == 0, said[-5000:] + done.stderr[-2000:]
    assert "passed" in done.stdout.splitlines()[-1]
