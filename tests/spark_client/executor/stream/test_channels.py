"""Channels: kept while they work, closed when they have failed and nothing uses them."""

import gc
import queue
import threading
import time
import weakref
from concurrent import futures

import grpc
import pytest
import trustme

import udf_server as udf
from spark_client.base.config import ClientConfig
from spark_client.base.errors import NotARemoteUdfServer, ServerUnavailable
from spark_client.base.security import Security
from spark_client.executor.stream.channels import Channels
from spark_client.executor.stream.endpoints import Endpoint
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.ports import free_port
from tests.spark_client.scripted import call_of, chunk_of, everything, stream_of


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


def is_closed(channel):
    try:
        channel.unary_unary("/nothing").future(b"", timeout=0.01).cancel()
    except ValueError:
        return True
    return False


@pytest.fixture
def made(monkeypatch):
    """Every channel that is created, in order."""
    # A server of an earlier test may have had the same port, and its channel may still be there.
    monkeypatch.setattr("spark_client.executor.stream.channels._channels", {})
    channels = []
    for name in ("insecure_channel", "secure_channel"):
        make = getattr(grpc, name)

        def record(*arguments, make=make, **options):
            channels.append(make(*arguments, **options))
            return channels[-1]

        monkeypatch.setattr(grpc, name, record)
    return channels


@pytest.fixture
def ca(tmp_path):
    path = tmp_path / "ca.pem"
    path.write_bytes(trustme.CA().cert_pem.bytes())
    return path


@pytest.fixture
def nobody():
    """An address without a server."""
    return f"127.0.0.1:{free_port()}"


def list_them(config):
    list_functions(config)


def open_a_stream(config):
    call = call_of(plus_one, config.target, connect_seconds=config.connect_seconds)
    stream_of(call, transport_for(config))


@pytest.mark.parametrize("connect", [list_them, open_a_stream])
def test_no_channel_is_left_of_servers_that_cannot_be_reached(serve, nobody, ca, made, connect):
    # One server has no TLS, the other address has no server: gRPC would retry without end.
    for target in (serve(plus_one).target, nobody):
        with pytest.raises((ServerUnavailable, NotARemoteUdfServer)):
            connect(ClientConfig(target, 0.3, Security(ca_file=str(ca))))
    assert len(made) >= 2
    assert all(map(is_closed, made))


def test_no_channel_is_left_of_a_server_that_was_lost(serve, made):
    server = serve(plus_one)
    call = call_of(plus_one, server.target, timeout="300 ms")
    stream = stream_of(call, transport_for(call.config))
    assert not is_closed(made[0])
    stream.submit(chunk_of([1]))
    assert everything(stream) == {0: 2}
    server.stop()
    stream.submit(chunk_of([2], start=1))
    (error,) = everything(stream).values()
    assert error.code == "SERVER_UNAVAILABLE"
    stream.close()
    assert all(map(is_closed, made))


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: requests)


@pytest.fixture
def echo():
    server = grpc.server(futures.ThreadPoolExecutor(4), handlers=[Echo()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield Endpoint(f"127.0.0.1:{port}")
    server.stop(None).wait()


class Talk:
    """An open call that sends one message at a time."""

    def __init__(self, channels, endpoint, security=None):
        self._turn, self._ended = threading.Semaphore(0), False
        self.channel, self.answers = channels.start(
            endpoint, security or Security(), lambda channel: channel.stream_stream("/echo")(self._requests())
        )

    def _requests(self):
        while self._turn.acquire() and not self._ended:
            yield b"hello"

    def says(self):
        self._turn.release()
        return next(self.answers)

    def end(self):
        self._ended = True
        self._turn.release()
        assert list(self.answers) == []


def test_a_failed_channel_is_closed_when_its_last_call_has_ended(echo, made):
    channels = Channels()
    one, two = Talk(channels, echo), Talk(channels, echo)
    assert len(made) == 1
    channels.failed(one.channel)
    channels.failed(two.channel)
    three = Talk(channels, echo)
    assert [talk.says() for talk in (one, two, three)] == [b"hello"] * 3
    assert [is_closed(channel) for channel in made] == [False, False]
    one.end()
    two.end()
    three.end()
    Talk(channels, echo).end()
    assert [is_closed(channel) for channel in made] == [True, False]


def test_a_call_is_kept_until_it_has_ended(echo, made):
    channels, requests = Channels(), queue.SimpleQueue()
    call = weakref.ref(begun(channels, echo, requests))
    gc.collect()
    assert call() is not None
    requests.put(None)
    while call() is not None:
        time.sleep(0.01)


def begun(channels, endpoint, requests):
    def begin(channel):
        return channel.stream_stream("/echo")(iter(requests.get, None))

    return channels.start(endpoint, Security(), begin)[1]


@pytest.mark.long
def test_streams_begin_while_the_collector_runs(serve):
    # If it collected calls that had not ended, gRPC held its locks in two orders, and a stream in thousands hung.
    server, before = serve(plus_one), gc.get_threshold()
    gc.set_threshold(20, 2, 2)
    try:
        for number in range(2_000):
            call = call_of(plus_one, server.target)
            stream = stream_of(call, transport_for(call.config))
            stream.submit(chunk_of([number]))
            assert everything(stream) == {0: number + 1}
            stream.finish()
            stream.close()
    finally:
        gc.set_threshold(*before)


def test_a_channel_with_old_certificates_is_closed_when_its_last_call_has_ended(echo, ca, made):
    channels = Channels(lambda endpoint, security: grpc.insecure_channel(endpoint.address))
    security = Security(ca_file=str(ca))
    talk = Talk(channels, echo, security)
    ca.write_bytes(trustme.CA().cert_pem.bytes())
    Talk(channels, echo, security).end()
    assert (talk.says(), [is_closed(channel) for channel in made]) == (b"hello", [False, False])
    talk.end()
    Talk(channels, echo, security).end()
    assert [is_closed(channel) for channel in made] == [True, False]
