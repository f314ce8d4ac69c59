"""Limits of connections and streams: over real connections, with clients that leave them open and idle."""

import asyncio
import contextlib
import json
import resource
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import udf_server as udf
from remote_udf.messages import read_response
from spark_client.executor.stream.transport import transport_for
from tests.chaos.proxy import Proxy
from tests.fuzz.http2 import Peer
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.udf_server.talk import Talk, batch, eventually, opening
from tests.waiting import wait_until
from udf_server.base.open_files import affordable_connections
from udf_server.streams import service


@udf.scalar
async def same(x: int) -> int:
    return x


def kinds(call):
    """The kinds of messages until the server ends the stream, an error as its code."""
    found = []
    for message in call:
        envelope, _ = read_response(message)
        kind = envelope.WhichOneof("response")
        found.append(envelope.error.code if kind == "error" else kind)
    return found


# Streams.


async def test_a_stream_that_is_open_for_nothing_is_ended():
    async with Talk(same) as talk:
        await talk.open("same")
        talk.send(batch(0, 0, [1]))
        assert (await talk.receive()).result.rows == 1
        talk.stream.end_if_idle(3600.0, 3600.0)
        talk.stream.end_if_idle(3600.0, 0.0)
        error = (await talk.receive()).error
        assert (error.code, error.retryable) == ("IDLE", True)
        await talk.ended()
    assert talk.metric("udf_streams_open", function="same", version="1") == 0


async def test_a_stream_that_says_nothing_is_ended_before_it_is_opened():
    async with Talk(same) as talk:
        await eventually(lambda: talk.stream._main is not None)
        talk.stream.end_if_idle(0.0, 3600.0)
        assert (await talk.receive()).error.code == "IDLE"
        await talk.ended()


async def test_a_stream_whose_function_is_at_work_is_not_idle():
    release = asyncio.Event()
    loop = asyncio.get_running_loop()

    @udf.scalar
    async def waits(x: int) -> int:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(release.wait(), loop))
        return x

    async with Talk(waits) as talk:
        await talk.open("waits")
        talk.send(batch(0, 0, [1]))
        await eventually(lambda: talk.metric("udf_rows_in_flight", function="waits", version="1") == 1)
        talk.stream.end_if_idle(0.0, 0.0)
        release.set()
        assert (await talk.receive()).result.rows == 1


@pytest.mark.slow
async def test_a_stream_is_not_idle_because_its_function_took_long_to_open():
    @udf.scalar
    class Loading:
        async def open(self):
            await asyncio.sleep(1.0)

        async def eval(self, x: int) -> int:
            return x

    async with Talk(Loading) as talk:
        await talk.open("loading")
        talk.stream.end_if_idle(3600.0, 0.9)
        talk.send(batch(0, 0, [1]))
        assert (await talk.receive()).result.rows == 1


async def test_a_client_that_reads_nothing_does_not_hold_its_stream():
    async with Talk(same) as talk:
        await talk.open("same")
        talk.reads.clear()
        talk.send(batch(0, 0, [1]))
        await eventually(lambda: talk.writes == 2)
        talk.stream.end_if_idle(3600.0, 0.0)
        await talk.ended()
    assert talk.metric("udf_rows_in_flight", function="same", version="1") == 0


@pytest.mark.slow
async def test_a_client_that_reads_nothing_keeps_its_place_and_nothing_else(serve, caplog):
    serving = serve(same, idle_seconds=1.0, max_streams_per_caller=1)
    port = int(serving.target.rpartition(":")[2])
    message = opening("same")

    def is_open():
        return serving.metric("udf_streams_open", function="same", version="1")

    async def end_of_another():
        async with Peer(port) as peer:
            stream = peer.open()
            await peer.send(stream, struct.pack(">BI", 0, len(message)) + message)
            peer.half_close(stream)
            assert await peer.wait(stream, 20)
            return [read_response(each)[0].error.code for each in stream.messages()][-1]

    async with Peer(port, window=0) as peer:
        stream = peer.open()
        await peer.send(stream, struct.pack(">BI", 0, len(message)) + message)
        await eventually(lambda: is_open() == 1)
        await eventually(lambda: is_open() == 0)
        # gRPC cannot end a stream while it is sending a message of it.
        assert not stream.ended
        assert await end_of_another() == "OVERLOADED"
    async with asyncio.timeout(20):
        while await end_of_another():
            pass
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_client_of_ours_goes_on_after_its_stream_was_idle(serve):
    serving = serve(same)
    call = call_of(same, serving.target)
    stream = stream_of(call, transport_for(call.config))
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 1}
    for open_stream in list(serving.server.service._open):
        serving.loop.call_soon_threadsafe(open_stream.end_if_idle, 0.0, 0.0)
    wait_until(lambda: not serving.metric("udf_streams_open", function="same", version="1"))
    stream.submit(chunk_of([2], 1))
    assert everything(stream) == {1: 2}
    stream.finish()


