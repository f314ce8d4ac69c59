"""Several servers behind one target, one of which hangs or has another version: rows go to the other."""

import asyncio
import signal
import time
from contextlib import ExitStack

import pytest

import udf_server as udf
from remote_udf.errors import StreamError
from remote_udf.messages import read_response
from spark_client.base.config import ClientConfig
from spark_client.base.errors import ServerUnavailable
from spark_client.executor.stream.silence import SilenceWatch
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions
from tests.conftest import serving
from tests.spark_client.executor.stream.test_real_server import PLUGIN, Named, server_process
from tests.spark_client.scripted import (
    SILENCE,
    Clock,
    Scripted,
    ScriptedServers,
    call_of,
    chunk_of,
    everything,
    gone,
    honest,
    opened,
    progress,
    refused,
    stream_of,
)
from tests.versions import feels_1, feels_2


@udf.scalar(timeout="30 s")
async def plus_one(x: int) -> int:
    return x + 1


@pytest.fixture
def quick_watch(monkeypatch):
    watch = SilenceWatch(look_seconds=0.01)
    monkeypatch.setattr("spark_client.executor.stream.connection.process_watch", lambda: watch)


def hangs(requests):
    next(requests)
    yield SILENCE


def has_other_version(requests):
    next(requests)
    yield refused("UNKNOWN_VERSION", retryable=False, message="function 'plus_one' has no version '2' (known: 1)")


def hangs_once_open(requests):
    next(requests)
    yield opened(progress=0.01, timeout="3 s")
    next(requests)
    yield SILENCE


def answered(stream):
    stream.submit(chunk_of([1, 2]))
    return everything(stream)


# A server that hangs.


@pytest.mark.slow
@pytest.mark.parametrize("hanging", [1, 2, 4])
def test_servers_that_hang_use_only_their_share_of_the_time_to_connect(quick_watch, hanging):
    servers = {f"hanging{number}": hangs for number in range(hanging)}
    transport = ScriptedServers(**servers, good=honest)
    began = time.monotonic()
    stream = stream_of(call_of(plus_one, connect_seconds=5.0), transport)
    assert time.monotonic() - began < 5.0
    assert answered(stream) == {0: 2, 1: 3}
    stream.finish()
    assert [played.server for played in transport.streams] == [*servers, "good"]


@pytest.mark.slow
def test_a_lost_server_is_replaced_although_the_next_one_in_turn_hangs(quick_watch, monkeypatch):
    monkeypatch.setattr("spark_client.executor.stream.connection.SILENT_SECONDS", (0.05, 0.05))
    transport = ScriptedServers(lost=hangs_once_open, hanging=hangs, good=honest)
    stream = stream_of(call_of(plus_one), transport)
    transport.by_address["lost"] = gone
    assert answered(stream) == {0: 2, 1: 3}
    stream.finish()
    assert [played.server for played in transport.streams] == ["lost", "lost", "hanging", "good"]


@pytest.mark.slow
def test_a_server_that_is_back_in_the_next_round_is_used_although_the_other_hangs(quick_watch):
    lives = [gone, gone, honest]

    def restarted(requests):
        return (lives.pop(0) if len(lives) > 1 else lives[0])(requests)

    stream = stream_of(call_of(plus_one, connect_seconds=6.0), ScriptedServers(restarted=restarted, hanging=hangs))
    assert answered(stream) == {0: 2, 1: 3}
    stream.finish()


def test_a_server_that_says_it_is_opening_gets_the_time_of_its_open_hook(quick_watch):
    clock = Clock()

    def opens_slowly(requests):
        for _ in range(3):
            yield progress()
            clock.now += 12.0
        yield from honest(requests)

    transport = ScriptedServers(slow=opens_slowly, other=honest)
    stream = stream_of(call_of(plus_one, timeout="60 s"), transport, clock=clock, sleep=clock.sleep)
    assert answered(stream) == {0: 2, 1: 3}
    stream.finish()
    assert [played.server for played in transport.streams] == ["slow"]


def test_heartbeats_do_not_keep_a_server_opening_for_ever(quick_watch):
    clock = Clock()

    def never_opens(requests):
        while clock.now < 1000.0 + 60.0:
            yield progress()
            clock.now += 5.0
        yield SILENCE

    with pytest.raises(ServerUnavailable, match="no server at test: the server has said nothing"):
        stream_of(call_of(plus_one, timeout="50 s"), Scripted(never_opens), clock=clock, sleep=clock.sleep)


def test_a_server_says_that_it_is_opening_while_a_hook_runs():
    @udf.scalar
    class Slow:
        async def open(self):
            await asyncio.sleep(0.5)

        async def eval(self, x: int) -> int:
            return x + 1

    with serving(Slow) as server:
        call = call_of(Slow, server.target)
        seen = []
        transport = transport_for(call.config)
        execute = transport.execute

        def watched(requests, avoid=()):
            responses = execute(requests, avoid)
            return Seen(responses, seen)

        transport.execute = watched
        stream = stream_of(call, transport)
        assert answered(stream) == {0: 2, 1: 3}
        stream.finish()
    assert seen[:2] == ["progress", "opened"]


class Seen:
    """Records the kinds of responses."""

    def __init__(self, responses, kinds):
        self._responses, self._kinds = responses, kinds

    def __next__(self):
        message = next(self._responses)
        self._kinds.append(read_response(message).envelope.WhichOneof("response"))
        return message

    def __getattr__(self, name):
        return getattr(self._responses, name)


