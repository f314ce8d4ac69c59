"""Values: Arrow columns to Python values and back, for every type."""

import datetime
import decimal
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.types import TIMESTAMP, accepts
from tests.remote_udf.strategies import types, values_of
from udf_server.declaring.annotations import codecs_for
from udf_server.runners.runner import cast_columns
from udf_server.values.values import codec_for_type, encode_rows

typed_values = types.flatmap(lambda type_: st.tuples(st.just(type_), st.lists(values_of(type_), max_size=6)))
WHEN = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456, datetime.UTC)
MICROSECOND = datetime.timedelta(microseconds=1)
HALF_HOUR = datetime.timedelta(minutes=30)


@given(typed_values)
def test_what_is_encoded_decodes_as_the_same(pair):
    type_, values = pair
    codec = codec_for_type(type_)
    column = codec.encode(values)
    column.validate(full=True)
    assert column.type == type_
    assert codec.decode(column) == values


@pytest.mark.slow
@given(typed_values, st.data())
def test_a_slice_decodes_as_its_rows(pair, data):
    type_, values = pair
    codec = codec_for_type(type_)
    first = data.draw(st.integers(0, len(values)))
    count = data.draw(st.integers(0, len(values) - first))
    assert codec.decode(codec.encode(values).slice(first, count)) == values[first : first + count]


@given(typed_values)
def test_encoding_agrees_with_arrow(pair):
    type_, values = pair
    assert codec_for_type(type_).encode(values).equals(pa.array(values, type_))


@given(typed_values, st.lists(st.integers(0, 5), max_size=3))
def test_a_value_of_another_type_fails_alone(pair, places):
    type_, values = pair
    stranger = object()
    spoilt = [stranger if index in places else value for index, value in enumerate(values)]
    column, failures = encode_rows(codec_for_type(type_), spoilt)
    bad = {index for index in places if index < len(values)}
    assert failures.keys() == bad
    assert codec_for_type(type_).decode(column) == [None if i in bad else value for i, value in enumerate(values)]


@dataclass
class Point:
    lat: float
    lon: float | None


class Pair(NamedTuple):
    left: str | None
    points: list[Point | None] | None


TIMESTAMP_OF_NTZ = Annotated[datetime.datetime, "timestamp_ntz"]
MONEY = Annotated[decimal.Decimal, "decimal(10,2)"]
ROUND_TRIPS = [
    (bool, [True, None, False]),
    (int, [0, None, 2**63 - 1, -(2**63)]),
    (float, [0.5, None, float("inf"), 5e-324]),
    (str, ["", None, "ä\U0001f600", "a\0b"]),
    (bytes, [b"", None, b"\x00\xff"]),
    (decimal.Decimal, [decimal.Decimal("1.5"), None, decimal.Decimal("-99999999999999999999.999999999999999999")]),
    (MONEY, [decimal.Decimal("1.25"), None]),
    (datetime.date, [datetime.date(1, 1, 1), None, datetime.date(9999, 12, 31)]),
    (datetime.datetime, [WHEN, None, datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)]),
    (TIMESTAMP_OF_NTZ, [WHEN.replace(tzinfo=None), None, datetime.datetime(1, 1, 1)]),
    (datetime.timedelta, [HALF_HOUR, None, -HALF_HOUR, datetime.timedelta(days=100_000_000, microseconds=1)]),
    (datetime.timedelta, [-(2**63) * MICROSECOND, None, (2**63 - 1) * MICROSECOND]),
    (dict[str, datetime.timedelta], [{"smallest": -(2**63) * MICROSECOND, "none": None}]),
    (datetime.time, [datetime.time(1, 2, 3, 4), None]),
    (list[int], [[], None, [1, None, 3]]),
    (list[list[str]], [[], None, [None, [], [None, "a"]]]),
    (dict[str, int], [{}, None, {"a": 1, "b": None}]),
    (dict[str, dict[int, str]], [{}, None, {"a": None, "b": {}, "c": {1: None}}]),
    (dict[datetime.date, list[bool]], [{datetime.date(2024, 1, 1): [True, None]}, None]),
    (Point, [Point(1.0, None), None, Point(2.0, 3.0)]),
    (Pair, [Pair("a", [Point(1.0, 2.0), None]), None, Pair(None, None), Pair("", [])]),
    (dict[str, Point], [{"a": Point(1.0, 2.0), "b": None}, None]),
]


