"""Several servers behind one target: turns, ejection, reconnecting, and the budget of rows that are sent again."""

import random
import socket
import threading
import time
from contextlib import ExitStack

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from spark_client.base.config import ClientConfig
from spark_client.base.errors import ServerUnavailable
from spark_client.base.transport import TransportLost
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.endpoints import Endpoints, resolved
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.conftest import serving
from tests.spark_client.scripted import (
    Clock,
    Scripted,
    call_of,
    chunk_of,
    everything,
    finished,
    honest,
    numbers,
    opened,
    progress,
    refused,
    result,
    stream_of,
)


@udf.scalar(timeout="20 s")
async def plus_one(x: int) -> int:
    return x + 1


def endpoints_of(target, clock, **arguments):
    return Endpoints(target, clock=clock, rng=random.Random(1), **arguments)


# Targets.


@pytest.mark.parametrize(
    ("target", "addresses"),
    [
        ("a:1", ["a:1"]),
        ("a:1, b:2 ,a:1", ["a:1", "b:2"]),
        ("unix:/run/x.sock,b:2", ["unix:/run/x.sock", "b:2"]),
        ("ipv4:10.0.0.1:5,10.0.0.2:5", ["ipv4:10.0.0.1:5", "ipv4:10.0.0.2:5"]),
        ("dns://8.8.8.8/name:1", ["dns://8.8.8.8/name:1"]),
        ("xds:///name", ["xds:///name"]),
    ],
)
def test_a_target_is_one_address_or_several(target, addresses):
    assert [address for address, _ in resolved(target)] == addresses


@pytest.mark.parametrize("target", ["dns:///udf.example:50051", "dns:udf.example:50051"])
def test_a_name_stands_for_all_its_addresses(target, monkeypatch):
    found = [
        (socket.AF_INET, 1, 6, "", ("10.0.0.1", 50051)),
        (socket.AF_INET, 1, 6, "", ("10.0.0.2", 50051)),
        (socket.AF_INET6, 1, 6, "", ("2001:db8::1", 50051, 0, 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *where, **how: found)
    name = "udf.example"
    assert resolved(target) == [("10.0.0.1:50051", name), ("10.0.0.2:50051", name), ("[2001:db8::1]:50051", name)]


# Turns.


def test_each_gets_its_turn():
    endpoints = endpoints_of("a:1,b:1,c:1", Clock())
    picked = [endpoints.pick().address for _ in range(6)]
    assert picked[:3] == picked[3:]
    assert set(picked) == {"a:1", "b:1", "c:1"}


def test_one_that_fails_is_left_out_for_longer_and_longer_and_comes_back():
    clock = Clock()
    endpoints = endpoints_of("a:1,b:1", clock)
    bad = endpoints.pick()
    pauses = []
    for _ in range(9):
        endpoints.failed(bad)
        began = clock.now
        while endpoints.pick() is not bad:
            clock.now += 0.25
        pauses.append(clock.now - began)
    assert pauses[0] <= 1.5
    assert 30 <= pauses[-1] <= 60.5
    endpoints.succeeded(bad)
    assert bad in {endpoints.pick(), endpoints.pick()}


def test_if_all_have_failed_the_one_that_failed_first_is_tried_first():
    clock = Clock()
    endpoints = endpoints_of("a:1,b:1", clock)
    first, second = endpoints.pick(), endpoints.pick()
    endpoints.failed(first, 5.0)
    endpoints.failed(second, 50.0)
    assert [endpoints.pick() for _ in range(3)] == [first] * 3


def test_servers_that_are_added_get_streams_and_those_that_are_gone_get_none():
    clock, names = Clock(), ["a:1", "b:1"]
    endpoints = endpoints_of("dns:///x:1", clock, resolve=lambda target: [(name, "x") for name in names])
    assert {endpoints.pick().address for _ in range(4)} == {"a:1", "b:1"}
    names[:] = ["b:1", "c:1"]
    clock.now += 11
    assert {endpoints.pick().address for _ in range(4)} == {"b:1", "c:1"}


def test_a_name_server_that_is_away_is_no_reason_to_forget_servers():
    clock, broken = Clock(), []

    def resolve(target):
        if broken:
            raise OSError("no answer")
        return [("a:1", "x")]

    endpoints = endpoints_of("dns:///x:1", clock, resolve=resolve)
    endpoints.pick()
    broken.append(True)
    clock.now += 100
    assert endpoints.pick().address == "a:1"


def test_a_name_nobody_knows_is_an_error_within_the_time_to_connect():
    with pytest.raises(ServerUnavailable, match="the name cannot be resolved"):
        list_functions(ClientConfig("dns:///no-such-name.invalid:1", 0.3))


# Real servers.


def counted(server):
    return sum(
        server.metric("udf_streams_total", function="plus_one", version="1", end=end)
        for end in ("finished", "cancelled", "failed", "disconnected")
    )


def test_streams_go_to_all_servers_and_past_one_that_is_not_there():
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(plus_one)) for _ in range(2)]
        target = ",".join([servers[0].target, "127.0.0.1:1", servers[1].target])

        def call_once():
            call = call_of(plus_one, target)
            stream = stream_of(call, transport_for(call.config))
            stream.submit(chunk_of(range(5)))
            assert everything(stream) == {row: row + 1 for row in range(5)}
            stream.finish()

        made = 0

        def used():
            """Waits until all streams are counted: a server counts a stream after its last message."""
            while sum(counts := [counted(server) for server in servers]) < made and time.monotonic() < deadline:
                time.sleep(0.005)
            return counts

        # Until both are connected, only the first connected one is used.
        deadline = time.monotonic() + 30
        while min(used()) < 1 and time.monotonic() < deadline:
            call_once()
            made += 1
        before = used()
        for _ in range(6):
            call_once()
            made += 1
        assert [now - then for now, then in zip(used(), before, strict=True)] == [3, 3]


