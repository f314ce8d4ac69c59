"""RowEngine: rows of a task through all its calls, whatever the cut of the input and the order of outcomes."""

import dataclasses
import math
import threading

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from spark_client.base.config import ClientConfig
from spark_client.executor.engine import row_engine as engine_module
from spark_client.executor.engine.policy import error_array
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.message_sizing import MESSAGES_UNDER_WAY
from spark_client.testing import FaultyTransport, LocalTransport
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
    row_error,
    scattered,
    stream_of,
)


@udf.scalar(buffer_capacity=7)
async def plus_one(x: int) -> int:
    return x + 1


@udf.scalar
def odd_only(x: int) -> int:
    if x % 2 == 0:
        raise ValueError(f"{x} is even")
    return -x


@udf.scalar(vectorized=True)
def total(x: pa.Int64Array, y: pa.Int64Array) -> pa.Int64Array:
    return pa.compute.add(x, y)


@pytest.fixture(scope="module")
def local():
    with LocalTransport(plus_one, odd_only, total) as transport:
        yield transport


def numbered(*sizes):
    """Batches of consecutive numbers `x`, and `y` ten times as large."""
    first = 0
    for size in sizes:
        x = range(first, first + size)
        yield pa.record_batch({"x": pa.array(x, pa.int64()), "y": pa.array([10 * n for n in x], pa.int64())})
        first += size


def through(transport, *calls, ordered=True, opened_calls=None):
    """An engine for these (call, columns) over one transport."""

    def open_stream(call, arguments):
        if opened_calls is not None:
            opened_calls.append(call)
        return stream_of(call, transport, arguments, sleep=lambda _: None)

    planned = [call if isinstance(call, PlannedCall) else PlannedCall(*call) for call in calls]
    return RowEngine(planned, open_stream, ordered=ordered)


def outcomes(completed):
    """Per row: x, then per call its value or the code of its error."""
    found = []
    for index, x in enumerate(completed.table.column("x").to_pylist()):
        row = [x]
        for values, errors in zip(completed.values, completed.errors, strict=True):
            row.append(errors[index].code if index in errors else values[index].as_py())
        found.append(tuple(row))
    return found


def all_outcomes(engine, batches):
    return [row for completed in engine.run(batches) for row in outcomes(completed)]


def readers():
    return [thread for thread in threading.enumerate() if thread.name == "remote-udf-reader"]


def expected(rows):
    error = ErrorCode.FUNCTION_ERROR
    return [(x, x + 1, -x if x % 2 else error, 11 * x) for x in range(rows)]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), max_size=8), st.booleans(), st.sampled_from(["ordered", "unordered"]))
def test_outcomes_do_not_depend_on_the_cut_of_the_input_or_on_the_order_of_answers(local, sizes, ordered, mode):
    engine = through(
        local,
        (call_of(plus_one, output_mode=mode), (0,)),
        (call_of(odd_only, output_mode=mode), (0,)),
        (call_of(total, arguments=2, output_mode=mode), (0, 1)),
        ordered=ordered,
    )
    found = all_outcomes(engine, numbered(*sizes))
    assert (found if ordered else sorted(found)) == expected(sum(sizes))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), max_size=8), st.booleans(), st.integers(0, 10_000))
def test_outcomes_do_not_depend_on_connections_that_break(local, sizes, ordered, seed):
    mode = "ordered" if ordered else "unordered"
    engine = through(
        FaultyTransport(local, seed, loss_rate=0.2),
        (call_of(plus_one, output_mode=mode), (0,)),
        (call_of(odd_only, output_mode=mode), (0,)),
        (call_of(total, arguments=2, output_mode=mode), (0, 1)),
        ordered=ordered,
    )
    found = all_outcomes(engine, numbered(*sizes))
    assert (found if ordered else sorted(found)) == expected(sum(sizes))


@pytest.mark.parametrize("ordered", [True, False])
def test_without_rows_no_stream_is_opened(ordered):
    opened_calls = []
    engine = through(None, (call_of(plus_one), (0,)), ordered=ordered, opened_calls=opened_calls)
    assert all_outcomes(engine, numbered(0, 0)) == []
    assert opened_calls == []


@pytest.mark.parametrize("ordered", [True, False])
def test_all_calls_of_a_row_are_under_way_together(ordered):
    both = threading.Barrier(2)

    @udf.scalar
    def first(x: int) -> int:
        return both.wait(10) * 0

    @udf.scalar
    def second(x: int) -> int:
        return both.wait(10) * 0

    with LocalTransport(first, second) as transport:
        engine = through(transport, (call_of(first), (0,)), (call_of(second), (0,)), ordered=ordered)
        assert all_outcomes(engine, numbered(1)) == [(0, 0, 0)]


def test_a_slow_row_holds_back_neither_its_batch_nor_later_ones_when_order_is_free():
    rest_is_here = threading.Event()

    @udf.scalar(output_mode="unordered")
    def slow_at_zero(x: int) -> int:
        assert x or rest_is_here.wait(20)
        return x

    with LocalTransport(slow_at_zero) as transport:
        found = []
        for completed in through(transport, (call_of(slow_at_zero), (0,)), ordered=False).run(numbered(50, 50, 50)):
            found += outcomes(completed)
            if len(found) == 149:
                rest_is_here.set()
    assert found[-1] == (0, 0)
    assert sorted(found) == [(x, x) for x in range(150)]


def test_rows_come_in_order_though_the_first_is_answered_last():
    def backwards(requests):
        next(requests)
        yield opened(ordered=False)
        message = next(requests)
        for row, x in reversed(list(enumerate(numbers(message)))):
            yield scattered([row], [x + 1])
        yield from finishing(requests, message.envelope.batch.rows)

    engine = through(Scripted(backwards), (call_of(plus_one), (0,)))
    assert all_outcomes(engine, numbered(20)) == [(x, x + 1) for x in range(20)]


