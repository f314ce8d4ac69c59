"""RowEngine: the bounds of rows in flight and of held rows, and the ends of streams and threads."""

import dataclasses
import threading

import pytest

import udf_server as udf
from remote_udf.errors import StreamError
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.in_flight import MESSAGES_IN_FLIGHT
from spark_client.executor.stream.runtime import Runtime
from spark_client.testing import LocalTransport
from tests.spark_client.engines import all_outcomes, numbered, outcomes, plus_one, through
from tests.spark_client.scripted import (
    SILENCE,
    Scripted,
    call_of,
    finished,
    honest,
    numbers,
    opened,
    refused,
    result,
    scattered,
    stream_of,
)


def opening(transports):
    """A runtime that opens the stream of each function over its transport."""
    return Runtime(lambda call, schema: stream_of(call, transports[call.spec.name], schema))


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "remote-udf-reader"]


# Bounds.


def test_input_is_not_read_beyond_what_may_wait_for_a_slow_first_row():
    rest_is_here = threading.Event()
    read = []

    @udf.scalar
    async def plus_two(x: int) -> int:
        return x + 2

    def first_batch_last(requests):
        next(requests)
        yield opened(timeout="60 s", buffer_capacity=100, batch_rows=100)
        first, rows = next(requests), 0
        for message in requests:
            if message.envelope.HasField("finish"):
                break
            batch = message.envelope.batch
            rows += batch.rows
            yield result(batch.first_row, [x + 2 for x in numbers(message)])
            if sum(read) * 24 >= 40_000 and not rest_is_here.is_set():
                rest_is_here.set()
                yield result(0, [x + 2 for x in numbers(first)])
        yield finished(rows + first.envelope.batch.rows)

    def batches():
        for batch in numbered(*[100] * 300):
            read.append(batch.num_rows)
            yield batch

    runtime = opening({"plus_two": Scripted(first_batch_last)})
    engine = RowEngine([PlannedCall(call_of(plus_two), (0,))], runtime, ordered=True, held_bytes=40_000)
    run = engine.run(batches())
    first = next(run)
    # The limit is the input read when the first row could leave: 16 bytes and up to 8 of values per row, and a batch.
    assert rest_is_here.is_set()
    assert sum(read) * 24 >= 40_000
    assert sum(read) * 16 <= 40_000 + 100 * 16
    found = outcomes(first) + [row for completed in run for row in outcomes(completed)]
    assert found == [(x, x + 2) for x in range(30_000)]


def test_no_more_rows_are_in_flight_than_the_window_allows():
    most = []

    def watched(call, arguments):
        stream = stream_of(call, transport, arguments)
        submit = stream.submit

        def submit_and_look(chunk):
            answers = submit(chunk)
            most.append(stream.unanswered)
            return answers

        stream.submit = submit_and_look
        return stream

    @udf.scalar(buffer_capacity=5)
    def slowly(x: int) -> int:
        threading.Event().wait(0.0005)
        return x

    with LocalTransport(slowly) as transport:
        engine = RowEngine([PlannedCall(call_of(slowly, batch_rows=5), (0,))], Runtime(watched), ordered=True)
        assert len(all_outcomes(engine, numbered(300, 300))) == 600
    assert 5 < max(most) <= 5 * MESSAGES_IN_FLIGHT


# Ends.


def silent_after_a_batch(requests):
    next(requests)
    yield opened(ordered=False, timeout="600 s")
    message = next(requests)
    values = [x + 1 for x in numbers(message)]
    yield scattered(range(len(values)), values)
    yield SILENCE


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_closing_the_generator_early_ends_every_stream_and_thread(calls):
    functions = [dataclasses.replace(plus_one.spec, name=f"f{index}") for index in range(calls)]
    transports = {spec.name: Scripted(silent_after_a_batch) for spec in functions}
    planned = [PlannedCall(dataclasses.replace(call_of(plus_one), spec=spec), (0,)) for spec in functions]
    engine = RowEngine(planned, opening(transports), ordered=False)
    run = engine.run(numbered(*[5] * 1000))
    assert outcomes(next(run))[0] == (0, *[1] * calls)
    assert len(readers()) == (calls if calls > 1 else 0)
    mine = readers()
    run.close()
    for thread in mine:
        thread.join(10)
    assert not any(thread.is_alive() for thread in mine)
    assert all(stream.cancelled.is_set() for transport in transports.values() for stream in transport.streams)
    assert all(len(transport.streams) == 1 for transport in transports.values())


def test_readers_end_when_the_input_does():
    @udf.scalar
    async def doubled(x: int) -> int:
        return 2 * x

    with LocalTransport(plus_one, doubled) as transport:
        engine = through(transport, (call_of(plus_one), (0,)), (call_of(doubled), (0,)), ordered=False)
        assert len(all_outcomes(engine, numbered(10, 10))) == 20
        for thread in readers():
            thread.join(10)
        assert not readers()


@pytest.mark.parametrize("ordered", [True, False])
def test_what_a_server_says_to_one_call_ends_the_task_and_the_other_calls(ordered):
    def refusing(requests):
        next(requests)
        yield opened()
        next(requests)
        yield refused("INTERNAL", retryable=False, message="on fire")

    other = dataclasses.replace(plus_one.spec, name="other")
    transports = {"plus_one": Scripted(silent_after_a_batch), "other": Scripted(refusing)}
    planned = [PlannedCall(dataclasses.replace(call_of(plus_one), spec=spec), (0,)) for spec in (other, plus_one.spec)]
    engine = RowEngine(planned, opening(transports), ordered=ordered)
    with pytest.raises(StreamError, match="on fire"):
        all_outcomes(engine, numbered(5, 5))
    for thread in readers():
        thread.join(10)
    assert not readers()
    assert transports["plus_one"].streams[0].cancelled.is_set()


def test_a_call_that_cannot_be_opened_closes_those_that_were():
    def refusing(requests):
        next(requests)
        yield refused("OPEN_FAILED", retryable=False)

    other = dataclasses.replace(plus_one.spec, name="other")
    transports = {"plus_one": Scripted(honest), "other": Scripted(refusing)}
    planned = [PlannedCall(dataclasses.replace(call_of(plus_one), spec=spec), (0,)) for spec in (plus_one.spec, other)]
    engine = RowEngine(planned, opening(transports), ordered=False)
    with pytest.raises(StreamError, match="OPEN_FAILED"):
        all_outcomes(engine, numbered(5))
    assert transports["plus_one"].streams[0].cancelled.is_set()


def test_an_error_of_the_input_passes_through_and_closes_the_streams():
    def broken():
        yield from numbered(5)
        raise RuntimeError("the input is broken")

    transport = Scripted(silent_after_a_batch)
    engine = through(transport, (call_of(plus_one), (0,)), ordered=False)
    with pytest.raises(RuntimeError, match="the input is broken"):
        all_outcomes(engine, broken())
    assert transport.streams[0].cancelled.is_set()
