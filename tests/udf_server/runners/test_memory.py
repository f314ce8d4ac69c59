"""The memory of a server process is bounded, whatever its clients do."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from remote_udf.messages import read_response
from tests.properties import few_quickly
from tests.udf_server.talk import batch, finish, opening
from tests.waiting import wait_until
from udf_server.runners.room import PIECE_BYTES

PLUGIN = """
import pyarrow as pa
import udf_server as udf

@udf.scalar
async def in_a_loop(x: int) -> str:
    return f"{x:09}" * 10_000

@udf.scalar
def in_threads(x: int) -> str:
    return f"{x:09}" * 10_000

@udf.scalar(vectorized=True)
def vectorized(x: pa.Int64Array) -> pa.StringArray:
    return pa.array([f"{each:09}" * 10_000 for each in x.to_pylist()])

@udf.scalar
async def huge_in_a_loop(x: int) -> str:
    return "x" * x

@udf.scalar
def huge_in_threads(x: int) -> str:
    return "x" * x

@udf.scalar
async def small(x: int) -> int:
    return x
"""
ROWS = 20_000
"""Their values take 1.8 GB, their arguments 160 kB."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc"),
]


class Process:
    """A server process."""

    def __init__(self, plugin, *flags):
        command = [sys.executable, "-m", "udf_server", "serve", "--plugin", plugin, "--no-entry-points"]
        command += ["--port", "0", "--metrics-port", "0", "--stop-with-stdin", *flags]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        ready = json.loads(self.process.stdout.readline())
        self.target, self.url = ready["target"], ready["metrics"]

    def resident(self):
        """Bytes in memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def metric(self, name, **labels):
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=20) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            samples = [sample for family in families for sample in family.samples]
        return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def server(plugin):
    """Starts a server process with flags."""
    with contextlib.ExitStack() as stack:

        def start(*flags):
            process = Process(plugin(PLUGIN), *flags)
            stack.callback(process.end)
            return process

        yield start


@pytest.fixture
def started(opened):
    """A stream of a function whose client reads no more than Opened."""

    def start(target, function, *messages, **fields):
        call = opened(target, opening(function, **fields), *messages)
        assert read_response(next(call))[0].HasField("opened")
        return call

    return start


@pytest.mark.parametrize(
    ("function", "mode"),
    few_quickly(1, [
        ("in_a_loop", "ordered"), ("vectorized", "unordered"), ("in_threads", "ordered"), ("in_threads", "unordered"),
        ("in_a_loop", "unordered"), ("vectorized", "ordered"),
    ]),
)  # fmt: skip
def test_results_of_a_client_that_does_not_read_are_bounded_and_neighbours_stay_well(server, started, function, mode):
    process = server()
    before = process.resident()
    # A vectorized function gets a thousand rows at a time, of 90 MB.
    step = 1_000
    messages = [batch(number, number * step, range(step)) for number in range(ROWS // step)]
    call = started(process.target, function, *messages, options={"output-mode": mode})
    wait_until(lambda: process.metric("udf_result_waits_total", function=function))
    most, until_then = 0, time.monotonic() + 2
    while time.monotonic() < until_then:
        most = max(most, process.resident() - before)
        time.sleep(0.02)
    # For a vectorized function the result of one call exists as Python values, as an array, and as a copy. For threads,
    # each thread also keeps memory that it has used.
    assert most < 400 << 20
    assert process.metric("udf_result_bytes", function=function) < 120 << 20
    with urllib.request.urlopen(f"{process.url}/readyz", timeout=10) as answer:
        assert answer.status == 200
    with grpc.insecure_channel(process.target) as channel:
        check = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
        assert check.status == health_pb2.HealthCheckResponse.SERVING
    for neighbour in ("small", function):
        other = started(process.target, neighbour, batch(0, 0, [1]), finish())
        kinds = [read_response(message)[0].WhichOneof("response") for message in other]
        assert kinds[-2:] == ["result", "finished"]
    # A client that reads late gets everything.
    rows = 0
    while rows < ROWS:
        envelope, _ = read_response(next(call))
        rows += envelope.result.rows
    wait_until(lambda: not process.metric("udf_held_bytes"))


def test_a_client_that_never_reads_is_ended_and_what_it_held_is_free(server, started):
    """But for the message that gRPC keeps until the client reads or disconnects."""
    process = server("--idle-seconds", "1")
    call = started(process.target, "in_a_loop", batch(0, 0, range(5_000)))
    wait_until(lambda: process.metric("udf_result_waits_total", function="in_a_loop"))
    wait_until(lambda: not process.metric("udf_streams_open"))
    wait_until(lambda: not process.metric("udf_result_bytes"))
    wait_until(lambda: 0 < process.metric("udf_held_bytes") < 2 * PIECE_BYTES)
    call.cancel()
    wait_until(lambda: not process.metric("udf_held_bytes"))


def test_a_full_server_says_so_and_a_stream_that_is_read_goes_on(server, started):
    """Other streams fill the server and are not read."""
    process = server("--max-server-bytes", str(8 << 20), "--max-stream-result-bytes", str(6 << 20))
    reader = started(process.target, "in_threads", batch(0, 0, range(500)), finish())
    for _ in range(3):
        started(process.target, "in_a_loop", batch(0, 0, range(500)))
    wait_until(lambda: process.metric("udf_held_bytes") >= 8 << 20)
    error = read_response(list(started(process.target, "small", batch(0, 0, [1]), finish()))[-1])[0].error
    assert (error.code, error.retryable) == ("OVERLOADED", True)
    assert "max_server_bytes is 8388608" in error.message
    answers = [read_response(message)[0] for message in reader]
    assert sum(answer.result.rows for answer in answers) == 500
    assert answers[-1].WhichOneof("response") == "finished"


@pytest.mark.parametrize("function", few_quickly(1, ["huge_in_a_loop", "huge_in_threads"]))
def test_the_memory_of_a_value_that_is_too_large_is_returned_to_the_system(server, started, function):
    process = server()
    before = process.resident()
    answers = [
        read_response(message)[0] for message in started(process.target, function, batch(0, 0, [600 << 20]), finish())
    ]
    assert b"RESULT_TOO_LARGE" in answers[-2].result.errors
    wait_until(lambda: process.resident() - before < 120 << 20)
