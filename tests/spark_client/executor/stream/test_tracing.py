"""Traces of real processes: a client below Spark, `udf-server serve`, and a collector that keeps all spans."""

import subprocess
import sys

import pytest

pytest.importorskip("opentelemetry.proto", reason="remote-udf[tracing] is not installed")

from tests.spark_client.otlp import attributes, environment, events, running_collector, server_process

pytestmark = pytest.mark.slow

PLUGIN = """
import os
import pyarrow as pa
import udf_server as udf
from opentelemetry import trace

first = set()

@udf.scalar(retry_strategy="fixed-delay", fixed_delay="1 ms", max_attempts=3)
async def flaky(x: int) -> int:
    if x % 5 == 0 and x not in first:
        first.add(x)
        raise udf.RetryableError("again, with a secret")
    with trace.get_tracer("author").start_as_current_span("look up"):
        return x

@udf.scalar(retry_strategy="fixed-delay", fixed_delay="1 ms", max_attempts=3)
def plain(x: int) -> int:
    return_value = x
    if x % 5 == 0 and x not in first:
        first.add(x)
        raise udf.RetryableError("again")
    trace.get_current_span().add_event("seen")
    return return_value

calls = []

@udf.scalar(retry_strategy="fixed-delay", fixed_delay="1 ms", max_attempts=3, vectorized=True)
def whole(x: pa.Int64Array) -> pa.Int64Array:
    calls.append(1)
    if len(calls) == 1:
        raise udf.RetryableError("again")
    trace.get_current_span().add_event("seen")
    return x

@udf.scalar(timeout="20 s")
async def fatal(x: int) -> int:
    if not os.path.exists("died"):
        open("died", "w").close()
        os._exit(1)
    return x
"""

COMMON = """
import udf_server as udf
from opentelemetry import trace

calls = []

@udf.scalar(batched=True, max_queue_delay="20 s", batch_rows=40, retry_strategy="fixed-delay", fixed_delay="1 ms")
async def common(x: list[int]) -> list[int]:
    calls.append(x)
    if len(calls) == 1:
        raise udf.RetryableError("again, with a secret")
    with trace.get_tracer("author").start_as_current_span("look up") as span:
        span.set_attribute("rows", len(x))
        return x
"""

TWO_STREAMS = """
import sys
import pyarrow as pa
from remote_udf.tracing import flush_spans
from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.functions.directory import list_functions
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import RUNTIME

config = ClientConfig(sys.argv[1])
spec = list_functions(config).find(sys.argv[2])
batch, rows = pa.record_batch({"x": list(range(20))}), 0
engines = [
    RowEngine([PlannedCall(ScalarCall(spec, 1, {}, operation, config), (0,))], RUNTIME, ordered=True)
    for operation in ("operation-1", "operation-2")
]
for engine in engines:
    engine.open(batch.schema)
for engine in engines:
    rows += sum(c.table.num_rows for c in engine.send(batch))
for engine in engines:
    rows += sum(c.table.num_rows for c in engine.drain())
    engine.finish()
    engine.close()
flush_spans()
print(rows)
"""

CLIENT = """
import sys
import pyarrow as pa
from remote_udf.tracing import flush_spans
from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.functions.directory import list_functions
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import RUNTIME

config = ClientConfig(sys.argv[1])
spec = list_functions(config).find(sys.argv[2])
call = ScalarCall(spec, 1, {}, "operation-1", config)
engine = RowEngine([PlannedCall(call, (0,))], RUNTIME, ordered=True)
rows = sum(c.table.num_rows for c in engine.run(iter([pa.record_batch({"x": list(range(20))})])))
flush_spans()
print(rows)
"""


@pytest.fixture
def collector():
    with running_collector() as collector:
        yield collector


def client(collector, target, function, *, code=CLIENT, **more):
    return subprocess.Popen(
        [sys.executable, "-c", code, target, function], env=environment(collector) | more, stdout=subprocess.PIPE
    )


