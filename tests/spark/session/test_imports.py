"""A job and its Python workers import only what its calls need, because each new process takes that time."""

import subprocess
import sys

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import udf_server as udf
from spark_client.planning import operators

WORKER = """
import pickle, sys
import pyarrow as pa

operate, batches = pickle.load(sys.stdin.buffer)
rows = sum(batch.num_rows for batch in operate(iter(pa.ipc.open_stream(batches))))
buildings = ("spark_client.models", "spark_client.parquet", "spark_client.shell")
unused = {"pandas", "pyarrow.dataset", "udf_server", *(name for name in sys.modules if name.startswith(buildings))}
print(rows, *(unused & sys.modules.keys()))
"""
"""Runs an operator in a new interpreter."""
JOB = """
import gc, sys
import pyarrow as pa
from pyspark.sql import SparkSession
from spark_client import connect

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
remote = connect(spark, sys.argv[1])
frame = spark.range(3).toDF("x")
rows = remote.with_columns(frame, {"y": remote.function("plus_one")("x")}).collect()
rows += remote.sql("SELECT x, plus_one(x) FROM {frame}", frame=frame).collect()
buildings = ("spark_client.models", "spark_client.parquet", "spark_client.shell")
print(len(rows), *(name for name in sys.modules if name.startswith(buildings)))

def exempt(batches):
    for batch in batches:
        yield pa.record_batch({"objects": [gc.get_freeze_count()]})

(worker,) = spark.range(1).mapInArrow(exempt, "objects long").collect()
print(worker.objects > 10_000, gc.get_freeze_count())
spark.stop()
"""


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


@udf.scalar(vectorized=True)
def doubled(x: pa.Int64Array) -> pa.Int64Array:
    return pa.array([2 * value for value in x.to_pylist()], pa.int64())


@pytest.mark.parametrize("called", [plus_one, doubled])
def test_a_worker_imports_neither_pandas_nor_side_buildings_for_scalar_calls(remote, spark, monkeypatch, called):
    made = []
    real = operators.map_in_arrow
    monkeypatch.setattr(operators, "map_in_arrow", lambda *given: made.append(given[1]) or real(*given))
    session = remote(called)
    session.with_columns(spark.range(3).toDF("x"), {"y": session.function(called.spec.name)("x")})
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"x": [1, 2, 3]})
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write(batch)
    given = cloudpickle.dumps((made[0], sink.getvalue().to_pybytes()))
    done = subprocess.run([sys.executable, "-c", WORKER], input=given, capture_output=True, timeout=60, check=False)
    assert (done.stdout.decode(), done.stderr.decode()) == ("3\n", "")


def test_a_job_with_scalar_calls_imports_no_side_building_and_collects_no_module_of_its_worker_again(serve):
    command = [sys.executable, "-c", JOB, serve(plus_one).target]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=110, check=True)
    assert done.stdout == "6\nTrue 0\n"
