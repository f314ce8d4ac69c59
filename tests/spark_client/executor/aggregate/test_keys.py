"""Detection of rows with equal keys."""

import datetime
import decimal
import math
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.segments.keys import key_codes, run_starts

MOMENTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))
DECIMALS = st.decimals(-99, 99, places=2)
VALUES = {
    pa.int64(): st.integers(-2, 2),
    pa.string(): st.sampled_from(["", "a", "b", "null", "a\0"]),
    pa.binary(): st.binary(max_size=1),
    pa.bool_(): st.booleans(),
    pa.decimal128(4, 2): st.sampled_from([decimal.Decimal("1.10"), decimal.Decimal("1.01"), decimal.Decimal("-1.10")]),
    pa.date32(): st.sampled_from([datetime.date(2024, 1, 1), datetime.date(1969, 12, 31)]),
    pa.timestamp("us"): st.sampled_from([datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 1, 0, 0, 0, 1)]),
    pa.duration("us"): st.sampled_from([datetime.timedelta(0), datetime.timedelta(microseconds=1)]),
    pa.null(): st.none(),
    pa.list_(pa.int64()): st.lists(st.integers(0, 1) | st.none(), max_size=2),
    pa.map_(pa.string(), pa.int64()): st.lists(st.tuples(st.just("a"), st.integers(0, 1)), max_size=1),
    pa.struct([("x", pa.int64()), ("y", pa.struct([("z", pa.string())]))]): st.fixed_dictionaries({
        "x": st.integers(0, 1) | st.none(),
        "y": st.none() | st.fixed_dictionaries({"z": st.sampled_from(["", "a"]) | st.none()}),
    }),
}  # fmt: skip


@st.composite
def tables(draw):
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 30))
    return [pa.array(draw(st.lists(VALUES[type_] | st.none(), min_size=rows, max_size=rows)), type_) for type_ in types]


def chunked(array, chunks):
    """Returns the array in `chunks` pieces."""
    width = max(1, len(array) // chunks)
    return pa.chunked_array([array.slice(i, width) for i in range(0, len(array), width)], array.type)


@given(tables(), st.integers(1, 3))
def test_codes_are_equal_where_every_part_of_the_key_is_equal_and_nowhere_else(arrays, chunks):
    rows = len(arrays[0])
    codes, count = key_codes([chunked(array, chunks) for array in arrays], rows)
    keys = [repr(key) for key in zip(*(array.to_pylist() for array in arrays), strict=True)]
    assert len(codes) == rows
    assert [codes[i] == codes[j] for i in range(rows) for j in range(rows)] == [
        keys[i] == keys[j] for i in range(rows) for j in range(rows)
    ]
    assert not rows or 0 <= codes.min() <= codes.max() < count


@pytest.mark.parametrize("type_", [pa.float32(), pa.float64()])
def test_all_nans_are_one_key_and_so_are_both_zeros(type_):
    other_nan = struct.unpack("d", b"\x01\0\0\0\0\0\xf8\xff")[0]
    column = pa.chunked_array([pa.array([0.0, -0.0, math.nan, -math.nan, other_nan, None, 1.0], type_)])
    codes, count = key_codes([column], 7)
    assert codes.tolist() == [0, 0, 1, 1, 1, 2, 3]
    assert count == 4


def test_floats_in_structs_are_no_exception():
    type_ = pa.struct([("x", pa.float64())])
    column = pa.chunked_array([pa.array([{"x": -0.0}, {"x": 0.0}, {"x": math.nan}, {"x": -math.nan}, None], type_)])
    zero, same_zero, nan, same_nan, null = key_codes([column], 5)[0].tolist()
    assert (zero, nan) == (same_zero, same_nan)
    assert sorted({zero, nan, null}) == [0, 1, 2]


@given(
    st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64()]).flatmap(
        lambda type_: st.tuples(
            st.just(type_),
            st.lists(
                st.none()
                | st.sampled_from([-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1])
                | st.integers(-3, 3),
                min_size=1,
                max_size=200,
            ),
        )
    )
)
def test_integers_near_and_far_are_distinct_and_their_numbers_have_no_gaps(world):
    type_, values = world
    codes, count = key_codes([pa.chunked_array([pa.array(values, type_)])], len(values))
    number = dict(zip(values, codes.tolist(), strict=True))
    assert codes.tolist() == [number[value] for value in values]
    assert sorted(number.values()) == list(range(count))


def test_a_null_struct_is_not_a_struct_of_nulls():
    type_ = pa.struct([("x", pa.int64())])
    codes, _ = key_codes([pa.chunked_array([pa.array([None, {"x": None}], type_)])], 2)
    assert codes[0] != codes[1]


def test_many_columns_of_many_values_do_not_run_into_each_other():
    """64 columns of 1,000 values each: their product is far beyond 64 bits."""
    columns = [pa.chunked_array([pa.array([(row * (c + 1)) % 1000 for row in range(1000)])]) for c in range(64)]
    codes, count = key_codes(columns, 1000)
    assert count == 1000
    assert sorted(codes.tolist()) == list(range(1000))


def test_without_columns_all_rows_have_one_key():
    assert key_codes([], 3)[0].tolist() == [0, 0, 0]
    assert key_codes([], 0)[1] == 0


@given(st.lists(st.tuples(st.integers(0, 2) | st.none(), st.integers(0, 1)), max_size=20))
def test_runs_begin_where_the_key_changes(keys):
    columns = [pa.chunked_array([pa.array([key[i] for key in keys], pa.int64())]) for i in range(2)]
    expected = [i for i, key in enumerate(keys) if i == 0 or key != keys[i - 1]]
    assert run_starts(columns, len(keys)).tolist() == expected
