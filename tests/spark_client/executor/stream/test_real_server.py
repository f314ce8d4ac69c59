"""Real `udf-server serve` processes that are frozen, killed and restarted, below Spark."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pyarrow as pa
import pytest

from remote_udf.errors import ErrorCode
from spark_client.base.config import ClientConfig
from spark_client.base.errors import ServerUnavailable
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of

pytestmark = pytest.mark.slow

PLUGIN = """
import asyncio, udf_server as udf

@udf.scalar(timeout="20 s")
async def slowly(x: int) -> int:
    await asyncio.sleep(0.005)
    return x + 1

@udf.scalar(timeout="20 s")
async def other(x: int) -> int:
    await asyncio.sleep(0.003)
    return x + 2
"""


@contextmanager
def server_process(plugin, socket):
    command = [sys.executable, "-m", "udf_server", "serve", "--unix-socket", socket, "--metrics-port", "0"]
    process = subprocess.Popen(
        [*command, "--plugin", plugin, "--no-entry-points", "--drain-seconds", "0.2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield json.loads(process.stdout.readline())["target"], process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Named:
    """The part of a function that `call_of` needs."""

    def __init__(self, target, name):
        self.spec = list_functions(ClientConfig(target)).find(name)


@pytest.fixture
def address(tmp_path):
    return f"{tmp_path}/s.sock"


def test_a_frozen_server_ends_in_a_clear_error_within_its_deadline(plugin, address):
    with server_process(plugin(PLUGIN), address) as (target, process):
        call = call_of(Named(target, "slowly"), target, timeout="1 s", connect_seconds=600)
        stream = stream_of(call, transport_for(call.config))
        stream.submit(chunk_of(range(10)))
        stream.receive()
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        stream.submit(chunk_of(range(10, 20), 10))
        found = everything(stream)
        # The limit is 2 s without a message, half a second to detect it, and the second that a row may take.
        assert 2.0 <= time.monotonic() - began < 60.0  # and not until it is connected, for 600 s
        assert {error.code for error in found.values()} == {ErrorCode.SERVER_UNAVAILABLE}
        assert "the server has said nothing for 2 s" in found[19].message
        stream.close()
        with pytest.raises(ServerUnavailable, match="within 1 s"):
            list_functions(ClientConfig(target, connect_seconds=1))
        process.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_server_killed_in_mid_stream_and_started_again_loses_and_doubles_no_row(plugin, address, ordered):
    path = plugin(PLUGIN)
    with server_process(path, address) as (target, process):
        mode = "ordered" if ordered else "unordered"
        calls = [
            PlannedCall(call_of(Named(target, name), target, buffer_capacity=20, batch_rows=20, output_mode=mode), (0,))
            for name in ("slowly", "other")
        ]

        def open_stream(call, schema):
            streams.append(stream_of(call, transport_for(call.config), schema))
            return streams[-1]

        streams = []
        batches = (pa.record_batch({"x": pa.array(range(n, n + 100))}) for n in range(0, 2000, 100))
        found = []
        run = RowEngine(calls, Runtime(open_stream), ordered=ordered).run(batches)
        while len(found) < 300:
            collect(next(run), found)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with server_process(path, address):
            for completed in run:
                collect(completed, found)
        replays = [stream.statistics.replays for stream in streams]
    assert (found if ordered else sorted(found)) == [(x, x + 1, x + 2) for x in range(2000)]
    assert min(replays) >= 1


def collect(completed, found):
    assert not any(completed.errors)
    found += zip(completed.table.column("x").to_pylist(), *(v.to_pylist() for v in completed.values), strict=True)


def test_a_server_that_stops_in_peace_hands_over_to_the_next(plugin, address):
    path = plugin(PLUGIN)
    with server_process(path, address) as (target, process):
        call = call_of(Named(target, "slowly"), target, buffer_capacity=20)
        stream = stream_of(call, transport_for(call.config))
        stream.submit(chunk_of(range(100)))
        stream.receive()
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    with server_process(path, address):
        stream.submit(chunk_of(range(100, 200), 100))
        found = everything(stream)
        assert {found[row] for row in range(100, 200)} == {row + 1 for row in range(100, 200)}
        stream.finish()
