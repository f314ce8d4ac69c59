"""The load that a server tells its clients: how it is measured, and where it is told."""

import dataclasses
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from grpc import aio

import udf_server as udf
from remote_udf.v1 import service_pb2
from spark_client.base.config import ClientConfig
from spark_client.executor.stream.channels import Channels
from spark_client.executor.stream.endpoints import Endpoints
from spark_client.executor.stream.transport import GrpcTransport
from tests.conftest import serving
from tests.spark_client.scripted import Clock, call_of, chunk_of, everything, stream_of
from tests.waiting import wait_until
from udf_server.hosting.load import MEAN_SECONDS, ReportedLoad
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig
from udf_server.serving.resources import limited_cores
from udf_server.serving.server import running_server


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


class Process:
    """A process whose CPU time the test decides."""

    def __init__(self, cores=1.0):
        self.clock, self.used = Clock(), 0.0
        self.load = ReportedLoad(self.clock, lambda: self.used, cores)

    def run(self, seconds, busy=0.0, streams=1, waiting=(), crowded=False):
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            self.used += busy
            self.load.look(streams, crowded, iter(waiting))


def test_load_is_the_busy_share_of_the_cores_plus_the_seconds_that_messages_wait():
    process = Process(cores=4.0)
    process.run(10 * MEAN_SECONDS, busy=2.0, waiting=(0.0, 3.0))
    assert process.load.load(1) == pytest.approx(0.5 + 1.5, rel=1e-3)
    assert process.load.message(1).cores == 4.0


def test_a_function_that_is_crowded_makes_a_process_busy():
    process = Process(cores=4.0)
    process.run(10 * MEAN_SECONDS, busy=2.0, crowded=True)
    assert process.load.load(1) == pytest.approx(1.0, rel=1e-3)


def test_load_is_a_mean_over_seconds():
    process = Process()
    process.run(MEAN_SECONDS, busy=1.0)
    assert 0.5 < process.load.load(1) < 0.7
    process.run(10 * MEAN_SECONDS)
    assert process.load.load(1) < 0.01


def test_streams_that_have_just_begun_count_like_the_others():
    process = Process()
    process.run(10 * MEAN_SECONDS, busy=0.5, streams=10)
    assert process.load.load(10) == pytest.approx(0.5, rel=1e-3)
    assert process.load.load(20) == pytest.approx(1.0, rel=1e-3)
    assert process.load.load(0) == 0.0


def test_nothing_is_measured_more_than_once_a_second():
    process = Process()
    process.clock.now += 0.9

    def waiting():
        raise AssertionError("looked too early")
        yield

    process.load.look(1, False, waiting())


async def test_a_server_tells_its_load_until_it_drains():
    async with (
        running_server(ServerConfig(port=0, metrics_port=0), Registry([("p", plus_one)])) as server,
        aio.insecure_channel(server.target) as channel,
    ):
        ask = channel.unary_unary(
            "/remote_udf.v1.UdfService/GetProgress",
            request_serializer=service_pb2.GetProgressRequest.SerializeToString,
            response_deserializer=service_pb2.GetProgressResponse.FromString,
        )
        told = await ask(service_pb2.GetProgressRequest())
        assert (told.load.streams, told.load.cores) == (0, limited_cores() or 1)
        assert 0.0 <= told.load.load < 100.0
        server.service.drain()
        assert not (await ask(service_pb2.GetProgressRequest())).HasField("load")


def taking(seconds):
    @udf.scalar(name="work", timeout="60 s")
    def work(x: int) -> int:
        time.sleep(seconds)
        return x + 1

    return work


@pytest.mark.slow
def test_streams_leave_a_slow_server_and_lose_no_row():
    """Rows take ten times as long on one of two servers. Each client is a process of its own, as above."""
    with serving(taking(0.2), threads_per_function=1) as slow, serving(taking(0.02), threads_per_function=1) as fast:
        addresses, end = [slow.target, fast.target], threading.Event()
        call = call_of(taking(0.02), "all")
        call = dataclasses.replace(call, config=dataclasses.replace(call.config, max_stream_seconds=2.0))

        def streams(server):
            return server.metric("udf_streams_open", function="work", version="1")

        def client():
            endpoints = Endpoints("all", resolve=lambda _: [(address, "") for address in addresses])
            stream = stream_of(call, GrpcTransport(call.config, endpoints=endpoints, channels=Channels()))
            for first in itertools.count(0, 2):
                if end.is_set():
                    break
                assert stream.has_room()
                stream.submit(chunk_of(range(first, first + 2), first))
                assert everything(stream) == {first: first + 1, first + 1: first + 2}
                end.wait(0.3)
            return stream.finish().rows_failed, stream.statistics.replays

        with ThreadPoolExecutor(8) as threads:
            clients = [threads.submit(client) for _ in range(8)]
            try:
                wait_until(lambda: streams(slow) + streams(fast) == 8 and streams(slow) >= 3, seconds=30)
                wait_until(lambda: streams(slow) <= 2 and streams(fast) >= 6, seconds=90)
            finally:
                end.set()
            assert [each.result() for each in clients] == [(0, 0)] * 8


@pytest.mark.slow
def test_tasks_of_many_processes_are_spread_over_real_servers():
    """Each client is a process of its own, as far as it knows servers. By turn, some server would have many more."""
    with serving(plus_one) as first, serving(plus_one) as second, serving(plus_one) as third:
        addresses = [server.target for server in (first, second, third)]
        streams = []
        for _ in range(36):
            endpoints = Endpoints("all", resolve=lambda _: [(address, "") for address in addresses])
            transport = GrpcTransport(ClientConfig("all"), endpoints=endpoints, channels=Channels())
            stream = stream_of(call_of(plus_one, "all"), transport)
            assert stream.has_room()
            stream.submit(chunk_of(range(3)))
            assert everything(stream) == {0: 1, 1: 2, 2: 3}
            streams.append(stream)
        found = [
            server.metric("udf_streams_open", function="plus_one", version="1") for server in (first, second, third)
        ]
        for stream in streams:
            stream.finish()
    assert sum(found) == 36
    assert max(found) - min(found) <= 4
