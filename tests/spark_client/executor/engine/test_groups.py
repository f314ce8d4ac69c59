"""Rows are emitted when every call has answered them: in order, or as they complete."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.engine import groups, pieces
from spark_client.executor.engine.groups import Group
from spark_client.executor.engine.row_engine import RowEngine
from spark_client.executor.stream.runtime import Runtime
from tests.spark_client.scripted import row_error


def table_of(rows):
    return pa.table({"x": list(range(rows))})


@st.composite
def arrivals(draw, rows, calls):
    """Outcomes of all rows of all calls, cut and mixed: (call, rows), consecutive ones as ranges now and then."""
    parts = []
    for call in range(calls):
        order = draw(st.permutations(range(rows)))
        if draw(st.booleans()):
            order = list(range(rows))
        while order:
            count = draw(st.integers(1, len(order)))
            part, order = order[:count], order[count:]
            consecutive = part == list(range(part[0], part[0] + len(part)))
            parts.append((call, range(part[0], part[0] + len(part)) if consecutive else np.array(part)))
    return draw(st.permutations(parts))


def outcome(call, row):
    """The value, or the message of the error, that this call has for this row."""
    return f"no {call} {row}" if (row + call) % 5 == 0 else 1000 * call + row


def add(group, call, rows):
    values, errors = [], {}
    for index, row in enumerate(map(int, rows)):
        result = outcome(call, row)
        values.append(None if isinstance(result, str) else result)
        if isinstance(result, str):
            errors[index] = row_error(result)
    group.add(call, rows, pa.array(values, pa.int64()), errors)


def check(completed, sources):
    """Checks that the parts of each emitted row belong together; returns the rows."""
    rows = completed.table.column("x").to_pylist()
    for call, source in enumerate(sources):
        for index, row in enumerate(rows):
            error = completed.errors[call].get(index)
            assert outcome(source, row) == (error.message if error else completed.values[call][index].as_py())
        assert set(completed.errors[call]) <= set(range(len(rows)))
    return rows


@given(st.integers(1, 20), st.integers(1, 3), st.data())
def test_all_rows_leave_in_order_whatever_the_order_of_outcomes(rows, calls, data):
    group = Group(table_of(rows), range(calls))
    for call, some in data.draw(arrivals(rows, calls)):
        assert not group.complete
        add(group, call, some)
    assert group.complete and not group.done
    assert check(group.take_all(), range(calls)) == list(range(rows))
    assert group.done and group.bytes == 0


@given(st.integers(1, 20), st.integers(1, 3), st.data())
def test_rows_with_many_bytes_of_values_leave_in_pieces_in_order(rows, calls, data):
    sources = [*range(calls), 0]
    group = Group(table_of(rows), sources, most_bytes=0)
    for call, some in data.draw(arrivals(rows, calls)):
        assert not list(group.take_front())
        add(group, call, some)
    most = data.draw(st.integers(1, 200))
    gone = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(groups, "cuts", lambda widths: pieces.cuts(widths, most))
        for completed in group.take_front():
            assert completed.first == len(gone)
            gone += check(completed, sources)
            assert completed.table.num_rows == 1 or 8 * completed.table.num_rows * calls <= most
    assert gone == list(range(rows))
    assert group.done and group.bytes == 0


@pytest.mark.slow
def test_values_that_do_not_fit_one_array_leave_in_pieces_that_do():
    rows, texts = 2200, pa.array(["x" * 1_000_000] * 10)
    group = Group(table_of(rows), [0], most_bytes=pieces.WHOLE_BYTES)
    # Arrays over the same memory: together more than the offsets of one array can tell.
    for start in range(0, rows, 10):
        group.add(0, range(start, start + 10), texts, {})
    gone = []
    for completed in group.take_front():
        assert completed.values[0].nbytes < 2 * pieces.PIECE_BYTES
        gone += completed.table.column("x").to_pylist()
    assert group.done and gone == list(range(rows))


@given(st.integers(1, 20), st.integers(1, 3), st.data())
def test_each_row_leaves_once_as_soon_as_its_last_outcome_is_there(rows, calls, data):
    group = Group(table_of(rows), range(calls))
    group.track()
    waiting = dict.fromkeys(range(rows), calls)
    gone = []
    for call, some in data.draw(arrivals(rows, calls)):
        add(group, call, some)
        for row in map(int, some):
            waiting[row] -= 1
        if data.draw(st.booleans(), label="take"):
            ready = sorted(row for row, owed in waiting.items() if not owed and row not in gone)
            completed = group.take_complete()
            assert (check(completed, range(calls)) if completed else []) == ready
            gone += ready
            if data.draw(st.booleans(), label="compact"):
                group.compact()
    completed = group.take_complete()
    gone += check(completed, range(calls)) if completed else []
    assert sorted(gone) == list(range(rows))
    assert group.done and group.complete and group.bytes == 0 and group.take_complete() is None


def test_calls_that_share_a_source_share_its_outcomes():
    sources = [0, 1, 0]
    group = Group(table_of(7), sources)
    add(group, 1, range(7))
    assert not group.complete
    add(group, 0, range(7))
    assert check(group.take_all(), sources) == list(range(7))


def test_rows_that_left_are_let_go_once_most_have():
    group = Group(table_of(10_000), [0])
    group.track()
    before = group.bytes
    add(group, 0, np.array([row for row in range(10_000) if row != 4321]))
    assert group.bytes > before
    group.take_complete()
    group.compact()
    assert group.bytes < before / 1000
    add(group, 0, range(4321, 4322))
    assert check(group.take_complete(), [0]) == [4321]


def test_rows_without_a_call_leave_whole_however_small_the_pieces_may_be():
    batches = [pa.record_batch({"x": pa.array([1, 2, 3])})]

    def never(call, schema):
        raise AssertionError("there is no call to open")

    engine = RowEngine([], Runtime(never), ordered=True, most_bytes=1)
    assert [completed.table.column("x").to_pylist() for completed in engine.run(iter(batches))] == [[1, 2, 3]]
