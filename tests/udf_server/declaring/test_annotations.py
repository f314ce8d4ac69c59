"""Annotations: their types, and invalid ones."""

import datetime
import decimal
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, NamedTuple, Optional

import numpy as np
import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.types import spelled
from udf_server.base.errors import DeclarationError


@dataclass
class Point:
    lat: float
    lon: float


class Pair(NamedTuple):
    left: str
    right: int


@dataclass
class Place(Point):
    names: list[str]
    parts: dict[str, Point]


ANNOTATIONS = [
    (bool, "boolean"),
    (int, "bigint"),
    (float, "double"),
    (str, "string"),
    (bytes, "binary"),
    (decimal.Decimal, "decimal(38,18)"),
    (datetime.date, "date"),
    (datetime.datetime, "timestamp"),
    (datetime.timedelta, "interval day to second"),
    (datetime.time, "time"),
    (np.bool_, "boolean"),
    (np.int8, "tinyint"),
    (np.int16, "smallint"),
    (np.int32, "int"),
    (np.int64, "bigint"),
    (np.float32, "float"),
    (np.float64, "double"),
    (Annotated[datetime.datetime, "timestamp_ntz"], "timestamp_ntz"),
    (Annotated[decimal.Decimal, "decimal(10,2)"], "decimal(10,2)"),
    (Annotated[int, pa.int32()], "int"),
    (Annotated[int, "no type", "smallint"], None),
    (Annotated[int, 5], "bigint"),
    (list[int], "array<bigint>"),
    (Sequence[str], "array<string>"),
    (list[int | None], "array<bigint>"),
    (list[list[bytes]], "array<array<binary>>"),
    (dict[str, float], "map<string,double>"),
    (Mapping[str, list[int]], "map<string,array<bigint>>"),
    (Point, "struct<lat:double,lon:double>"),
    (Pair, "struct<left:string,right:bigint>"),
    (Place, "struct<lat:double,lon:double,names:array<string>,parts:map<string,struct<lat:double,lon:double>>>"),
    (Optional[int], "bigint"),  # noqa: UP045 - the older spelling is taken, too
    (int | None, "bigint"),
    (None | str, "string"),
    ("int", "bigint"),
    (pa.decimal128(5, 1), "decimal(5,1)"),
    (pa.large_string(), "string"),
    (pa.timestamp("ns", "Europe/Berlin"), "timestamp"),
]


@pytest.mark.parametrize(("annotation", "expected"), ANNOTATIONS, ids=str)
def test_an_annotation_stands_for_a_type(annotation, expected):
    def declare():
        @udf.scalar
        def f(a: annotation) -> annotation:
            return a

        return f

    if expected is None:
        with pytest.raises(DeclarationError, match="function f, parameter 'a'"):
            declare()
        return
    spec = declare().spec
    assert (spelled(spec.parameters[0].type), spelled(spec.result)) == (expected, expected)


def test_a_union_parameter_takes_either_type():
    @udf.scalar
    def f(a: int | str | None) -> str:
        return str(a)

    assert f.spec.signature == "f(a bigint | string) -> string"


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.BooleanArray, "boolean"),
        (pa.Int8Array, "tinyint"),
        (pa.Int32Array, "int"),
        (pa.Int64Array, "bigint"),
        (pa.FloatArray, "float"),
        (pa.DoubleArray, "double"),
        (pa.StringArray, "string"),
        (pa.BinaryArray, "binary"),
        (pa.Date32Array, "date"),
        (Annotated[pa.Array, "array<int>"], "array<int>"),
        (Annotated[pa.StructArray, pa.struct([("x", pa.int64())])], "struct<x:bigint>"),
        (list[int], "array<bigint>"),
    ],
    ids=str,
)
def test_a_vectorized_function_may_be_annotated_with_arrays(array, expected):
    @udf.scalar(vectorized=True)
    def f(a: array) -> array:
        return a

    assert spelled(f.spec.parameters[0].type) == spelled(f.spec.result) == expected


@dataclass
class Fixed:
    a: int
    b: int = field(init=False, default=1)


@dataclass
class Wrong:
    inner: set[int]


@dataclass
class Unknown:
    a: "NoSuchClass"  # noqa: F821 - that is what it is about


class Plain:
    pass


REFUSED = [
    (Any, "is not a supported type"),
    (object, "object is not a supported type"),
    (set[int], "is not a supported type"),
    (list, "is not a supported type"),
    (dict, "is not a supported type"),
    (tuple[int, str], "is not a supported type"),
    (Plain, "Plain is not a supported type"),
    (complex, "complex is not a supported type"),
    (list[int | str], "only a parameter itself may be one"),
    (dict[str, set[int]], "is not a supported type"),
    (Fixed, "Fixed.b is not set by its __init__"),
    (Wrong, "Wrong.inner: set"),
    (Unknown, "cannot be evaluated"),
    (int | np.int64, "have the same type"),
    (type(None), "is not a supported type"),
    ("no type at all", "cannot be evaluated"),
    (Annotated[int, "no type at all"], "no type at all"),
    (pa.uint64(), "does not exist in Spark"),
    (pa.struct([("a", pa.int64()), ("a", pa.int64())]), "two fields with the same name"),
    (pa.decimal256(76, 0), "does not exist in Spark"),
    (Annotated[Point, "struct<lat:double>"], "the fields of Point are not those of its type"),
    (pa.Int64Array, "is not a supported type"),
]


@pytest.mark.parametrize(("annotation", "why"), REFUSED, ids=str)
def test_an_annotation_without_a_type_is_refused_with_function_and_parameter(annotation, why):
    with pytest.raises(DeclarationError) as raised:

        @udf.scalar
        def lookup(key: annotation) -> int:
            return 1

    assert re.match("function lookup(, parameter 'key'|: an annotation)", str(raised.value))
    assert why in str(raised.value)


@pytest.mark.parametrize(("annotation", "why"), [pair for pair in REFUSED if pair[0] is not type(None)], ids=str)
def test_a_result_without_a_type_is_refused(annotation, why):
    with pytest.raises(DeclarationError) as raised:

        @udf.scalar
        def lookup(key: int) -> annotation:
            return 1

    assert re.match("function lookup(, result|: an annotation)", str(raised.value))
    assert why in str(raised.value)


@pytest.mark.parametrize("annotation", [pa.Array, pa.ListArray, pa.TimestampArray, pa.ChunkedArray], ids=str)
def test_an_array_class_that_does_not_say_its_type_is_refused(annotation):
    with pytest.raises(DeclarationError, match=r"function f, parameter 'a'.* does not say the type of its values"):

        @udf.scalar(vectorized=True)
        def f(a: annotation) -> pa.Int64Array:
            return a


async def test_an_explicit_type_of_a_record_still_makes_records(environment):
    @udf.scalar
    def kind(point: Annotated[Point, "struct<lat:float,lon:float>"]) -> str:
        return type(point).__name__

    narrow = pa.struct([("lat", pa.float32()), ("lon", pa.float32())])
    result = await environment.run(kind, pa.array([{"lat": 1.0, "lon": 2.0}], narrow))
    assert result.to_pylist() == ["Point"]


async def test_a_dataclass_may_insist_on_names(environment):
    @dataclass
    class Named:
        a: int
        _: KW_ONLY
        b: str = ""

    @udf.scalar
    def swap(value: Named) -> Named:
        return Named(value.a + 1, b=value.b.upper())

    assert (await environment.run(swap, [Named(1, b="x")])).to_pylist() == [{"a": 2, "b": "X"}]
