"""Bytes of rows: what the cache compares and keeps."""

import contextlib
import datetime
import decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from udf_server.stores.row_bytes import Malformed, bytes_of_rows, rows_of_bytes

VALUES = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=5),
    pa.binary(): st.binary(max_size=5),
    pa.date32(): st.dates(),
    pa.timestamp("us", tz="UTC"): st.datetimes(timezones=st.just(datetime.UTC)),
    pa.duration("us"): st.timedeltas(datetime.timedelta(-1000), datetime.timedelta(1000)),
    pa.decimal128(10, 2): st.decimals(-99999, 99999, places=2).map(lambda value: value + decimal.Decimal("0.00")),
}


def columns(depth=2):
    def of(type_):
        if pa.types.is_list(type_):
            values = st.lists(of(type_.value_type), max_size=3)
        elif pa.types.is_struct(type_):
            values = st.fixed_dictionaries({field.name: of(field.type) for field in type_})
        elif pa.types.is_map(type_):
            values = st.dictionaries(st.text(max_size=2), of(type_.item_type), max_size=3).map(
                lambda d: list(d.items())
            )
        else:
            values = VALUES[type_]
        return st.none() | values

    leaf = st.sampled_from(list(VALUES))
    types = st.recursive(
        leaf,
        lambda inner: (
            inner.map(pa.list_)
            | inner.map(lambda value: pa.map_(pa.string(), value))
            | st.lists(inner, min_size=1, max_size=3).map(
                lambda parts: pa.struct([pa.field(str(i), part) for i, part in enumerate(parts)])
            )
        ),
        max_leaves=4,
    )
    return types.flatmap(lambda type_: st.lists(of(type_), max_size=6).map(lambda rows: pa.array(rows, type_)))


@given(columns())
def test_rows_come_back_from_their_bytes(array):
    back = rows_of_bytes(bytes_of_rows(array).to_pylist(), array.type)
    assert back.equals(array) and back.type == array.type


@given(columns(), st.data())
def test_the_bytes_of_a_row_depend_on_its_value_alone(array, data):
    whole = bytes_of_rows(array).to_pylist()
    start = data.draw(st.integers(0, len(array)))
    end = data.draw(st.integers(start, len(array)))
    assert bytes_of_rows(array.slice(start, end - start)).to_pylist() == whole[start:end]
    values = array.to_pylist()
    for i, left in enumerate(whole):
        for j, right in enumerate(whole):
            assert (left == right) == (repr(values[i]) == repr(values[j]))


@given(columns(), st.binary(max_size=40))
def test_other_bytes_are_refused_or_are_a_valid_array(array, noise):
    with contextlib.suppress(Malformed):
        rows_of_bytes([noise], array.type).validate(full=True)


@given(columns(), st.data())
def test_altered_bytes_never_make_an_invalid_array(array, data):
    rows = bytes_of_rows(array).to_pylist()
    if not rows or not rows[0]:
        return
    place = data.draw(st.integers(0, len(rows[0]) - 1))
    changed = bytearray(rows[0])
    changed[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(Malformed):
        rows_of_bytes([bytes(changed), *rows[1:]], array.type).validate(full=True)


def test_a_union_has_no_bytes():
    union = pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])
    with pytest.raises(TypeError, match="union"):
        bytes_of_rows(union)