def finishing(requests, rows):
    for message in requests:
        if message.envelope.HasField("finish"):
            yield finished(rows)
            return


# Equal calls.


def counting(**declared):
    calls = []

    @udf.scalar(**declared)
    def shown(x: float) -> str:
        calls.append(x)
        return str(x)

    return shown, calls


@pytest.mark.parametrize("ordered", [True, False])
def test_equal_calls_of_a_row_are_made_once_though_they_come_from_different_columns(ordered):
    shown, calls = counting()
    batch = pa.record_batch({"x": [1.5, 2.5], "same": [1.5, 2.5], "other": [1.5, 3.5]})
    with LocalTransport(shown) as transport:
        planned = [(call_of(shown), (column,)) for column in (0, 1, 2, 0)]
        found = sorted(all_outcomes(through(transport, *planned, ordered=ordered), iter([batch])), key=str)
    assert found == [(1.5, *["1.5"] * 4), (2.5, "2.5", "2.5", "3.5", "2.5")]
    assert sorted(calls) == [1.5, 1.5, 2.5, 3.5]


def test_zeros_of_both_signs_are_different_arguments():
    shown, _ = counting()
    plain, nested = pa.array([0.0]), pa.array([[0.0]])
    for zero in (plain, nested):
        minus = pa.array([[-0.0]] if zero is nested else [-0.0])
        table = pa.table({"x": zero, "y": minus, "z": zero})
        assert not engine_module._equal(table, 0, 1)
        assert engine_module._equal(table, 0, 2)
    batch = pa.record_batch({"x": plain, "y": pa.array([-0.0])})
    with LocalTransport(shown) as transport:
        engine = through(transport, (call_of(shown), (0,)), (call_of(shown), (1,)))
        assert all_outcomes(engine, iter([batch])) == [(0.0, "0.0", "-0.0")]


def test_a_column_equals_itself_even_where_its_values_do_not():
    shown, calls = counting()
    with LocalTransport(shown) as transport:
        engine = through(transport, (call_of(shown), (0,)), (call_of(shown), (0,)))
        ((x, *found),) = all_outcomes(engine, iter([pa.record_batch({"x": [math.nan]})]))
    assert math.isnan(x) and found == ["nan", "nan"] and len(calls) == 1


@pytest.mark.parametrize("different", ["not deterministic", "options", "server"])
def test_calls_that_may_differ_are_made_each(different):
    shown, calls = counting(deterministic=different != "not deterministic")
    one = other = call_of(shown)
    if different == "options":
        other = call_of(shown, max_attempts=3)
    elif different == "server":
        other = dataclasses.replace(one, config=ClientConfig("elsewhere"))
    with LocalTransport(shown) as transport:
        engine = through(transport, (one, (0,)), (other, (0,)))
        assert all_outcomes(engine, iter([pa.record_batch({"x": [1.5]})])) == [(1.5, "1.5", "1.5")]
    assert calls == [1.5, 1.5]


# Rows that another call's error blocks.


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_with_an_error_among_their_arguments_are_not_sent_and_get_that_error(ordered):
    seen = []

    @udf.scalar
    def outer(x: int) -> int:
        seen.append(x)
        return x * 2

    blocked = {1: row_error("inner failed", ErrorCode.TIMEOUT, attempts=4), 3: row_error()}
    batches = [
        pa.record_batch({"x": pa.array(range(5)), "x_error": error_array(5, blocked)}),
        pa.record_batch({"x": pa.array([5]), "x_error": error_array(1, {0: row_error()})}),
    ]
    with LocalTransport(outer) as transport:
        engine = through(transport, PlannedCall(call_of(outer), (0,), (1,)), ordered=ordered)
        found = [row for completed in engine.run(iter(batches)) for row in outcomes(completed)]
    failed = ErrorCode.FUNCTION_ERROR
    assert sorted(found) == [(0, 0), (1, ErrorCode.TIMEOUT), (2, 4), (3, failed), (4, 8), (5, failed)]
    assert sorted(seen) == [0, 2, 4]


# Bounds.


def test_input_is_not_read_beyond_what_may_wait_for_a_slow_first_row(monkeypatch):
    monkeypatch.setattr(engine_module, "HELD_BYTES", 40_000)
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

    run = through(Scripted(first_batch_last), (call_of(plus_two), (0,))).run(batches())
    first = next(run)
    # What was read when the first row could leave: 16 bytes of input and up to 8 of values each, and a batch more.
    assert rest_is_here.is_set()
    assert sum(read) * 24 >= 40_000
    assert sum(read) * 16 <= 40_000 + 100 * 16
    found = outcomes(first) + [row for completed in run for row in outcomes(completed)]
    assert found == [(x, x + 2) for x in range(30_000)]


def test_no_more_rows_are_under_way_than_the_window_allows():
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
        engine = RowEngine([PlannedCall(call_of(slowly, batch_rows=5), (0,))], watched, ordered=True)
        assert len(all_outcomes(engine, numbered(300, 300))) == 600
    assert 5 < max(most) <= 5 * MESSAGES_UNDER_WAY


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
    engine = RowEngine(planned, lambda call, schema: stream_of(call, transports[call.spec.name], schema), ordered=False)
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


def test_readers_end_when_the_input_does(local):
    engine = through(local, (call_of(plus_one), (0,)), (call_of(odd_only), (0,)), ordered=False)
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
    engine = RowEngine(
        planned, lambda call, schema: stream_of(call, transports[call.spec.name], schema), ordered=ordered
    )
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
    engine = RowEngine(planned, lambda call, schema: stream_of(call, transports[call.spec.name], schema), ordered=False)
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