@pytest.mark.parametrize(("annotation", "values"), ROUND_TRIPS, ids=str)
@pytest.mark.parametrize("kind", ["async", "threads"])
async def test_values_of_every_type_go_in_and_come_out(environment, annotation, values, kind):
    seen = []
    if kind == "async":

        @udf.scalar
        async def same(value: annotation) -> annotation:
            seen.append(value)
            return value
    else:

        @udf.scalar
        def same(value: annotation) -> annotation:
            seen.append(value)
            return value

    result = await environment.run(same, values)
    assert result.errors == {}
    assert seen == values
    [codec] = codecs_for(annotation, "test")
    assert codec.decode(result.values) == values


@pytest.mark.parametrize(("annotation", "values"), ROUND_TRIPS, ids=str)
async def test_arrays_of_every_type_go_in_and_come_out(environment, annotation, values):
    @udf.scalar(vectorized=True)
    def same(column: annotation) -> annotation:
        return column

    [codec] = codecs_for(annotation, "test")
    assert codec.decode((await environment.run(same, values)).values) == values


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, np.float32, np.float64])
async def test_numpy_scalars_arrive_as_the_author_asked(environment, kind):
    @udf.scalar
    def next_one(value: kind) -> kind:
        assert type(value) is kind
        return value + kind(1)

    result = await environment.run(next_one, [kind(1), kind(2)])
    assert result.to_pylist() == [2, 3]
    assert result.values.type == pa.from_numpy_dtype(kind)


async def test_a_timestamp_arrives_in_utc_and_may_leave_in_any_zone(environment):
    @udf.scalar
    def elsewhere(when: datetime.datetime) -> datetime.datetime:
        assert when.tzinfo is datetime.UTC
        return when.astimezone(ZoneInfo("Asia/Kolkata"))

    result = await environment.run(elsewhere, [WHEN])
    assert result.to_pylist() == [WHEN]
    assert result.values.type == TIMESTAMP


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (pa.array([1, None], pa.int8()), [1.0, None]),
        (pa.array([1, None], pa.int64()), [1.0, None]),
        (pa.array([0.5, None], pa.float32()), [0.5, None]),
        (pa.array([decimal.Decimal("1.5"), None], pa.decimal128(10, 2)), [1.5, None]),
        (pa.nulls(2), [None, None]),
    ],
    ids=str,
)
async def test_narrower_arguments_are_widened(environment, sent, expected):
    @udf.scalar
    def same(value: float) -> float:
        return value

    assert (await environment.run(same, sent)).to_pylist() == expected


def widest(type_: pa.DataType) -> pa.DataType:
    """The type with every number in it as a double."""
    if pa.types.is_list(type_):
        return pa.list_(pa.field("element", widest(type_.value_type)))
    if pa.types.is_map(type_):
        return pa.map_(pa.field("key", type_.key_type, nullable=False), pa.field("value", widest(type_.item_type)))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, widest(field.type)) for field in type_])
    return pa.float64() if accepts(pa.float64(), type_) else type_


def rounded(value: object, type_: pa.DataType) -> object:
    """The value with every number in it, of the wide type, as the nearest double."""
    if value is None:
        return None
    if pa.types.is_list(type_):
        return [rounded(each, type_.value_type) for each in value]
    if pa.types.is_map(type_):
        return {key: rounded(item, type_.item_type) for key, item in value.items()}
    if pa.types.is_struct(type_):
        return {field.name: rounded(value[field.name], field.type) for field in type_}
    return pytest.approx(float(value)) if pa.types.is_float64(type_) else value


@given(typed_values)
def test_widening_never_fails_at_any_depth(pair):
    sent, values = pair
    wide = widest(sent)
    assert accepts(wide, sent) == wide
    [column] = cast_columns([pa.array(values, sent)], [wide])
    assert codec_for_type(wide).decode(column) == [rounded(value, wide) for value in values]


@example(2**53 + 1)
@given(st.integers(-(2**63), 2**63 - 1))
def test_an_integer_in_a_container_is_rounded_as_one_alone(number):
    wide = pa.list_(pa.field("element", pa.float64()))
    [column] = cast_columns([pa.array([[number, None], None])], [wide])
    assert column.to_pylist() == [[float(number), None], None]


async def test_a_union_parameter_gets_the_type_that_was_sent(environment):
    @udf.scalar
    def kind(value: int | str | list[float]) -> str:
        return type(value).__name__

    assert (await environment.run(kind, pa.array([1]))).to_pylist() == ["int"]
    assert (await environment.run(kind, pa.array(["a"]))).to_pylist() == ["str"]
    assert (await environment.run(kind, pa.array([[0.5]]))).to_pylist() == ["list"]
