"""The number of rows per message, and the number of rows in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.functions import Execution
from remote_udf.options import DEFAULT_CAPACITY
from spark_client.executor.stream.in_flight import (
    GROWTH,
    MESSAGE_BYTES,
    MESSAGES_IN_FLIGHT,
    VECTORIZED_FIRST,
    MessageSizing,
)
from tests.spark_client.scripted import Clock

MOST = 65_536
ROW_WISE = Execution.ASYNC_ROWS

answers = st.lists(st.tuples(st.integers(0, 100_000), st.floats(0, 10)), max_size=30)
"""Rows answered, and seconds since the answer before."""


def window(execution=ROW_WISE, capacity=None, batch_rows=MOST, clock=None):
    return MessageSizing(execution, capacity, batch_rows, clock or Clock())


def paced(window, clock, rows, seconds, times=20):
    for _ in range(times):
        clock.now += seconds
        window.answered(rows)


@given(st.sampled_from(Execution), st.none() | st.integers(1, 5_000), st.integers(1, 100_000), answers)
def test_a_message_has_at_least_one_row_and_at_most_batch_rows(execution, capacity, batch_rows, answers):
    clock = Clock()
    sizes = window(execution, capacity, batch_rows, clock)
    for rows, seconds in answers:
        clock.now += seconds
        sizes.answered(rows)
        assert 1 <= sizes.rows <= batch_rows


@given(st.none() | st.integers(1, 5_000), st.integers(1, 100_000), answers)
def test_messages_of_a_row_wise_function_never_hold_less_than_may_be_in_flight(capacity, batch_rows, answers):
    clock = Clock()
    sizes = window(ROW_WISE, capacity, batch_rows, clock)
    for rows, seconds in answers:
        clock.now += seconds
        sizes.answered(rows)
        assert sizes.rows >= min(batch_rows, capacity or DEFAULT_CAPACITY)


@given(st.sampled_from(Execution), answers, st.integers(0, 1 << 40))
def test_something_may_always_go_when_nothing_is_in_flight(execution, answers, bytes_):
    clock = Clock()
    sizes = window(execution, clock=clock)
    for rows, seconds in answers:
        clock.now += seconds
        sizes.answered(rows)
    assert sizes.has_room(0, bytes_)


@given(st.sampled_from(Execution), answers, st.integers(1, 10**7), st.floats(0, 1e9))
def test_the_next_chunk_is_within_what_there_is_and_fits_a_message_unless_it_is_one_row(
    execution, answers, available, bytes_per_row
):
    clock = Clock()
    sizes = window(execution, clock=clock)
    for rows, seconds in answers:
        clock.now += seconds
        sizes.answered(rows)
    rows = sizes.next_rows(available, bytes_per_row)
    assert 1 <= rows <= min(available, sizes.rows)
    assert rows == 1 or rows * bytes_per_row <= MESSAGE_BYTES


@given(st.sampled_from(Execution), answers, st.floats(0, 1e7))
def test_a_sender_that_asks_first_stays_within_the_bounds(execution, answers, bytes_per_row):
    clock = Clock()
    sizes = window(execution, clock=clock)
    for rows, seconds in answers:
        clock.now += seconds
        sizes.answered(rows)
    in_flight = messages = 0
    while sizes.has_room(in_flight, int(in_flight * bytes_per_row)):
        in_flight += sizes.next_rows(10**9, bytes_per_row)
        messages += 1
    assert in_flight < sizes.rows * (MESSAGES_IN_FLIGHT + 1)
    assert messages == 1 or (in_flight - 1) * bytes_per_row <= MESSAGE_BYTES * (MESSAGES_IN_FLIGHT + 1)


@pytest.mark.parametrize(
    ("execution", "capacity", "rows"),
    [
        (Execution.ASYNC_ROWS, None, DEFAULT_CAPACITY),
        (Execution.THREADED_ROWS, 7, 7),
        (Execution.ASYNC_ROWS, 1_000_000, MOST),
        (Execution.VECTORIZED, None, VECTORIZED_FIRST),
        (Execution.VECTORIZED, 4, VECTORIZED_FIRST),
    ],
)
def test_the_first_message_has_what_the_server_takes_at_once(execution, capacity, rows):
    assert window(execution, capacity).rows == rows


def test_messages_of_a_cheap_function_grow_to_the_largest():
    clock = Clock()
    sizes = window(clock=clock)
    for _ in range(20):
        clock.now += 0.02
        sizes.answered(sizes.rows * 10)
    assert sizes.rows == MOST


def test_messages_of_a_function_that_became_slow_shrink_to_the_capacity():
    clock = Clock()
    sizes = window(capacity=50, clock=clock)
    paced(sizes, clock, 1_000_000, 0.1)
    assert sizes.rows == MOST
    paced(sizes, clock, 10, 1.0)
    assert sizes.rows == 50


def test_a_message_grows_by_a_factor_at_a_time_since_one_answer_says_little():
    clock = Clock()
    sizes = window(capacity=10, clock=clock)
    clock.now += 0.02
    sizes.answered(1_000_000)
    assert sizes.rows == 10 * GROWTH


def test_a_few_answers_in_an_instant_change_nothing():
    clock = Clock()
    sizes = window(clock=clock)
    clock.now += 0.001
    sizes.answered(DEFAULT_CAPACITY - 1)
    assert sizes.rows == DEFAULT_CAPACITY


def test_large_rows_fill_the_window_by_their_bytes():
    sizes = window()
    assert sizes.has_room(1, MESSAGE_BYTES * MESSAGES_IN_FLIGHT - 1)
    assert not sizes.has_room(1, MESSAGE_BYTES * MESSAGES_IN_FLIGHT)
