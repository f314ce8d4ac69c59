"""Input batches as tables of a bundle's size."""

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.segments.cutting import tables_of
from tests.spark_client.executor.aggregate.world import batches_of
from tests.spark_client.scripted import Clock

NEVER = float("inf")


def numbers(count):
    return pa.table({"x": pa.array(range(count), pa.int64())})


def cut(table, cuts, size, **arguments):
    return list(tables_of(batches_of(table, cuts), lambda: size, **{"allow_latency": NEVER, **arguments}))


@given(st.integers(0, 60), st.lists(st.integers(0, 60)), st.integers(1, 20), st.integers(1, 200))
def test_rows_stay_whole_and_in_order_and_no_table_is_above_the_size(rows, cuts, size, bundle_bytes):
    tables = cut(numbers(rows), cuts, size, bundle_bytes=bundle_bytes)
    assert [x for table in tables for x in table["x"].to_pylist()] == list(range(rows))
    assert all(1 <= table.num_rows <= size for table in tables)
    # A row may be larger than a bundle; it is alone then.
    assert all(table.num_rows * 8 <= max(bundle_bytes, 8) for table in tables)


@given(st.integers(0, 60), st.lists(st.integers(0, 60)), st.integers(1, 20))
def test_tables_are_full_but_for_the_last_one(rows, cuts, size):
    sizes = [table.num_rows for table in cut(numbers(rows), cuts, size)]
    assert all(found == size for found in sizes[:-1])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_the_size_may_change_from_table_to_table(batches, sizes):
    rows = sum(batches)
    ends = [sum(batches[: i + 1]) for i in range(len(batches))]
    asked = itertools.cycle(sizes)
    size = [next(asked)]
    found = []
    for table in tables_of(batches_of(numbers(rows), ends), lambda: size[0], NEVER):
        assert table.num_rows <= size[0]
        found += table["x"].to_pylist()
        size[0] = next(asked)
    assert found == list(range(rows))


def test_a_table_leaves_when_its_first_row_has_waited_long_enough():
    clock = Clock()

    def slow():
        for batch in batches_of(numbers(6), range(6)):
            yield batch
            clock.now += 1.0

    tables = list(tables_of(slow(), lambda: 100, 2.0, clock=clock))
    assert [table.num_rows for table in tables] == [3, 3]


def test_batches_without_rows_are_left_out():
    empty = pa.RecordBatch.from_pylist([], schema=numbers(0).schema)
    assert list(tables_of(iter([empty, empty]), lambda: 1, NEVER)) == []