@pytest.mark.slow
def test_a_server_that_drains_hands_its_streams_over_without_sending_a_row_twice():
    seen = []

    @udf.scalar(name="plus_one", timeout="20 s")
    async def noting(x: int) -> int:
        seen.append(x)
        return x + 1

    with ExitStack() as stack:
        servers = [stack.enter_context(serving(noting)) for _ in range(2)]
        call = call_of(noting, ",".join(server.target for server in servers), buffer_capacity=10, batch_rows=10)
        streams = []

        def open_stream(planned, schema):
            streams.append(stream_of(planned, transport_for(planned.config), schema))
            return streams[-1]

        batches = (pa.record_batch({"x": pa.array(range(n, n + 50))}) for n in range(0, 3000, 50))
        found, stopping = [], None
        for completed in RowEngine([PlannedCall(call, (0,))], Runtime(open_stream), ordered=True).run(batches):
            found += zip(completed.table.column("x").to_pylist(), completed.values[0].to_pylist(), strict=True)
            if len(found) >= 500 and stopping is None:
                busy = next(server for server in servers if server.metric(
                    "udf_streams_open", function="plus_one", version="1"))  # fmt: skip
                stopping = threading.Thread(target=busy.stop, args=(20.0,))
                stopping.start()
        assert stopping is not None
        stopping.join(20)
    assert found == [(x, x + 1) for x in range(3000)]
    assert (streams[0].statistics.reconnects, streams[0].statistics.replays) == (1, 0)
    assert sorted(seen) == list(range(3000))


# Reconnecting.


