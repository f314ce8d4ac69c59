"""Where a stream goes that a server sends to another port of its host."""

import itertools
import socket

import pytest

import udf_server as udf
from remote_udf.errors import StreamError
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.errors import NotARemoteUdfServer
from spark_client.base.transport import Place
from spark_client.executor.stream import connecting, connection
from spark_client.executor.stream.ports import RELAYED_SECONDS, Elsewhere, Ports
from spark_client.executor.stream.silence import SilenceWatch
from tests.spark_client.scripted import (
    SILENCE,
    Clock,
    Played,
    Scripted,
    call_of,
    chunk_of,
    everything,
    gone,
    honest,
    progress,
    refused,
    stream_of,
)

SERVER = "10.0.0.7:50051"


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


@pytest.fixture(autouse=True)
def ports(monkeypatch):
    """What this process knows of ports: nothing, before each test."""
    known, watch = Ports(), SilenceWatch(look_seconds=0.01)
    monkeypatch.setattr(connection, "process_watch", lambda: watch)
    for module in (connection, connecting):
        monkeypatch.setattr(module, "process_ports", lambda: known)
    return known


def sends_to(port):
    """Sends a stream that may be sent to another port to this one, and serves it otherwise."""

    def script(requests):
        first = next(requests)
        if first.envelope.open.takes_port:
            yield encode(pb.ExecuteResponse(elsewhere=pb.Elsewhere(port=port, route="udf-x/g0")))
        else:
            yield from honest(itertools.chain([first], requests))

    return script


class Host(Scripted):
    """A server at one address that sends streams to a port, at which another script plays."""

    def __init__(self, at_port, port=50052):
        super().__init__(sends_to(port))
        self.at_port, self.places = at_port, []

    def servers(self):
        return (SERVER,)

    def execute(self, requests, avoid=(), place=None):
        self.places.append(place)
        played = Played(self.at_port if place is not None and place.address else self.scripts[0], requests)
        played.server = SERVER
        self.streams.append(played)
        return played

    def answers(self, **options):
        """What a stream answers; nothing may be lost or repeated on the way."""
        stream = stream_of(call_of(plus_one, **options), self)
        stream.submit(chunk_of([1, 2, 3]))
        found = everything(stream)
        assert stream.finish().rows_in == 3
        return found


ANSWERS = {0: 2, 1: 3, 2: 4}
PLACE = Place(SERVER, "10.0.0.7:50052", "udf-x/g0")


def opens_slowly(requests):
    first = next(requests)
    assert first.envelope.open.route == "udf-x/g0"
    yield progress()
    yield from honest(itertools.chain([first], requests))


def hangs(requests):
    next(requests)
    yield SILENCE


def is_another_server(requests):
    next(requests)
    yield refused("UNKNOWN_FUNCTION", retryable=False)


def is_reloaded(requests):
    next(requests)
    yield refused("SHUTTING_DOWN", retry_after=30)


def sends_on(requests):
    next(requests)
    yield encode(pb.ExecuteResponse(elsewhere=pb.Elsewhere(port=22, route="udf-x/g0")))


def is_something_else(requests):
    raise NotARemoteUdfServer("offers no UdfService")
    yield


@pytest.fixture
def hosts(monkeypatch):
    """The addresses of names; others are addresses themselves."""
    found = {}

    def look_up(host, port):
        families = {each: socket.AF_INET6 if ":" in each else socket.AF_INET for each in found.get(host, [host])}
        return [(family, socket.SOCK_STREAM, 6, "", (each, 0)) for each, family in families.items()]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


def test_a_stream_is_opened_at_the_port_that_its_server_names():
    host = Host(opens_slowly)
    assert host.answers() == ANSWERS
    assert host.answers() == ANSWERS
    assert host.places == [None, PLACE, None, PLACE]


@pytest.mark.parametrize("at_port", [gone, hangs, is_another_server, sends_on, is_something_else])
def test_a_stream_that_cannot_be_opened_at_the_port_is_passed_on_and_the_next_ones_too(at_port, ports, caplog):
    host = Host(at_port)
    assert host.answers() == ANSWERS
    assert host.answers() == ANSWERS
    assert host.places == [None, PLACE, Place(SERVER), None]
    assert len(caplog.records) == 1
    assert "passes streams of a group on" in caplog.text


def test_a_group_that_is_reloaded_meanwhile_is_asked_for_by_the_next_stream(caplog):
    host = Host(is_reloaded)
    assert host.answers() == ANSWERS
    host.at_port = opens_slowly
    assert host.answers() == ANSWERS
    assert host.places == [None, PLACE, Place(SERVER), None, PLACE]
    assert not caplog.records


def test_a_refusal_of_the_function_at_its_port_is_final():
    def fails(requests):
        next(requests)
        yield refused("OPEN_FAILED", kind=pb.Error.KIND_USER, retryable=False)

    host = Host(fails)
    with pytest.raises(StreamError, match="OPEN_FAILED"):
        host.answers()
    assert host.places == [None, PLACE]


def test_a_port_is_tried_again_after_some_time(ports):
    clock = Clock()
    ports.failed(SERVER, clock(), "a firewall")
    assert not ports.may_try(SERVER, clock())
    clock.sleep(RELAYED_SECONDS)
    assert ports.may_try(SERVER, clock())


@pytest.mark.parametrize("port", [0, -1, 65_536, 2**31 - 1, 50051])
def test_a_number_that_is_no_other_port_is_not_tried(port, caplog):
    host = Host(opens_slowly, port=port)
    assert host.answers() == ANSWERS
    assert host.places == [None, Place(SERVER)]
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("server", "address"),
    [
        ("127.0.0.1:50051", "127.0.0.1:7"), ("[::1]:50051", "[::1]:7"), ("ipv4:10.0.0.7:50051", "ipv4:10.0.0.7:7"),
        ("ipv6:[fe80::1]:50051", "ipv6:[fe80::1]:7"), ("one.example:50051", "one.example:7"),
        ("dns:///one.example:50051", "dns:///one.example:7"), ("both.example:50051", "both.example:7"),
        ("localhost:50051", "localhost:7"), ("several.example:50051", None), ("unix:/run/udf:1", None),
        ("unix:udf:1", None), ("unix-abstract:udf:1", None), ("xds:///udf:50051", None), ("vsock:2:1234", None),
        ("dns://10.0.0.1/one.example:50051", None), ("one.example", None), ("in this process", None), ("", None),
    ],
)  # fmt: skip
def test_a_port_is_only_tried_at_the_host_that_has_named_it(server, address, hosts, ports):
    hosts |= {
        "one.example": ["10.0.0.7"], "both.example": ["10.0.0.7", "fe80::1"], "localhost": ["127.0.0.1", "::1"],
        "several.example": ["10.0.0.7", "10.0.0.8"],
    }  # fmt: skip
    place = Elsewhere(7, "a route").place(server)
    assert place == (None if address is None else Place(server, address, "a route"))
    # A name is only resolved once its server has named a port.
    assert ports.may_try(server, 0.0) == (address is not None or server == "several.example:50051")
