"""Small input batches are sent together if the function is faster than its input."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.engine.messages import PATIENCE_SECONDS, merged
from spark_client.executor.scalar.column import Boundaries
from spark_client.executor.stream.in_flight import MESSAGE_BYTES
from tests.spark_client.scripted import Clock


def batches_of(*sizes, clock=None, seconds=0.0):
    """Batches of so many rows, numbered through, each so many seconds after it was asked for."""
    first = 0
    for size in sizes:
        if clock is not None:
            clock.now += seconds
        yield pa.record_batch({"x": pa.array(range(first, first + size), pa.int64())})
        first += size


def rows_of(tables):
    return [table.num_rows for table in tables]


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 100), st.lists(st.booleans(), max_size=20))
def test_rows_stay_in_order_and_nothing_is_lost_or_empty(sizes, wanted, slow):
    clock = Clock()

    def batches():
        for batch, late in zip(batches_of(*sizes), slow + [False] * len(sizes), strict=False):
            clock.now += 1.0 if late else 0.0
            yield batch

    tables = list(merged(batches(), lambda: wanted, clock))
    assert [x for table in tables for x in table.column("x").to_pylist()] == list(range(sum(sizes)))
    assert all(rows_of(tables))
    largest = max(sizes, default=0)
    assert all(rows <= max(wanted, largest) for rows in rows_of(tables))


def test_batches_are_joined_up_to_the_rows_wanted():
    assert rows_of(merged(batches_of(10, 10, 10, 10), lambda: 25, Clock())) == [20, 20]
    assert rows_of(merged(batches_of(10, 10, 10, 10), lambda: 30, Clock())) == [30, 10]


def test_a_batch_is_never_cut_here():
    assert rows_of(merged(batches_of(100, 3), lambda: 10, Clock())) == [100, 3]


def test_slow_input_is_handed_on_at_once():
    clock = Clock()
    tables = merged(batches_of(1, 1, 1, clock=clock, seconds=2 * PATIENCE_SECONDS), lambda: 100, clock)
    assert rows_of(tables) == [1, 1, 1]


def test_large_rows_are_not_joined_beyond_the_bytes_of_a_message():
    large = pa.record_batch({"x": [b"x" * (MESSAGE_BYTES // 2 + 1)]})
    assert rows_of(merged(iter([large, large, large]), lambda: 100, Clock())) == [1, 1, 1]


def test_no_more_is_read_than_was_asked_for():
    read = []

    def batches():
        for batch in batches_of(5, 5, 5):
            read.append(batch)
            yield batch

    tables = merged(batches(), lambda: 5, Clock())
    next(tables)
    assert len(read) == 1


@given(st.lists(st.integers(0, 50), max_size=20), st.integers(1, 100))
def test_the_output_of_merged_batches_is_cut_into_one_batch_for_each(sizes, wanted):
    boundaries = Boundaries()
    tables = merged(boundaries.noted(batches_of(*sizes)), lambda: wanted, Clock())
    # The last batches may have no rows and no table.
    ends = pa.array([], pa.int64())
    columns = [*(table.column("x").combine_chunks() for table in tables), ends]
    parts = [part for column in columns for part in boundaries.cut(column)]
    assert [len(part) for part in parts] == sizes
    assert [x for part in parts for x in part.to_pylist()] == list(range(sum(sizes)))
