"""Parsing of Spark's spelling of types."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.ddl import parse_type
from remote_udf.errors import UnsupportedType
from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BIGINT", pa.int64()),
        ("long", pa.int64()),
        ("integer", pa.int32()),
        ("short", pa.int16()),
        ("byte", pa.int8()),
        ("real", pa.float32()),
        ("varchar(10)", pa.string()),
        ("timestamp", TIMESTAMP),
        ("timestamp_ltz", TIMESTAMP),
        ("timestamp_ntz", TIMESTAMP_NTZ),
        ("interval day to second", pa.duration("us")),
        ("interval hour", pa.duration("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("numeric(7, 2)", pa.decimal128(7, 2)),
        (" array< int > ", pa.list_(pa.int32())),
        ("struct<>", pa.struct([])),
        ("struct<a int, b: string>", pa.struct([("a", pa.int32()), ("b", pa.string())])),
        ("struct<a: int not null comment 'x'>", pa.struct([("a", pa.int32())])),
        ("struct<`a b`:int,`c``d`:int>", pa.struct([("a b", pa.int32()), ("c`d", pa.int32())])),
        ("struct<date:date,interval:int,array:int>",
         pa.struct([("date", pa.date32()), ("interval", pa.int32()), ("array", pa.int32())])),
    ],
)  # fmt: skip
def test_spellings_of_spark_are_read(text, expected):
    assert parse_type(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "foo", "'int'", "int int", "int, int", "int; int", "int) + (1", "int FORMAT 'x'",
        "array", "array<>", "array<int", "array<int>>", "map<int>", "struct<a>", "struct<a:foo>",
        "struct<a:int,select:int>", "decimal(x)", "decimal(50,2)", "decimal(0)", "decimal(3,5)", "decimal(3,-1)",
        "interval", "interval year to month", "variant", "geometry", "array<" * 2_000 + "int" + ">" * 2_000,
    ],
)  # fmt: skip
def test_everything_else_is_refused(text):
    with pytest.raises(UnsupportedType):
        parse_type(text)


def test_the_refusal_quotes_the_text():
    with pytest.raises(UnsupportedType, match="'strnig' is not a Spark type"):
        parse_type("strnig")


@given(st.text(max_size=30) | st.text("int array<>struct:,() `decimal0123456789'", max_size=30))
def test_any_text_is_a_type_or_refused(text):
    try:
        parse_type(text)
    except UnsupportedType as error:
        assert repr(text) in str(error)
