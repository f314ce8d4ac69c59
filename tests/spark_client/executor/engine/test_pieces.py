"""Columns are taken in pieces of bounded size, whatever their type and however they are cut."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.engine import pieces
from spark_client.executor.engine.pieces import LongColumn, cuts, row_bytes
from spark_client.executor.segments import keys
from tests.remote_udf.strategies import types, values_of

COLUMNS = types.flatmap(
    lambda type_: st.lists(
        st.lists(values_of(type_), max_size=5).map(lambda values: pa.array(values, type_)), max_size=4
    ).map(lambda chunks: pa.chunked_array(chunks, type_))
)


@pytest.fixture(autouse=True, scope="module")
def _tiny():
    """Sets the limit so low that any data is too large for one piece."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "WHOLE_BYTES", 1)
        patch.setattr(keys, "WHOLE_BYTES", 20)
        yield


@given(COLUMNS, st.data())
def test_what_is_taken_from_pieces_is_what_is_taken_from_the_whole(column, data):
    wanted = st.lists(st.integers(0, len(column) - 1)) if len(column) else st.just([])
    rows = np.array(data.draw(wanted), np.int64)
    whole = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    found = LongColumn(column).take(rows)
    assert found.type == column.type
    assert found.equals(whole.take(pa.array(rows)))


def leaves(type_):
    return sum(leaves(type_.field(index).type) for index in range(type_.num_fields)) or 1


@given(COLUMNS)
def test_each_row_takes_at_least_its_own_bytes_and_all_take_about_what_the_column_does(column):
    for chunk in column.chunks:
        widths = row_bytes(chunk)
        assert len(widths) == len(chunk)
        # The validity bits take whole bytes, however few rows there are.
        assert np.abs(row_bytes(chunk.slice(1)) - widths[1:]).max(initial=0) <= leaves(chunk.type)
        assert widths.sum() >= sum(len(value) for value in chunk.to_pylist() if isinstance(value, (str, bytes)))


@given(st.lists(st.integers(0, 9)), st.integers(1, 12))
def test_cuts_are_as_large_as_they_may_be_and_one_row_at_least(widths, most):
    found = list(cuts(np.array(widths, np.int64), most))
    assert [row for begin, end in found for row in range(begin, end)] == list(range(len(widths)))
    for begin, end in found:
        assert end - begin == 1 or sum(widths[begin:end]) <= most
        assert end == len(widths) or sum(widths[begin : end + 1]) > most


@given(st.lists(st.tuples(st.sampled_from(["a", "bb", None]), st.integers(0, 1)), max_size=40))
def test_runs_are_found_across_pieces(rows):
    columns = [pa.chunked_array([pa.array([row[i] for row in rows])]) for i in range(2)] if rows else []
    expected = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]
    assert keys.run_starts(columns, len(rows)).tolist() == expected
