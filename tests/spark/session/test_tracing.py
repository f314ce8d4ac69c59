"""A trace of a real Spark job: from the driver's span over its tasks to the function."""

import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.proto", reason="remote-udf[tracing] is not installed")

from tests.spark_client.otlp import attributes, environment, running_collector, server_process

PLUGIN = """
import udf_server as udf
from opentelemetry import trace

@udf.scalar
async def same(x: int) -> int:
    with trace.get_tracer("author").start_as_current_span("inside"):
        return x
"""

JOB = """
import sys
from pyspark.sql import SparkSession
from spark_client import connect

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.sparkContext.setLocalProperty("traceparent", "00-" + "1f" * 16 + "-" + "2e" * 8 + "-01")
same = connect(spark, sys.argv[1]).function("same")
assert [row[0] for row in spark.range(0, 40, 1, 2).select(same("id")).collect()] == list(range(40))
spark.stop()
"""


@pytest.mark.long
def test_one_trace_leads_from_the_driver_over_the_tasks_to_the_function(tmp_path):
    plugin = tmp_path / "same.py"
    plugin.write_text(PLUGIN)
    with running_collector() as collector, server_process(collector, str(plugin), str(tmp_path)) as (target, _):
        environ = environment(collector) | {"PYSPARK_PYTHON": sys.executable}
        subprocess.run([sys.executable, "-c", JOB, target], env=environ, check=True, timeout=110)
        calls = collector.named("udf.call same@1", 2)
        streams = collector.named("udf.stream same", 2)
        inside = collector.named("inside", 40)
    assert {span.trace_id for _, span in collector.spans} == {bytes([0x1F] * 16)}
    assert {span.parent_span_id for _, span in calls} == {bytes([0x2E] * 8)}
    assert {span.parent_span_id for _, span in streams} == {span.span_id for _, span in calls}
    assert sorted(attributes(span)["udf.partition"] for _, span in calls) == [0, 1]
    assert sum(attributes(span)["udf.rows"] for _, span in calls) == len(inside) == 40