def test_idle_streams_are_found_by_the_server_itself(serve, opened, monkeypatch):
    monkeypatch.setattr(service, "OPEN_SECONDS", 0.2)
    assert kinds(opened(serve(same).target)) == ["IDLE"]


def test_one_caller_cannot_have_all_streams(serve, opened):
    serving = serve(same, max_streams_per_caller=2)
    for _ in range(2):
        assert read_response(next(opened(serving.target, opening("same"))))[0].HasField("opened")
    error = read_response(next(opened(serving.target, opening("same"))))[0].error
    assert (error.code, error.retryable) == ("OVERLOADED", True)
    assert "ipv4:127.0.0.1 has 2 streams open" in error.message
    assert serving.metric("udf_streams_rejected_total", code="OVERLOADED") == 1


@pytest.mark.slow
def test_streams_of_a_client_that_vanished_are_ended(serve, opened):
    serving = serve(same, keepalive_seconds=1)
    proxy = Proxy(int(serving.target.rpartition(":")[2]), 7)
    try:
        assert read_response(next(opened(proxy.target, opening("same"))))[0].HasField("opened")
        proxy.swallow = True
        wait_until(lambda: not serving.server.service.streams)
    finally:
        proxy.close()


# Connections.


@pytest.mark.slow
def test_silent_connections_leave_health_checks_and_later_calls_alone(plugin):
    """The server's process may open only few files."""
    path = plugin("import udf_server as udf\n@udf.scalar\nasync def same(x: int) -> int:\n    return x\n")
    command = (
        f"ulimit -n 400; exec {sys.executable} -c 'import udf_server.serving.grpc_server as s; "
        "s.HANDSHAKE_SECONDS = 1.0; "
        "from udf_server.commands.cli import main; main()' "
        f"serve --plugin {path} --no-entry-points --port 0 --metrics-port 0"
    )
    server = subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with contextlib.ExitStack() as stack:
        stack.callback(server.stdout.close)
        stack.callback(server.wait)
        stack.callback(server.kill)
        ready = json.loads(server.stdout.readline())
        for number in range(600):
            port = int((ready["target"] if number % 2 else ready["metrics"]).rpartition(":")[2])
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        with urllib.request.urlopen(ready["metrics"] + "/livez", timeout=20) as answer:
            assert answer.status == 200
        # On a busy machine the server is not ready until it has closed connections.
        wait_until(lambda: _is_ready(ready["metrics"]))
        call = call_of(same, ready["target"])
        stream = stream_of(call, transport_for(call.config))
        stream.submit(chunk_of([1]))
        assert everything(stream) == {0: 1}
        stream.finish()


def _is_ready(url):
    try:
        with urllib.request.urlopen(url + "/readyz", timeout=20) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        error.close()
        return False


@pytest.mark.parametrize(
    ("soft", "hard", "raised", "connections"),
    [
        (1024, 1 << 20, 8192 + 256, 8192),
        (1 << 20, 1 << 20, None, 8192),
        (1024, 1024, None, 768),
        (256, 4096, 4096, 3840),
        (100, 100, None, 50),
        (-1, -1, None, 8192),
    ],
)
def test_connections_leave_files_for_the_rest(monkeypatch, soft, hard, raised, connections):
    limits = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda which, wanted: limits.__setitem__(slice(None), wanted))
    assert affordable_connections(8192) == connections
    assert limits[0] == (soft if raised is None else raised)