@pytest.mark.slow
def test_real_servers_of_which_one_is_frozen_lose_no_row(plugin, tmp_path):
    path = plugin(PLUGIN)
    with ExitStack() as stack:
        started = [stack.enter_context(server_process(path, f"{tmp_path}/{number}.sock")) for number in range(2)]
        for frozen, process in started:
            process.send_signal(signal.SIGSTOP)
            other = next(target for target, _ in started if target != frozen)
            # The frozen server is the first one and then the second: no row waits for it in either case.
            for target in (f"{frozen},{other}", f"{other},{frozen}"):
                config = ClientConfig(target, connect_seconds=4.0)
                began = time.monotonic()
                assert list_functions(config).find("slowly").version == "1"
                call = call_of(Named(other, "slowly"), target, timeout="30 s", connect_seconds=4.0)
                stream = stream_of(call, transport_for(call.config))
                assert answered(stream) == {0: 2, 1: 3}
                stream.finish()
                assert time.monotonic() - began < 10.0
            process.send_signal(signal.SIGCONT)


# Servers that are full or shut down.


def test_a_delay_that_one_server_asks_for_is_not_waited_for_while_there_is_another():
    def is_full(requests):
        next(requests)
        yield refused("OVERLOADED", retry_after=6.0)

    clock = Clock()
    servers = ScriptedServers(full=is_full, other=honest)
    stream = stream_of(call_of(plus_one, connect_seconds=5.0), servers, clock=clock, sleep=clock.sleep)
    assert answered(stream) == {0: 2, 1: 3}
    assert sum(clock.sleeps) < 0.2
    stream.finish()


def test_rows_of_a_server_that_ends_their_stream_go_to_another_without_the_delay():
    def is_full_later(requests):
        next(requests)
        yield opened()
        next(requests)
        yield refused("OVERLOADED", retry_after=60.0)

    clock = Clock()
    servers = ScriptedServers(full=is_full_later, other=honest)
    servers.execute, execute = lambda requests, avoid=(): execute(requests, (*avoid, *used())), servers.execute

    def used():
        return [played.server for played in servers.streams]

    stream = stream_of(call_of(plus_one, timeout="5 s"), servers, clock=clock, sleep=clock.sleep)
    assert answered(stream) == {0: 2, 1: 3}
    assert clock.sleeps == [0.0]
    stream.finish()


# Versions.


@pytest.mark.parametrize("code", ["UNKNOWN_FUNCTION", "UNKNOWN_VERSION", "FUNCTION_CHANGED", "UNSUPPORTED_PROTOCOL"])
def test_what_one_server_does_not_have_is_asked_of_the_next(code):
    def old(requests):
        next(requests)
        yield refused(code, retryable=False)

    transport = ScriptedServers(old=old, new=honest)
    stream = stream_of(call_of(plus_one), transport)
    assert answered(stream) == {0: 2, 1: 3}
    stream.finish()
    assert [played.server for played in transport.streams] == ["old", "new"]


def test_what_no_server_has_is_refused_at_once():
    clock = Clock()
    transport = ScriptedServers(one=has_other_version, two=has_other_version)
    with pytest.raises(StreamError, match="UNKNOWN_VERSION: function 'plus_one' has no version '2'"):
        stream_of(call_of(plus_one), transport, clock=clock, sleep=clock.sleep)
    assert [played.server for played in transport.streams] == ["one", "two"]
    assert clock.now < 1001.0


def test_a_server_that_is_away_may_have_what_the_other_refuses():
    clock = Clock()
    lives = [gone, gone, gone, honest]

    def updated(requests):
        return (lives.pop(0) if len(lives) > 1 else lives[0])(requests)

    transport = ScriptedServers(old=has_other_version, updated=updated)
    stream = stream_of(call_of(plus_one), transport, clock=clock, sleep=clock.sleep)
    assert answered(stream) == {0: 2, 1: 3}
    stream.finish()


def test_a_refusal_is_raised_after_the_absent_server_has_had_its_time():
    clock = Clock()
    transport = ScriptedServers(old=has_other_version, away=gone)
    with pytest.raises(StreamError, match="UNKNOWN_VERSION"):
        stream_of(call_of(plus_one, connect_seconds=7.0), transport, clock=clock, sleep=clock.sleep)
    assert 4.0 < clock.now - 1000.0 <= 7.0


def test_a_stream_that_loses_its_server_in_a_rolling_update_waits_for_one_that_has_its_version():
    clock = Clock()
    lives = [gone, gone, honest]

    def back_later(requests):
        return (lives.pop(0) if len(lives) > 1 else lives[0])(requests)

    def opens_and_is_lost(requests):
        next(requests)
        yield opened()
        next(requests)
        yield from gone(requests)

    transport = ScriptedServers(mine=opens_and_is_lost, old=has_other_version)
    stream = stream_of(call_of(plus_one), transport, clock=clock, sleep=clock.sleep)
    transport.by_address["mine"] = back_later
    assert answered(stream) == {0: 2, 1: 3}
    stream.finish()
    assert "old" in [played.server for played in transport.streams]


def test_a_job_planned_in_the_middle_of_a_rolling_update_runs_on_all_servers():
    with serving(feels_1) as old, serving(feels_1, feels_2) as new:
        config = ClientConfig(f"{old.target},{new.target}")
        functions = list_functions(config)
        assert [spec.key for spec in functions] == ["feels@1", "feels@2"]
        assert functions.find("feels").version == "1"
        # The new version can be requested, and its streams go to the server that has it.
        for _ in range(4):
            call = call_of(feels_2, config.target)
            stream = stream_of(call, transport_for(call.config))
            stream.submit(chunk_of([1, 2]))
            assert everything(stream) == {0: 3, 1: 4}
            stream.finish()
        assert old.metric("udf_streams_rejected_total", code="UNKNOWN_VERSION") >= 1
