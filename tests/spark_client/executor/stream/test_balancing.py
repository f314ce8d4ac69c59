"""Streams that change servers because another one has less to do: when they ask, and when they move."""

import pytest

import udf_server as udf
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.server_load import ServerLoad
from spark_client.executor.stream.balancing import STALE_SECONDS
from spark_client.executor.stream.endpoints import LOAD_SECONDS, Endpoints
from tests.spark_client.scripted import (
    Clock,
    ScriptedServers,
    call_of,
    chunk_of,
    everything,
    finished,
    numbers,
    opened,
    result,
    stream_of,
)


@udf.scalar(timeout="20 s")
async def plus_one(x: int) -> int:
    return x + 1


BUSY, CALM, QUIET = ServerLoad(5.0, 20, 1.0), ServerLoad(0.5, 10, 1.0), ServerLoad(0.1, 1, 1.0)


def telling(load, heartbeat=None):
    """A server that tells this load when it opens a stream, and another one before its first result."""

    def script(requests):
        next(requests)
        yield opened(load=message_of(load))
        rows = 0
        for message in requests:
            if message.envelope.HasField("finish"):
                yield finished(rows)
                return
            if heartbeat is not None:
                yield encode(pb.ExecuteResponse(progress=pb.Progress(load=message_of(heartbeat))))
            rows += message.envelope.batch.rows
            yield result(message.envelope.batch.first_row, [x + 1 for x in numbers(message)])

    return script


def message_of(load):
    return None if load is None else pb.Load(load=load.load, streams=round(load.streams), cores=load.cores)


class Answers:
    """The loads of servers, which answer at once or never."""

    def __init__(self, loads, done):
        self.done, self._loads, self.cancelled = done, loads, False

    def wait(self, seconds):
        pass

    def answers(self):
        return self._loads

    def cancel(self):
        self.cancelled = True


class Fleet(ScriptedServers):
    """Servers that tell their loads: `loads` are the answers to questions."""

    def __init__(self, loads, **scripts):
        super().__init__(**scripts)
        self.loads, self.answer, self.questions = loads, True, []

    def ask_loads(self, server):
        self.questions.append(Answers(dict(self.loads), self.answer))
        return self.questions[-1]

    def heard_load(self, server, load):
        pass

    @property
    def used(self):
        return [stream.server for stream in self.streams]


def run(stream, start=0):
    assert stream.has_room()  # this also decides whether the stream moves
    stream.submit(chunk_of(range(start, start + 10), start))
    assert everything(stream) == {row: row + 1 for row in range(start, start + 10)}


@pytest.fixture
def clock():
    return Clock()


def stream_on(fleet, clock):
    return stream_of(call_of(plus_one), fleet, clock=clock, sleep=clock.sleep)


def test_a_stream_of_a_busy_server_moves_to_a_better_one_before_its_first_rows(clock):
    fleet = Fleet({"a": BUSY, "b": CALM}, a=telling(BUSY), b=telling(CALM))
    stream = stream_on(fleet, clock)
    run(stream)
    assert fleet.used == ["a", "b"]
    assert [request.WhichOneof("request") for request in fleet.streams[0].received] == ["open", "finish"]
    assert (stream.statistics.reconnects, stream.statistics.replays) == (1, 0)
    assert len(fleet.questions) == 1  # of two servers the better one was found: it is not asked for again at once


def test_on_a_quiet_server_nobody_is_asked(clock):
    fleet = Fleet({}, a=telling(QUIET), b=telling(QUIET))
    run(stream_on(fleet, clock))
    assert (fleet.used, fleet.questions) == (["a"], [])


def test_servers_that_tell_no_load_are_used_in_turn_and_for_a_limited_time(clock):
    fleet = Fleet({}, a=telling(None), b=telling(None))
    stream = stream_on(fleet, clock)
    run(stream)
    clock.now += stream.call.config.max_stream_seconds
    run(stream, 10)
    assert fleet.questions == []
    assert stream.statistics.reconnects == 1


def test_a_stream_whose_server_is_as_good_as_another_one_does_not_age(clock):
    fleet = Fleet({"a": QUIET, "b": QUIET}, a=telling(QUIET), b=telling(QUIET))
    stream = stream_on(fleet, clock)
    for start in range(0, 100, 10):
        clock.now += stream.call.config.max_stream_seconds
        run(stream, start)
    assert (fleet.used, stream.statistics.reconnects) == (["a"], 0)
    assert len(fleet.questions) == 10