@pytest.mark.parametrize("function", ["flaky", "plain", "whole"])
def test_one_trace_leads_from_the_task_to_the_function_with_its_retries(collector, plugin, tmp_path, function):
    with server_process(collector, plugin(PLUGIN), str(tmp_path)) as (target, _):
        with client(collector, target, function) as process:
            assert process.stdout.read().strip() == b"20"
        ((service, call),) = collector.named(f"udf.call {function}@1")
        ((server, stream),) = collector.named(f"udf.stream {function}")
        batches = [span for _, span in collector.named("udf.batch")]
    assert (service, server) == ("remote-udf-client", "udf-server")
    assert {span.trace_id for _, span in collector.spans} == {call.trace_id}
    assert not call.parent_span_id
    assert stream.parent_span_id == call.span_id
    assert {span.parent_span_id for span in batches} == {stream.span_id}
    assert attributes(call)["udf.rows"] == attributes(stream)["udf.rows"] == 20
    assert attributes(call)["udf.retries"] == attributes(stream)["udf.retries"] > 0
    assert attributes(stream)["udf.operation_id"] == "operation-1"
    assert sum(attributes(span)["udf.rows"] for span in batches) == 20
    retries = [event for span in batches for event in span.events if event.name == "retry"]
    assert len(retries) == (1 if function == "whole" else 4)
    assert attributes(retries[0])["error"] == "RetryableError"
    assert b"secret" not in b"".join(span.SerializeToString() for _, span in collector.spans)
    if function == "flaky":
        own = collector.named("look up")
        assert len(own) == 20
        assert {span.parent_span_id for _, span in own} <= {span.span_id for span in batches}
    else:
        assert "seen" in events(batches[0])


def test_a_common_call_and_its_retries_are_in_the_trace_of_each_stream(collector, plugin, tmp_path):
    with server_process(collector, plugin(COMMON), str(tmp_path)) as (target, _):
        with client(collector, target, "common", code=TWO_STREAMS) as process:
            assert process.stdout.read().strip() == b"40"
        calls = [span for _, span in collector.named("udf.call common@1", 2)]
        streams = [span for _, span in collector.named("udf.stream common", 2)]
        batches = [span for _, span in collector.named("udf.batch", 2)]
        ((_, own),) = collector.named("look up")
    assert attributes(own)["rows"] == 40  # the rows of both streams
    assert len({span.trace_id for span in calls}) == 2
    for call in calls:
        (stream,) = [span for span in streams if span.parent_span_id == call.span_id]
        (batch,) = [span for span in batches if span.parent_span_id == stream.span_id]
        assert {stream.trace_id, batch.trace_id} == {call.trace_id}
        assert attributes(batch)["udf.rows"] == 20
        assert [name for name in events(batch) if name in ("called", "retry")] == ["called", "retry"]
    # A span of the author has one parent: a batch with rows of the call.
    assert own.parent_span_id in {span.span_id for span in batches}
    assert b"secret" not in b"".join(span.SerializeToString() for _, span in collector.spans)


def test_a_server_that_is_lost_and_replaced_is_an_event_of_the_task(collector, plugin, tmp_path):
    path = plugin(PLUGIN)
    with server_process(collector, path, str(tmp_path)) as (target, first):
        with client(collector, target, "fatal") as process:
            first.wait(30)
            with server_process(collector, path, str(tmp_path)):
                assert process.stdout.read().strip() == b"20"
        ((_, call),) = collector.named("udf.call fatal@1")
        ((_, stream),) = collector.named("udf.stream fatal")
    assert [name for name in events(call) if name != "connect failed"] == ["server lost", "replay"]
    assert attributes(call)["udf.replays"] == 1
    assert stream.trace_id == call.trace_id


def test_a_sampler_of_the_environment_is_obeyed_by_both_ends(collector, plugin, tmp_path):
    with (
        server_process(collector, plugin(PLUGIN), str(tmp_path)) as (target, _),
        client(collector, target, "plain", OTEL_TRACES_SAMPLER="always_off") as process,
    ):
        assert process.stdout.read().strip() == b"20"
    # The server has sent all its spans before it ended.
    assert collector.spans == []
