"""Values: Arrow columns to Python values and back, for every type, and what is refused."""

import copy
import datetime
import decimal
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ
from tests.remote_udf.strategies import types, values_of
from udf_server.base.annotations import codecs_for
from udf_server.base.values import codec_for_type, decode_rows, encode_rows

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


@dataclass
class Sub(Point):
    extra: str = ""


WRONG = [
    (bool, 1, "expected boolean, got a value of type int"),
    (int, 1.0, "expected bigint, got a value of type float"),
    (int, True, "expected bigint, got a value of type bool"),
    (int, 2**63, "OverflowError"),
    (int, "1", "expected bigint, got a value of type str"),
    (float, "1", "expected double, got a value of type str"),
    (str, b"a", "expected string, got a value of type bytes"),
    (str, "\ud800", "surrogates not allowed"),
    (bytes, "a", "expected binary, got a value of type str"),
    (MONEY, decimal.Decimal("1.255"), "Rescaling"),
    (MONEY, 1.5, "expected decimal(10,2), got a value of type float"),
    (MONEY, decimal.Decimal("123456789.00"), "precision"),
    (datetime.date, WHEN, "expected date, got a value of type datetime"),
    (datetime.datetime, WHEN.replace(tzinfo=None), "a datetime with zone"),
    (datetime.datetime, WHEN.date(), "expected timestamp, got a value of type date"),
    (TIMESTAMP_OF_NTZ, WHEN, "a datetime without zone"),
    (datetime.timedelta, 5, "expected interval day to second, got a value of type int"),
    (list[int], "abc", "expected array<bigint>, got a value of type str"),
    (list[int], [1, "a"], "expected bigint, got a value of type str"),
    (list[int], 5, "expected array<bigint>, got a value of type int"),
    (dict[str, int], [("a", 1)], "got a value of type list"),
    (dict[str, int], {None: 1}, "a key of a map cannot be None"),
    (dict[str, int], {1: 1}, "expected string, got a value of type int"),
    (Point, {"lat": 1.0, "lon": 2.0}, "expected Point, got a value of type dict"),
    (Point, Point("a", 1.0), "expected double, got a value of type str"),
    (Point, 5, "expected Point, got a value of type int"),
]


@pytest.mark.parametrize(("annotation", "value", "why"), WRONG, ids=str)
async def test_a_returned_value_of_another_type_is_an_error_of_its_row(environment, annotation, value, why):
    @udf.scalar
    async def f(index: int) -> annotation:
        return value if index == 1 else None

    result = await environment.run(f, [0, 1, 2])
    assert result.errors.keys() == {1}
    assert result.errors[1].code is ErrorCode.RESULT_TYPE
    assert why in result.errors[1].message
    assert result.values.to_pylist() == [None, None, None]


STRUCT = "struct<a:int,b:string>"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"a": 1}, "expected the fields a, b, got a"),
        ({"a": 1, "b": "x", "c": 2}, "expected the fields a, b, got a, b, c"),
        ({}, "expected the fields a, b, got "),
        ((1, "x"), "got a value of type tuple"),
        (5, "got a value of type int"),
    ],
)
async def test_a_dictionary_has_exactly_the_fields_of_its_struct(environment, value, why):
    @udf.scalar(returns=STRUCT)
    def f(index: int):
        return value if index else {"b": "y", "a": 1}

    result = await environment.run(f, [0, 1])
    assert result.values.to_pylist() == [{"a": 1, "b": "y"}, None]
    assert why in result.errors[1].message


async def test_a_subclass_of_a_record_is_taken(environment):
    @udf.scalar
    def f(index: int) -> Point:
        return Sub(1.0, 2.0, "more")

    assert (await environment.run(f, [1])).to_pylist() == [{"lat": 1.0, "lon": 2.0}]


async def test_integers_are_taken_for_floats_and_decimals(environment):
    @udf.scalar
    def as_float(value: int) -> float:
        return value

    @udf.scalar
    def as_decimal(value: int) -> MONEY:
        return value

    assert (await environment.run(as_float, [3])).to_pylist() == [3.0]
    assert (await environment.run(as_decimal, [3])).to_pylist() == [decimal.Decimal(3)]


async def test_tuples_and_numpy_arrays_are_taken_for_lists(environment):
    @udf.scalar
    def f(index: int) -> list[list[int]]:
        return [((1, 2), [3]), np.array([[1, 2], [3, 4]])][index]

    assert (await environment.run(f, [0, 1])).to_pylist() == [[[1, 2], [3]], [[1, 2], [3, 4]]]


async def test_a_null_struct_makes_no_record(environment):
    @dataclass
    class Strict:
        a: int

        def __post_init__(self):
            if self.a is None:
                raise ValueError("there must be an a")

    @udf.scalar
    def f(value: Strict) -> bool:
        return value is None

    strict = pa.struct([("a", pa.int64())])
    result = await environment.run(f, pa.array([{"a": 1}, None, {"a": None}], strict))
    assert result.values.to_pylist() == [False, True, None]
    assert result.errors[2].code is ErrorCode.ARGUMENT_VALUE
    assert result.errors[2].message == "parameter 'value': ValueError: there must be an a"
    assert result.errors[2].attempts == 0


