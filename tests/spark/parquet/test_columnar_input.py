"""Sources that hold Arrow: Spark passes their batches on unchanged, and pairs them with those of the output.

Spark's only such source is its Arrow cache, here with one batch per partition: with more of them Spark 4.3.0
reads batches that it has released, with any function. tests/spark_client/executor/scalar/test_rows.py has several
batches.
"""

import subprocess
import sys

import pytest
from pyspark.version import __version__

if tuple(map(int, __version__.split(".")[:2])) < (4, 3):
    pytest.skip("Spark has no source that holds Arrow", allow_module_level=True)

PLUGIN = """
import udf_server as udf

@udf.scalar(vectorized=True, parameters="x bigint", returns="bigint")
def same(x):
    return x

@udf.scalar
async def odd(x: int) -> int:
    if x % 2:
        return x
    raise ValueError(f"{x} is even")
"""

JOB = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from spark_client import connect

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.cache.serializer", "org.apache.spark.sql.execution.columnar.ArrowCachedBatchSerializer")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
assert spark.conf.get("spark.sql.execution.arrow.pythonUDF.columnarInput.enabled") == "true"
remote = connect(spark, plugins=[sys.argv[1]])
same, odd = remote.function("same"), remote.function("odd")
rows = 5050
cached = spark.range(0, rows, 1, 2).select("id", F.concat(F.lit("v"), "id").alias("text")).cache()
cached.count()


def check(frame, kept=lambda number: True):
    wanted = [(number, number, f"v{number}") for number in range(rows) if kept(number)]
    found = sorted(tuple(row) for row in frame.collect())
    assert found == wanted, [pair for pair in zip(found, wanted) if pair[0] != pair[1]][:3]


check(cached.select("id", same("id").alias("x"), "text"))
check(cached.select("id", same(same("id")).alias("x"), "text").where(same("id") % 3 == 0), lambda n: n % 3 == 0)
failed = odd.with_options(on_error="column")("id")
check(cached.select("id", failed.value.alias("x"), "text").where("x IS NOT NULL"), lambda n: n % 2)
remote.register()
cached.createOrReplaceTempView("cached")
check(remote.sql("SELECT id, same(id) AS x, text FROM cached WHERE same(id) > 2500"), lambda n: n > 2500)
check(remote.with_columns(cached, {"x": same("id")}).select("id", "x", "text"))
spark.stop()
"""


@pytest.mark.long
def test_the_values_of_rows_from_an_arrow_source_stay_with_their_rows(tmp_path):
    plugin = tmp_path / "some_udfs.py"
    plugin.write_text(PLUGIN)
    subprocess.run([sys.executable, "-c", JOB, str(plugin)], check=True, timeout=110)
