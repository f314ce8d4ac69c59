"""Spark Declarative Pipelines, whose files must not register functions: remote functions and aggregates as Columns."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

PLUGIN = """
import udf_server as udf
from tests.spark.aggregate.mean import MyMean


@udf.scalar
def triple(x: int) -> int:
    return x * 3


class MyAvg(MyMean):
    name = "my_avg"
"""
SPEC = """
name: plain
storage: file://{}/storage
libraries:
  - glob:
      include: transformations/**
"""
TRANSFORMATIONS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_client import connect

spark = SparkSession.active()
remote = connect(spark, plugins=[{plugin!r}])
triple, my_avg = remote.function("triple"), remote.function("my_avg")


@dp.materialized_view
def triples():
    return spark.range(10).select((F.col("id") % 2).alias("k"), triple("id").alias("v"))


@dp.materialized_view
def means():
    return spark.read.table("triples").groupBy("k").agg(my_avg.column("v").alias("mean"))
"""


@pytest.mark.long
def test_a_file_of_a_declarative_pipeline_calls_remote_functions_and_aggregates(tmp_path: Path):
    plugin, folder = tmp_path / "my_udfs.py", tmp_path / "transformations"
    folder.mkdir()
    plugin.write_text(PLUGIN)
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(tmp_path))
    (folder / "means.py").write_text(TRANSFORMATIONS.format(plugin=str(plugin)))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    environment |= {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [Path(pyspark.__file__).parent / "bin" / "spark-pipelines", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "Run is COMPLETED" in done.stdout + done.stderr, done.stderr[-4000:]
    found = pq.read_table(tmp_path / "spark-warehouse" / "means").to_pylist()
    assert sorted(found, key=lambda row: row["k"]) == [{"k": 0, "mean": 12.0}, {"k": 1, "mean": 15.0}]
