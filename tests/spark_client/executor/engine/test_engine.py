"""RowEngine: rows of a task through all its calls, for any cut of the input and any order of outcomes."""

import threading

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode
from spark_client.testing import FaultyTransport, LocalTransport
from tests.properties import examples
from tests.spark_client.engines import all_outcomes, numbered, outcomes, plus_one, through
from tests.spark_client.scripted import (
    Scripted,
    call_of,
    finished,
    numbers,
    opened,
    scattered,
)


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


def check(transport, sizes, ordered, mode):
    """Runs rows, in batches of these sizes, through three functions."""
    engine = through(
        transport,
        (call_of(plus_one, output_mode=mode), (0,)),
        (call_of(odd_only, output_mode=mode), (0,)),
        (call_of(total, arguments=2, output_mode=mode), (0, 1)),
        ordered=ordered,
    )
    found = all_outcomes(engine, numbered(*sizes))
    assert (found if ordered else sorted(found)) == [
        (x, x + 1, -x if x % 2 else ErrorCode.FUNCTION_ERROR, 11 * x) for x in range(sum(sizes))
    ]


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), max_size=8), st.booleans(), st.sampled_from(["ordered", "unordered"]))
def test_outcomes_do_not_depend_on_the_cut_of_the_input_or_on_the_order_of_answers(local, sizes, ordered, mode):
    check(local, sizes, ordered, mode)


@examples(40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 40), max_size=8), st.booleans(), st.integers(0, 10_000))
def test_outcomes_do_not_depend_on_connections_that_break(local, sizes, ordered, seed):
    check(FaultyTransport(local, seed, loss_rate=0.2), sizes, ordered, "ordered" if ordered else "unordered")


@pytest.mark.parametrize("ordered", [True, False])
def test_without_rows_no_stream_is_opened(ordered):
    opened_calls = []
    engine = through(None, (call_of(plus_one), (0,)), ordered=ordered, opened_calls=opened_calls)
    assert all_outcomes(engine, numbered(0, 0)) == []
    assert opened_calls == []


@pytest.mark.parametrize("ordered", [True, False])
def test_all_calls_of_a_row_are_in_flight_together(ordered):
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
