"""The test kit for jobs: functions in this process, and connections that break depending on a seed."""

import threading

import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from spark_client.base.transport import TransportLost
from spark_client.testing import FaultyTransport, LocalTransport
from tests.spark_client.scripted import Scripted, call_of, chunk_of, everything, honest, stream_of
from udf_server.base.errors import FunctionClash


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


def feeders():
    return [thread for thread in threading.enumerate() if thread.name == "local-requests"]


def test_a_function_runs_as_on_a_server_with_options_deadlines_and_hooks():
    events = []

    @udf.scalar(max_attempts=2, timeout="200 ms")
    class Careful:
        async def open(self):
            events.append("open")

        async def close(self):
            events.append("close")

        def eval(self, x: int) -> int:
            if x == 1:
                raise udf.RetryableError("again")
            if x == 2:
                threading.Event().wait(1.0)
            return x

    with LocalTransport(Careful) as transport:
        stream = stream_of(call_of(Careful), transport)
        stream.submit(chunk_of([0, 1, 2]))
        found = everything(stream)
        stream.finish()
    assert found[0] == 0
    assert (found[1].code, found[1].attempts) == (ErrorCode.FUNCTION_ERROR, 2)
    assert found[2].code is ErrorCode.TIMEOUT
    assert events == ["open", "close"]


def test_two_functions_of_one_name_are_refused():
    with pytest.raises(FunctionClash):
        LocalTransport(plus_one, plus_one)


def test_many_messages_wait_for_the_other_end_and_none_is_lost():
    with LocalTransport(plus_one) as transport:
        stream = stream_of(call_of(plus_one), transport)
        for start in range(0, 1000, 10):
            stream.submit(chunk_of(range(start, start + 10), start))
        assert everything(stream) == {row: row + 1 for row in range(1000)}
        assert stream.finish().rows_ok == 1000


def test_closing_ends_open_streams_and_their_threads():
    transport = LocalTransport(plus_one)
    streams = [stream_of(call_of(plus_one), transport) for _ in range(3)]
    transport.close()
    transport.close()
    with pytest.raises(TransportLost, match="closed"):
        transport.execute(iter([]))
    for stream in streams:
        stream.close()
    for thread in feeders():
        thread.join(10)
    assert not feeders()
    assert not transport._streams


def test_a_stream_that_is_cancelled_before_it_began_is_forgotten():
    with LocalTransport(plus_one) as transport:
        busy, go_on = threading.Event(), threading.Event()
        transport._loop.call_soon_threadsafe(lambda: (busy.set(), go_on.wait(10)))
        assert busy.wait(10)
        responses = transport.execute(iter([]))
        responses.cancel()
        go_on.set()
        with pytest.raises(TransportLost):
            next(responses)
        assert not transport._streams


def fates(seed, streams=20, **rates):
    """Returns the number of messages of each stream before it was lost; 11 for all."""
    faulty = FaultyTransport(Scripted(honest), seed, **rates)
    counts = []
    for _ in range(streams):
        stream = Raw(faulty)
        counts.append(stream.messages())
    return counts, faulty


class Raw:
    """Ten batches of one row on a stream, whatever comes back."""

    def __init__(self, transport):
        from remote_udf.messages import encode
        from remote_udf.v1 import message_pb2 as pb
        from spark_client.executor.stream.connection import BatchWriter
        from tests.spark_client.scripted import X

        writer = BatchWriter(X)
        chunk = chunk_of([1])
        import pyarrow as pa

        batches = [
            encode(
                pb.ExecuteRequest(batch=pb.Batch(sequence=n, first_row=n, rows=1)),
                writer.write(pa.Table.from_arrays(chunk.columns, schema=X)),
            )
            for n in range(10)
        ]
        self._responses = transport.execute(iter([encode(pb.ExecuteRequest(open=pb.Open())), *batches]))

    def messages(self):
        count = 0
        try:
            while True:
                next(self._responses)
                count += 1
        except (StopIteration, TransportLost):
            return count


def test_the_same_seed_breaks_the_same_streams_at_the_same_messages():
    first, faulty = fates(7, loss_rate=0.1)
    assert fates(7, loss_rate=0.1)[0] == first
    assert fates(8, loss_rate=0.1)[0] != first
    assert faulty.streams == 20
    assert faulty.losses == sum(count < 11 for count in first) > 0


def test_without_rates_nothing_happens_and_with_full_rates_everything():
    assert fates(1)[0] == [11] * 20
    counts, faulty = fates(1, loss_rate=1.0)
    assert (counts, faulty.losses) == ([0] * 20, 20)


def test_losses_end_after_the_most_there_may_be():
    counts, faulty = fates(1, loss_rate=1.0, most_losses=3)
    assert counts == [0, 0, 0] + [11] * 17
    assert faulty.losses == 3


def test_delays_are_slept_and_are_no_longer_than_said():
    slept = []
    counts, _ = fates(1, delay_rate=0.5, delay_seconds=0.3, sleep=slept.append)
    assert counts == [11] * 20
    assert 50 < len(slept) < 170
    assert all(0 <= seconds <= 0.3 for seconds in slept)


def test_a_lost_stream_stays_lost():
    faulty = FaultyTransport(Scripted(honest), 1, loss_rate=1.0, most_losses=1)
    raw = Raw(faulty)
    for _ in range(2):
        with pytest.raises(TransportLost, match="injected fault"):
            next(raw._responses)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_rows_survive_a_network_that_is_worse_than_any(seed):
    with LocalTransport(plus_one) as transport:
        worse = FaultyTransport(transport, seed, loss_rate=0.3, delay_rate=0.5, delay_seconds=0.002, most_losses=50)
        stream = stream_of(call_of(plus_one, output_mode="unordered"), worse, sleep=lambda _: None)
        for start in range(0, 500, 10):
            stream.submit(chunk_of(range(start, start + 10), start))
        assert everything(stream) == {row: row + 1 for row in range(500)}
        stream.finish()
    assert worse.losses > 0