def test_an_old_stream_moves_at_the_border_of_a_batch_and_its_counts_are_compared():
    clock, transport = Clock(), Scripted(honest)
    call = call_of(plus_one)
    stream = stream_of(call, transport, clock=clock, sleep=clock.sleep)
    stream.submit(chunk_of(range(10)))
    assert stream.has_room()
    clock.now += call.config.max_stream_seconds
    assert not stream.has_room()
    assert everything(stream) == {row: row + 1 for row in range(10)}
    assert stream.has_room()
    stream.submit(chunk_of(range(10, 20), 10))
    assert everything(stream) == {row: row + 1 for row in range(10, 20)}
    assert (stream.statistics.reconnects, stream.statistics.replays, len(transport.streams)) == (1, 0, 2)
    assert [request.WhichOneof("request") for request in transport.streams[0].received] == ["open", "batch", "finish"]
    assert stream.finish().rows_in == 10


def draining(requests):
    """Says that it drains with its first result."""
    next(requests)
    yield opened()
    yield progress(draining=True)
    rows = 0
    for message in requests:
        if message.envelope.HasField("finish"):
            yield finished(rows)
            return
        rows += message.envelope.batch.rows
        yield result(message.envelope.batch.first_row, [x + 1 for x in numbers(message)])


def test_a_connection_that_is_lost_while_the_stream_moves_is_closed():
    def lost_at_the_end(requests):
        next(requests)
        yield opened()
        yield progress(draining=True)
        message = next(requests)
        yield result(0, [x + 1 for x in numbers(message)])
        next(requests)
        raise TransportLost("UNAVAILABLE: the server is gone")

    transport = Scripted(lost_at_the_end, honest)
    stream = stream_of(call_of(plus_one), transport)
    stream.submit(chunk_of(range(3)))
    everything(stream)
    stream.submit(chunk_of(range(3, 6), 3))
    first = transport.streams[0]
    assert stream.statistics.reconnects == 1
    assert first.cancelled.is_set()
    assert list(first.requests) == []  # its thread has nothing to wait for
    everything(stream)
    stream.finish()


def test_nobody_to_move_to_costs_the_rows_their_deadline_and_no_more():
    def away(requests):
        yield refused("SHUTTING_DOWN", retry_after=1.0)

    clock = Clock()
    stream = stream_of(call_of(plus_one), Scripted(draining, away, away, honest), clock=clock, sleep=clock.sleep)
    stream.submit(chunk_of(range(3)))
    assert everything(stream) == {0: 1, 1: 2, 2: 3}
    stream.submit(chunk_of(range(3, 6), 3))
    assert everything(stream) == {3: 4, 4: 5, 5: 6}
    assert clock.sleeps == [1.0, 1.0]
    stream.finish()

    clock = Clock()
    stream = stream_of(call_of(plus_one), Scripted(draining, away), clock=clock, sleep=clock.sleep)
    stream.submit(chunk_of(range(3)))
    everything(stream)
    [answer] = stream.submit(chunk_of(range(3, 6), 3))
    assert {error.code for error in answer.errors.values()} == {ErrorCode.SERVER_UNAVAILABLE}
    assert 170 <= sum(clock.sleeps) <= 180
    stream.close()


# The budget.


def test_rows_that_end_every_server_they_meet_are_given_up_in_the_end():
    def dies_of_seven(requests):
        next(requests)
        yield opened()
        for message in requests:
            values = numbers(message)
            if 7 in values:
                raise TransportLost("UNAVAILABLE: the server is gone")
            yield result(message.envelope.batch.first_row, [x + 1 for x in values])

    clock = Clock()
    stream = stream_of(call_of(plus_one), Scripted(dies_of_seven), clock=clock, sleep=clock.sleep)
    found = {}
    for start in range(0, 20, 5):
        stream.submit(chunk_of(range(start, start + 5), start))
    found = everything(stream)
    failed = {row: error for row, error in found.items() if not isinstance(error, int)}
    assert 7 in failed
    assert set(range(5)).isdisjoint(failed)
    assert "the server was lost 51 times with these rows in flight, and max_replays is 50" in failed[7].message
    assert not failed[7].retryable
    assert stream.statistics.replays == 51
    stream.close()
