"""udf_crowded_seconds_total: time in which rows wait because all that could serve them is busy."""

import asyncio
import threading

import pytest

import udf_server as udf
from spark_client.base.config import ClientConfig
from spark_client.executor.stream.transport import GrpcTransport
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of
from tests.waiting import wait_until
from udf_server.limits.settings import GuardSettings

LABELS = {"function": "held", "version": "1"}


def beats(server):
    return server.metric("udf_event_loop_lag_seconds_count")


def crowded(server):
    return server.metric("udf_crowded_seconds_total", **LABELS)


def two_streams(server, function):
    """Two streams with one row each, which are in flight."""
    call = call_of(function, server.target)
    streams = [stream_of(call, GrpcTransport(ClientConfig(server.target))) for _ in range(2)]
    for stream in streams:
        stream.submit(chunk_of([1]))
    wait_until(lambda: server.metric("udf_rows_in_flight", **LABELS) == 2)
    return streams


def answered(streams):
    found = [everything(stream) for stream in streams]
    for stream in streams:
        stream.finish()
    return found


@pytest.mark.slow
def test_it_grows_while_rows_wait_for_a_thread_and_no_longer(serve):
    gate = threading.Event()

    @udf.scalar
    def held(x: int) -> int:
        gate.wait(30)
        return x

    server = serve(held, threads_per_function=1)
    streams = two_streams(server, held)
    wait_until(lambda: crowded(server) > 0.5)
    gate.set()
    assert answered(streams) == [{0: 1}, {0: 1}]
    seen = beats(server)
    wait_until(lambda: beats(server) > seen + 1)
    after, seen = crowded(server), beats(server)
    wait_until(lambda: beats(server) > seen + 1)
    assert crowded(server) == after


@pytest.mark.parametrize("guarded", [False, True])
def test_rows_that_run_or_wait_for_the_guard_are_not_crowded(serve, guarded):
    """More servers would not help them."""
    gate, loops = asyncio.Event(), []

    @udf.scalar
    async def held(x: int) -> int:
        loops.append(asyncio.get_running_loop())
        if x:
            await gate.wait()
        return x

    guards = {"held": GuardSettings.parse("held", {"max-concurrency": 1})} if guarded else {}
    server = serve(held, guards=guards)
    streams = two_streams(server, held)
    seen = beats(server)
    wait_until(lambda: beats(server) > seen + 2)
    assert crowded(server) == 0
    loops[0].call_soon_threadsafe(gate.set)
    assert answered(streams) == [{0: 1}, {0: 1}]