def test_a_stream_that_has_room_for_long_is_read_now_and_then(clock):
    fleet = Fleet({"a": QUIET, "b": QUIET}, a=telling(QUIET), b=telling(QUIET))
    stream = stream_on(fleet, clock)
    stream.submit(chunk_of(range(10)))
    assert stream.has_room()
    clock.now += stream.call.config.max_stream_seconds
    assert not stream.has_room()
    assert everything(stream) == {row: row + 1 for row in range(10)}
    assert stream.has_room()
    run(stream, 10)
    assert (fleet.used, stream.statistics.reconnects) == (["a"], 0)


def test_rows_in_flight_are_answered_before_a_stream_moves(clock):
    fleet = Fleet({"a": CALM, "b": CALM}, a=telling(CALM), b=telling(CALM))
    stream = stream_on(fleet, clock)
    fleet.loads = {"a": BUSY, "b": CALM}
    clock.now += 100.0
    stream.submit(chunk_of(range(10)))
    assert not stream.has_room()
    assert everything(stream) == {row: row + 1 for row in range(10)}
    assert stream.has_room()
    run(stream, 10)
    assert (fleet.used, stream.statistics.replays) == (["a", "b"], 0)
    assert stream.finish().rows_in == 10


def test_a_stream_whose_server_tells_that_its_load_rises_asks_soon(clock):
    fleet = Fleet({"a": BUSY, "b": CALM}, a=telling(QUIET, BUSY), b=telling(CALM))
    stream = stream_on(fleet, clock)
    run(stream)
    clock.now += 5.0
    stream.has_room()
    run(stream, 10)
    assert fleet.used == ["a", "b"]


def test_answers_that_come_late_are_not_used(clock):
    fleet = Fleet({"a": BUSY, "b": CALM}, a=telling(BUSY), b=telling(CALM))
    fleet.answer = False
    stream = stream_on(fleet, clock)
    run(stream)
    clock.now += STALE_SECONDS + 0.1
    fleet.questions[0].done = True
    fleet.loads = {"a": CALM, "b": CALM}
    fleet.answer = True
    run(stream, 10)
    assert stream.has_room()
    assert fleet.used == ["a"]
    assert fleet.questions[0].cancelled and len(fleet.questions) == 2


def test_a_question_that_runs_is_given_up_with_its_stream(clock):
    fleet = Fleet({}, a=telling(BUSY), b=telling(CALM))
    fleet.answer = False
    stream = stream_on(fleet, clock)
    stream.close()
    assert fleet.questions[0].cancelled


def test_a_better_server_that_is_gone_costs_a_turn_and_no_row(clock):
    def gone(requests):
        next(requests)
        yield from ()

    fleet = Fleet({"a": BUSY, "b": CALM}, a=telling(BUSY), b=gone)
    stream = stream_on(fleet, clock)
    run(stream)
    assert fleet.used[:3] == ["a", "b", "a"]


# The servers that a process knows.


def endpoints_of(clock, *addresses):
    return Endpoints("all", resolve=lambda _: [(address, "") for address in addresses], clock=clock)


def test_of_two_servers_whose_loads_are_known_the_better_one_is_picked(clock):
    endpoints = endpoints_of(clock, "a", "b")
    endpoints.listed()
    endpoints.heard("a", BUSY)
    endpoints.heard("b", CALM)
    assert {endpoints.pick().address for _ in range(10)} == {"b"}
    assert endpoints.pick(avoid={"b"}).address == "a"
    clock.now += LOAD_SECONDS + 1
    assert {endpoints.pick().address for _ in range(10)} == {"a", "b"}


def test_a_server_whose_load_is_not_known_keeps_its_turn(clock):
    endpoints = endpoints_of(clock, "a", "b", "c")
    endpoints.listed()
    endpoints.heard("a", CALM)
    assert {endpoints.pick().address for _ in range(10)} == {"a", "b", "c"}


def test_a_server_that_is_skipped_is_no_other_one(clock):
    endpoints = endpoints_of(clock, "a", "b")
    assert endpoints.other("a").address == "b"
    endpoints.failed(endpoints.other("a"), 100.0)
    assert endpoints.other("a") is None
