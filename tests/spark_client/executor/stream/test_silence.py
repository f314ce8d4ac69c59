"""A server that becomes unresponsive is given up in time; a server that is only idle is not."""

import gc
import threading

import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from spark_client.base.errors import ServerUnavailable
from spark_client.base.transport import TransportLost
from spark_client.executor.stream.connection import Connection
from spark_client.executor.stream.silence import SilenceWatch, process_watch
from spark_client.executor.stream.task import TaskInfo
from tests.spark_client.scripted import SILENCE, Clock, Scripted, X, call_of, chunk_of, honest, opened, stream_of


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


def mute(progress):
    def script(requests):
        next(requests)
        yield opened(progress=progress, timeout="600 s")
        next(requests)
        yield SILENCE

    return script


class Waiting:
    """A thread that reads a connection; `result` is the data that it read."""

    def __init__(self, read):
        self.result = None
        self._thread = threading.Thread(target=self._run, args=(read,))
        self._thread.start()

    def _run(self, read):
        try:
            self.result = read()
        except Exception as error:
            self.result = error

    def end(self):
        self._thread.join(10)
        assert not self._thread.is_alive()
        return self.result


def connected(transport, clock, **options):
    connection = Connection(call_of(plus_one, **options), X, TaskInfo(), transport, clock)
    connection.open(10.0)
    return connection


def until_waiting(connection):
    while connection._waiting_since is None:
        threading.Event().wait(0.001)


@pytest.mark.parametrize(("progress", "seconds"), [(0.2, 2.0), (3.0, 9.0), (60.0, 15.0)])
def test_a_server_is_given_up_after_three_missed_heartbeats_within_bounds(progress, seconds):
    clock = Clock()
    connection = connected(Scripted(mute(progress)), clock)
    connection.send(chunk_of([1]), None, 0.0)
    reader = Waiting(connection.read)
    until_waiting(connection)
    clock.now += seconds - 0.01
    connection.check_silence()
    assert reader.result is None
    clock.now += 0.02
    connection.check_silence()
    lost = reader.end()
    assert isinstance(lost, TransportLost)
    assert str(lost) == f"the server has said nothing for {seconds:.3g} s"
    connection.close(cancel=True)


def test_a_server_nobody_waits_for_may_be_silent():
    clock = Clock()
    transport = Scripted(mute(0.2))
    connection = connected(transport, clock)
    clock.now += 1e6
    connection.check_silence()
    assert not transport.streams[0].cancelled.is_set()
    connection.close(cancel=True)


def test_waiting_counts_from_when_it_began():
    clock = Clock()
    transport = Scripted(mute(0.2))
    connection = connected(transport, clock)
    clock.now += 1e6
    reader = Waiting(connection.read)
    connection.send(chunk_of([1]), None, 0.0)
    until_waiting(connection)
    clock.now += 1.9
    connection.check_silence()
    assert reader.result is None
    connection.close(cancel=True)
    reader.end()


def test_a_server_that_does_not_answer_open_is_given_up_as_well():
    def script(requests):
        yield SILENCE

    clock = Clock()
    connection = Connection(call_of(plus_one), X, TaskInfo(), Scripted(script), clock)
    reader = Waiting(lambda: connection.open(7.0))
    until_waiting(connection)
    clock.now += 6.9
    connection.check_silence()
    assert reader.result is None
    clock.now += 0.2
    connection.check_silence()
    assert str(reader.end()) == "the server has said nothing for 7 s"


@pytest.fixture
def quick_watch(monkeypatch):
    watch = SilenceWatch(look_seconds=0.01)
    monkeypatch.setattr("spark_client.executor.stream.connection.process_watch", lambda: watch)
    return watch


def test_rows_of_a_silent_server_are_answered_by_the_next_one(quick_watch, monkeypatch):
    monkeypatch.setattr("spark_client.executor.stream.connection.SILENT_SECONDS", (0.05, 0.05))
    stream = stream_of(call_of(plus_one), Scripted(mute(1.0), honest))
    stream.submit(chunk_of([1, 2]))
    (answer,) = stream.receive()
    assert answer.values.to_pylist() == [2, 3]
    assert stream.statistics.replays == 1
    stream.finish()


def test_servers_that_all_fall_silent_end_in_an_error_within_the_deadline(quick_watch, monkeypatch):
    monkeypatch.setattr("spark_client.executor.stream.connection.SILENT_SECONDS", (0.05, 0.05))

    def never_opens(requests):
        next(requests)
        yield SILENCE

    def mute_for_short(requests):
        next(requests)
        yield opened(progress=1.0, timeout="300 ms")
        next(requests)
        yield SILENCE

    stream = stream_of(call_of(plus_one, connect_seconds=600), Scripted(mute_for_short, never_opens))
    stream.submit(chunk_of([1]))
    (answer,) = stream.receive()
    error = answer.errors[0]
    assert error.code is ErrorCode.SERVER_UNAVAILABLE
    assert "the server has said nothing for 0.3 s" in error.message
    assert "the server was lost: the server has said nothing for 0.05 s" in error.message
    stream.close()


def test_a_first_server_that_never_answers_is_an_error(quick_watch):
    def never_opens(requests):
        next(requests)
        yield SILENCE

    with pytest.raises(ServerUnavailable, match=r"no server at test: the server has said nothing for 0[.][0-9]+ s"):
        stream_of(call_of(plus_one, connect_seconds=0.1, timeout="50 ms"), Scripted(never_opens))


class Looked:
    def __init__(self):
        self.at = threading.Event()

    def check_silence(self):
        self.at.set()


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "silence-watch"]


def test_the_watch_runs_while_there_is_a_stream_and_starts_again_for_the_next():
    watch = SilenceWatch(look_seconds=0.005)
    before = set(watchers())
    for _ in range(2):
        looked = Looked()
        watch.add(looked)
        assert looked.at.wait(10)
        (thread,) = set(watchers()) - before
        watch.discard(looked)
        thread.join(10)
        assert not thread.is_alive()


def test_a_stream_that_nobody_knows_any_more_is_not_kept_by_the_watch():
    watch = SilenceWatch(look_seconds=0.005)
    before = set(watchers())
    watch.add(Looked())
    gc.collect()
    for thread in set(watchers()) - before:
        thread.join(10)
        assert not thread.is_alive()
    assert not watch._watched


def test_there_is_one_watch_in_a_process():
    assert process_watch() is process_watch()