async def test_a_record_that_raises_anything_costs_its_own_row_only(environment):
    class OddError(Exception):
        pass

    @dataclass
    class Odd:
        a: int

        def __post_init__(self):
            if self.a == 1:
                raise OddError

    @udf.scalar
    def f(value: Odd) -> int:
        return value.a

    result = await environment.run(f, pa.array([{"a": 0}, {"a": 1}, {"a": 2}]))
    assert result.values.to_pylist() == [0, None, 2]
    assert {row: error.code for row, error in result.errors.items()} == {1: ErrorCode.ARGUMENT_VALUE}


@pytest.mark.parametrize(
    ("annotation", "type_", "beyond"),
    [
        (datetime.datetime, TIMESTAMP, 2**63 - 1),
        (TIMESTAMP_OF_NTZ, TIMESTAMP_NTZ, -(2**62)),
        (datetime.date, pa.date32(), 2**31 - 1),
    ],
    ids=str,
)
async def test_a_time_python_cannot_hold_fails_alone(environment, annotation, type_, beyond):
    storage = pa.int32() if type_ == pa.date32() else pa.int64()
    column = pa.array([0, beyond, None], storage).view(type_)

    @udf.scalar
    def f(value: annotation) -> bool:
        return value is None

    result = await environment.run(f, column)
    assert result.values.to_pylist() == [False, None, True]
    assert result.errors.keys() == {1}
    assert result.errors[1].code is ErrorCode.ARGUMENT_VALUE


@given(typed_values)
def test_decoding_row_by_row_gives_what_decoding_the_column_does(pair):
    type_, values = pair
    codec = codec_for_type(type_)
    column = codec.encode(values)
    rows = [decode_rows(codec, column.slice(index, 1))[0][0] for index in range(len(values))]
    assert rows == decode_rows(codec, column)[0]


def change_in_place(value):
    """Changes everything in the value that can be changed."""
    if isinstance(value, list):
        for each in value:
            change_in_place(each)
        value.clear()
    elif isinstance(value, dict):
        for each in value.values():
            change_in_place(each)
        value.clear()
    elif isinstance(value, bytearray):
        value[:] = b"changed"
    elif isinstance(value, np.ndarray):
        value[...] = 0


@given(typed_values)
def test_a_copy_stays_as_it_was_when_the_value_changes(pair):
    type_, values = pair
    codec = codec_for_type(type_)
    given_values = copy.deepcopy(values)
    copies = list(map(codec.copied, given_values))
    for value in given_values:
        change_in_place(value)
    assert copies == values
    assert codec.mutable or all(one is other for one, other in zip(copies, given_values, strict=True))


def test_a_copy_holds_copies_of_what_is_taken_for_lists_and_bytes():
    buffers = [bytearray(b"ab"), np.array([b"cd"]), (bytearray(b"ef"),)]
    copies = [
        codec_for_type(type_).copied(value)
        for type_, value in zip([pa.binary(), *[pa.list_(pa.binary())] * 2], buffers, strict=True)
    ]
    for each in (*buffers[:2], *buffers[2]):
        change_in_place(each)
    assert copies == [b"ab", [b"cd"], [b"ef"]]


@dataclass(frozen=True)
class FrozenParts:
    name: str
    parts: list[int]


class NamedParts(NamedTuple):
    name: str
    parts: list[int]


def test_a_copy_of_a_record_is_a_record_with_copies_of_its_fields():
    for record in (FrozenParts, NamedParts):
        codec = codecs_for(record, "test")[0]
        value = record("n", [1])
        copied = codec.copied(value)
        value.parts.append(2)
        assert copied == record("n", [1])
        assert codec.encode([copied]).to_pylist() == [{"name": "n", "parts": [1]}]


def test_a_copy_of_what_is_not_of_the_type_is_refused_as_the_value_is():
    for type_ in (pa.binary(), pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()), pa.struct([("a", pa.int64())])):
        codec = codec_for_type(type_)
        value = object()
        assert codec.copied(value) is value
        with pytest.raises(TypeError, match="expected"):
            codec.encode([codec.copied(value)])


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


async def test_a_union_parameter_gets_the_type_that_was_sent(environment):
    @udf.scalar
    def kind(value: int | str | list[float]) -> str:
        return type(value).__name__

    assert (await environment.run(kind, pa.array([1]))).to_pylist() == ["int"]
    assert (await environment.run(kind, pa.array(["a"]))).to_pylist() == ["str"]
    assert (await environment.run(kind, pa.array([[0.5]]))).to_pylist() == ["list"]


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.timestamp("us", "UTC")], ids=str)
def test_a_time_that_python_cannot_hold_is_an_error_of_its_row(type_):
    times = pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()).cast(type_)
    values, failures = decode_rows(codec_for_type(type_), times)
    assert failures.keys() == {0, 1}
    assert [value is None for value in values] == [True, True, False, True]
