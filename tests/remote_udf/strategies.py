"""Hypothesis strategies for types, values and columns, for the tests of client and server."""

import datetime
import decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ

__all__ = ["arrays", "field_names", "leaf_types", "types", "values_of"]

# Plain names, a name that needs quotes, a name of quotes, and a name outside ASCII.
field_names = st.sampled_from(["a", "b", "lat", "snake_case", "Upper", "has space", "back`tick", "é", "1"])

decimal_types = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))
leaf_types = decimal_types | st.sampled_from(
    [
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(),
        pa.binary(), pa.date32(), pa.time64("ns"), TIMESTAMP, TIMESTAMP_NTZ, pa.duration("us"),
    ]
)  # fmt: skip


def _nested(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    names = st.lists(field_names, min_size=1, max_size=3, unique=True)
    structs = names.flatmap(
        lambda n: st.tuples(*[inner] * len(n)).map(lambda t: pa.struct(list(zip(n, t, strict=True))))
    )
    lists = inner.map(lambda t: pa.list_(pa.field("element", t)))
    maps = st.tuples(leaf_types, inner).map(
        lambda pair: pa.map_(pa.field("key", pair[0], nullable=False), pa.field("value", pair[1]))
    )
    return lists | maps | structs


types = st.recursive(leaf_types, _nested, max_leaves=4)
"""Normalized types that cross the wire, nested ones among them."""

_DAY = datetime.timedelta(days=1)


def _decimals(type_: pa.DataType) -> st.SearchStrategy[decimal.Decimal]:
    most = 10**type_.precision - 1
    context = decimal.Context(prec=60)
    return st.integers(-most, most).map(lambda n: decimal.Decimal(n).scaleb(-type_.scale, context))


def values_of(type_: pa.DataType, *, nulls: bool = True) -> st.SearchStrategy[Any]:
    """Python values of a type, as a function would return them; NaN is excluded, since it equals nothing."""
    strategy: st.SearchStrategy[Any]
    if pa.types.is_boolean(type_):
        strategy = st.booleans()
    elif pa.types.is_integer(type_):
        strategy = st.integers(-(2 ** (type_.bit_width - 1)), 2 ** (type_.bit_width - 1) - 1)
    elif pa.types.is_floating(type_):
        strategy = st.floats(allow_nan=False, width=32 if type_.bit_width == 32 else 64)
    elif pa.types.is_decimal(type_):
        strategy = _decimals(type_)
    elif pa.types.is_string(type_):
        strategy = st.text(max_size=8)
    elif pa.types.is_binary(type_):
        strategy = st.binary(max_size=8)
    elif pa.types.is_date(type_):
        strategy = st.dates()
    elif pa.types.is_time(type_):
        strategy = st.times()
    elif type_ == TIMESTAMP:
        strategy = st.datetimes(timezones=st.just(datetime.UTC))
    elif type_ == TIMESTAMP_NTZ:
        strategy = st.datetimes()
    elif pa.types.is_duration(type_):
        strategy = st.timedeltas(-1_000_000 * _DAY, 1_000_000 * _DAY)
    elif pa.types.is_list(type_):
        strategy = st.lists(values_of(type_.value_type), max_size=3)
    elif pa.types.is_map(type_):
        keys = values_of(type_.key_type, nulls=False)
        strategy = st.dictionaries(keys, values_of(type_.item_type), max_size=3)
    else:
        strategy = st.fixed_dictionaries({field.name: values_of(field.type) for field in type_})
    return st.none() | strategy if nulls else strategy


@st.composite
def arrays(draw: st.DrawFn, type_: pa.DataType, rows: int | None = None) -> pa.Array:
    """A column, often a slice of a longer one: its buffers then begin before its first row."""
    before, after = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    count = draw(st.integers(0, 6)) if rows is None else rows
    total = before + count + after
    values = draw(st.lists(values_of(type_), min_size=total, max_size=total))
    return pa.array(values, type_).slice(before, count)
