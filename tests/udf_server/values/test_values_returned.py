"""Values that a function may return for a type: accepted Python values, and refused ones."""

import datetime
import decimal
from collections import namedtuple
from dataclasses import dataclass
from typing import Annotated, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import Row

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ
from udf_server.values.values import codec_for_type, decode_rows, encode_rows

WHEN = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456, datetime.UTC)
TIMESTAMP_OF_NTZ = Annotated[datetime.datetime, "timestamp_ntz"]
MONEY = Annotated[decimal.Decimal, "decimal(10,2)"]


WIDE = decimal.Context(prec=400, rounding=decimal.ROUND_HALF_UP)


@dataclass
class Point:
    lat: float
    lon: float | None


@dataclass
class Sub(Point):
    extra: str = ""


WRONG = [
    (bool, 1, "expected boolean, got a value of type int"),
    (int, 1.0, "expected bigint, got a value of type float"),
    (int, True, "expected bigint, got a value of type bool"),
    (int, 2**63, "OverflowError"),
    (int, "1", "expected bigint, got a value of type str"),
    (int, np.timedelta64(5, "ns"), "expected bigint, got a value of type timedelta64"),
    (float, np.timedelta64(5, "ns"), "expected double, got a value of type timedelta64"),
    (float, "1", "expected double, got a value of type str"),
    (float, 2**53 + 1, "double cannot hold 9007199254740993"),
    (float, np.uint64(2**64 - 1), "double cannot hold"),
    (float, 10**400, "OverflowError"),
    (Annotated[float, "float"], 2**24 + 1, "float cannot hold 16777217"),
    (str, b"a", "expected string, got a value of type bytes"),
    (str, "\ud800", "surrogates not allowed"),
    (bytes, "a", "expected binary, got a value of type str"),
    (MONEY, 1.5, "expected decimal(10,2), got a value of type float"),
    (MONEY, decimal.Decimal("123456789.00"), "decimal(10,2) cannot hold 1.23457e+8"),
    (MONEY, 10**8, "decimal(10,2) cannot hold 1.00000e+8"),
    (MONEY, decimal.Decimal("99999999.995"), "decimal(10,2) cannot hold"),
    (MONEY, decimal.Decimal("Infinity"), "decimal(10,2) cannot hold Infinity"),
    (MONEY, decimal.Decimal("NaN"), "NaN"),
    (datetime.date, WHEN, "expected date, got a value of type datetime"),
    (datetime.datetime, WHEN.replace(tzinfo=None), "a datetime with zone"),
    (datetime.datetime, WHEN.date(), "expected timestamp, got a value of type date"),
    (TIMESTAMP_OF_NTZ, WHEN, "a datetime without zone"),
    (datetime.time, datetime.time(1, tzinfo=datetime.UTC), "a time without zone"),
    (datetime.time, datetime.time(1, tzinfo=ZoneInfo("Europe/Berlin")), "a time without zone"),
    (datetime.timedelta, 5, "expected interval day to second, got a value of type int"),
    (list[int], "abc", "expected array<bigint>, got a value of type str"),
    (list[int], [1, "a"], "expected bigint, got a value of type str"),
    (list[int], 5, "expected array<bigint>, got a value of type int"),
    (dict[str, int], [("a", 1)], "got a value of type list"),
    (dict[str, int], {None: 1}, "a key of a map cannot be None"),
    (dict[str, int], {1: 1}, "expected string, got a value of type int"),
    (Point, {"lat": 1.0, "lon": 2.0}, "expected Point, got a value of type dict"),
    (Point, Point("a", 1.0), "field 'lat': TypeError: expected double, got a value of type str"),
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
        ((1,), "expected the fields a, b, got 1 values"),
        ((1, "x", 2), "expected the fields a, b, got 3 values"),
        (("x", 1), "field 'a': TypeError: expected int, got a value of type str"),
        (namedtuple("Other", "b c")(1, "x"), "expected the fields a, b, got b, c"),
        ([1, "x"], "expected struct<a:int,b:string>, a dictionary or a tuple, got a value of type list"),
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


@pytest.mark.parametrize(
    "wrap", [lambda value: value, lambda value: [value], lambda value: {"k": value}], ids=("struct", "array", "map")
)
async def test_a_struct_may_be_a_tuple(environment, wrap):
    given = [
        (1, "x"), namedtuple("Ab", "a b")(1, "x"), namedtuple("Ba", "b a")("x", 1), namedtuple("Xy", "x y")(1, "x"),
        Row(a=1, b="x"), udf.Row(1, "x"), {"b": "x", "a": 1},
    ]  # fmt: skip
    returns = {list: f"array<{STRUCT}>", dict: f"map<string,{STRUCT}>"}.get(type(wrap(())), STRUCT)

    @udf.scalar(returns=returns)
    def f(index: int):
        return wrap(given[index])

    @udf.scalar(returns=returns, vectorized=True)
    def g(index: pa.Int64Array):
        return [wrap(given[place]) for place in index.to_pylist()]

    for function in (f, g):
        values = (await environment.run(function, range(len(given)))).values.to_pylist(maps_as_pydicts="strict")
        assert values == [wrap({"a": 1, "b": "x"})] * len(given)


async def test_a_tuple_that_changes_after_it_was_returned_is_kept_as_it_was(environment):
    kept = []

    @udf.scalar(returns="struct<a:array<int>,b:string>")
    def f(index: int):
        kept.append(index)
        return kept, "x"

    result = await environment.run(f, [1, 2, 3])
    assert [value["a"] for value in result.to_pylist()] == [[1], [1, 2], [1, 2, 3]]


async def test_a_time_in_an_array_of_objects_does_not_lose_its_zone(environment):
    zoned = datetime.time(1, 2, tzinfo=datetime.UTC)

    @udf.scalar(returns="time", vectorized=True)
    def times(x: pa.Int64Array):
        return np.array([zoned if each else zoned.replace(tzinfo=None) for each in x.to_pylist()], object)

    @udf.scalar(returns="struct<t:time>", vectorized=True)
    def structs(x: pa.Int64Array):
        return np.array([{"t": zoned if each else None} for each in x.to_pylist()], object)

    for function in (times, structs):
        result = await environment.run(function, [0, 1])
        assert sorted(result.errors) == [1]
        assert "expected time, a time without zone" in result.errors[1].message


async def test_the_error_of_a_value_in_a_struct_names_the_fields_on_its_path(environment):
    @udf.scalar(returns="struct<a:int,`b.c`:array<struct<d:map<string,struct<e:date>>>>>")
    def f(index: int):
        return {"a": 1, "b.c": [{"d": {"k": {"e": datetime.date.min if index else WHEN}}}]}

    assert (await environment.run(f, [0, 1])).errors[0].message == (
        "field 'b.c': field 'd': field 'e': TypeError: expected date, got a value of type datetime"
    )


async def test_the_error_of_an_argument_in_a_struct_names_its_field(environment):
    @udf.scalar(parameters="point struct<day:date>", returns="bigint")
    def f(point):
        return 1

    beyond = pa.StructArray.from_arrays([pa.array([2**31 - 1], pa.int32()).view(pa.date32())], ["day"])
    assert (await environment.run(f, beyond)).errors[0].message == (
        "parameter 'point': field 'day': OverflowError: a date that Python cannot hold"
    )


class Place(NamedTuple):
    lat: float


async def test_keys_that_a_dictionary_cannot_have_are_explained(environment):
    type_ = pa.map_(pa.struct([("lat", pa.float64())]), pa.int64())

    @udf.scalar(parameters={"ages": type_}, returns="bigint")
    def f(ages):
        return len(ages)

    @udf.scalar
    def g(ages: dict[Place, int]) -> int:
        return ages[Place(1.0)]

    column = pa.array([[({"lat": 1.0}, 3)], []], type_)
    result = await environment.run(f, column)
    assert (result.values.to_pylist(), list(result.errors)) == ([None, 0], [0])
    assert result.errors[0].message == (
        "parameter 'ages': TypeError: a dictionary of Python cannot have the keys of map<struct<lat:double>,bigint> "
        "(unhashable type: 'dict'): annotate structs as a NamedTuple, or use a vectorized function"
    )
    assert (await environment.run(g, column.slice(0, 1))).to_pylist() == [3]


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
    def as_wide(index: int) -> float:
        return [2**60, 10**20, np.uint64(2**63)][index]

    @udf.scalar
    def as_decimal(value: int) -> MONEY:
        return value

    assert (await environment.run(as_float, [3])).to_pylist() == [3.0]
    assert (await environment.run(as_wide, [0, 1, 2])).to_pylist() == [2.0**60, 1e20, 2.0**63]
    assert (await environment.run(as_decimal, [3])).to_pylist() == [decimal.Decimal(3)]


@pytest.mark.parametrize("vectorized", [False, True])
async def test_decimals_are_rounded_to_the_digits_of_their_type(environment, vectorized):
    given = list(map(decimal.Decimal, ["1.255", "-1.255", "1.2549", "1E+3", "0.001", "99999999.994"]))

    @udf.scalar(vectorized=vectorized, parameters="index bigint", returns="decimal(10,2)")
    def f(index):
        return pa.array(given, pa.decimal128(38, 10)) if vectorized else given[index]

    result = await environment.run(f, range(6))
    assert list(map(str, result.to_pylist())) == ["1.26", "-1.26", "1.25", "1000.00", "0.00", "99999999.99"]


@example(2, 2, [decimal.Decimal("1E-100000000")])
@example(38, 0, [decimal.Decimal("0E-100000000"), decimal.Decimal("1E+100000000")])
@given(
    st.integers(1, 38), st.integers(0, 38),
    st.lists(st.builds(lambda n, e: decimal.Decimal(n).scaleb(e, WIDE), st.integers(), st.integers(-150, 40))),
)  # fmt: skip
def test_a_decimal_of_any_size_is_rounded_as_spark_does_or_refused(precision, scale, values):
    type_ = pa.decimal128(precision, min(scale, precision))
    found, failures = encode_rows(codec_for_type(type_), values)
    unit = decimal.Decimal(1).scaleb(-type_.scale)
    largest = (decimal.Decimal(10) ** precision).scaleb(-type_.scale, WIDE) - unit
    for row, value in enumerate(values):
        # Python cannot round such a value, which is larger than any type holds.
        nearest = None if value.adjusted() > 40 else value.quantize(unit, context=WIDE)
        fits = nearest is not None and abs(nearest) <= largest
        assert (row in failures) != fits
        assert found[row].as_py() == (nearest if fits else None)


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


@pytest.mark.parametrize("type_", [pa.timestamp("us"), pa.timestamp("us", "UTC")], ids=str)
def test_a_time_that_python_cannot_hold_is_an_error_of_its_row(type_):
    times = pa.array([-(2**63), 2**63 - 1, 0, None], pa.int64()).cast(type_)
    values, failures = decode_rows(codec_for_type(type_), times)
    assert failures.keys() == {0, 1}
    assert [value is None for value in values] == [True, True, False, True]
