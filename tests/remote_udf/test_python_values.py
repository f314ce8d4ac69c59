"""Scalar arguments of calls: a value that its type represents exactly is accepted, any other is refused."""

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.python_values import scalar_array
from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ
from tests.remote_udf.strategies import types, values_of

BERLIN = dt.timezone(dt.timedelta(hours=1))
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.decimals(), st.text(max_size=3), st.binary(max_size=3),
        st.dates(), st.datetimes(), st.datetimes(timezones=st.just(BERLIN)), st.timedeltas(), st.times(),
        st.integers(-300, 300), st.integers(-300, 300).map(np.int64), st.sampled_from([1.5, 1e39, 2**53 + 1]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.text(max_size=2), inner, max_size=2),
        st.dictionaries(st.sampled_from(["a", "b", "lat"]), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=4,
)  # fmt: skip


def same(value: Any, found: Any, type_: pa.DataType) -> bool:
    """Whether the value read back equals the given one, including its type."""
    if value is None or found is None:
        return value is found
    if pa.types.is_list(type_):
        return len(value) == len(found) and all(map(lambda a, b: same(a, b, type_.value_type), value, found))
    if pa.types.is_map(type_):
        pairs = list(value.items()) if isinstance(value, dict) else list(value)
        return len(pairs) == len(found) and all(
            a[0] == b[0] and same(a[1], b[1], type_.item_type) for a, b in zip(pairs, found, strict=True)
        )
    if pa.types.is_struct(type_):
        values = value if isinstance(value, tuple) else [value[field.name] for field in type_]
        return len(values) == len(found) and all(
            same(a, found[field.name], field.type) for a, field in zip(values, type_, strict=True)
        )
    if pa.types.is_floating(type_):
        if isinstance(value, (int, np.integer)):
            return int(found) == value
        near = float(np.float32(value)) if pa.types.is_float32(type_) else float(value)
        return found == near or (math.isnan(found) and math.isnan(value))
    return value == found and isinstance(value, bool) is isinstance(found, bool)


@given(types.flatmap(lambda type_: st.tuples(st.just(type_), values_of(type_))))
def test_every_value_of_a_type_is_taken(case):
    type_, value = case
    assert same(value, scalar_array(value, type_).to_pylist()[0], type_)


@given(value=VALUES, type_=types)
def test_a_value_arrives_as_it_was_given_or_is_refused(value, type_):
    try:
        array = scalar_array(value, type_)
    except (TypeError, ValueError, OverflowError, pa.ArrowException):
        return
    assert array.type == type_
    assert same(value, array.to_pylist()[0], type_)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (1.99, pa.int32()),
        (1.0, pa.int32()),
        (True, pa.int32()),
        (Decimal("1.5"), pa.int64()),
        (300, pa.int8()),
        (math.nan, pa.int32()),
        (2**53 + 1, pa.float64()),
        (1e39, pa.float32()),
        (Decimal("1e400"), pa.float64()),
        (Decimal("1.999"), pa.decimal128(5, 2)),
        (Decimal("1e-100000000"), pa.decimal128(5, 2)),
        (1.5, pa.decimal128(5, 2)),
        (1000, pa.decimal128(5, 2)),
        (Decimal("NaN"), pa.decimal128(5, 2)),
        (1, pa.bool_()),
        (b"x", pa.string()),
        ("x", pa.binary()),
        ("2026-01-01", pa.date32()),
        (dt.datetime(2026, 1, 1, 5), pa.date32()),
        (dt.datetime(2026, 1, 1), TIMESTAMP),
        (dt.datetime(2026, 1, 1, tzinfo=BERLIN), TIMESTAMP_NTZ),
        (dt.time(1, tzinfo=dt.UTC), pa.time64("ns")),
        ("ab", pa.list_(pa.string())),
        ([1, 2.5], pa.list_(pa.int32())),
        ({"k": 1.5}, pa.map_(pa.string(), pa.int32())),
        ({None: 1}, pa.map_(pa.string(), pa.int32())),
        ({"a": 1, "b": 2}, pa.struct([("a", pa.int32())])),
        ({}, pa.struct([("a", pa.int32())])),
        ((1, 2), pa.struct([("a", pa.int32())])),
        ({"a": [{"b": 1.5}]}, pa.struct([("a", pa.list_(pa.struct([("b", pa.int32())])))])),
    ],
)
def test_a_value_that_its_type_would_change_is_refused(value, type_):
    with pytest.raises((TypeError, ValueError, OverflowError, pa.ArrowException)):
        scalar_array(value, type_)


def test_a_decimal_is_the_nearest_double_since_literals_of_sql_are_decimals():
    assert scalar_array(Decimal("0.1"), pa.float64()).to_pylist() == [0.1]


@dataclass
class Place:
    name: str
    inner: "Place | None" = None


def test_a_struct_is_an_instance_of_a_dataclass_with_its_fields():
    inner = pa.struct([("inner", pa.struct([])), ("name", pa.string())])
    outer = pa.struct([("name", pa.string()), ("inner", inner)])
    assert scalar_array(Place("oslo", Place("a")), outer).to_pylist() == [
        {"name": "oslo", "inner": {"inner": None, "name": "a"}}
    ]
    with pytest.raises(ValueError, match="expected the fields name, got name, inner"):
        scalar_array(Place("oslo"), pa.struct([("name", pa.string())]))
    with pytest.raises(TypeError):
        scalar_array(Place, outer)
