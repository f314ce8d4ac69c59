"""Which types cross the wire, how they are written, and which arguments a parameter takes."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote_udf.ddl import parse_type
from remote_udf.errors import UnsupportedType
from remote_udf.types import TIMESTAMP, TIMESTAMP_NTZ, accepts, alternatives, normalized, require_supported, spelled
from tests.remote_udf.strategies import arrays, leaf_types, types


@given(types)
def test_spelled_types_parse_to_themselves(type_):
    assert parse_type(spelled(type_)) == type_


@given(types)
def test_supported_types_are_normalized_already(type_):
    assert require_supported(type_, "here") == normalized(type_) == type_


@given(types)
def test_a_parameter_takes_its_own_type(type_):
    assert accepts(type_, type_) == type_


@given(types)
def test_null_is_taken_by_every_parameter(type_):
    assert accepts(type_, pa.null()) == type_


@given(types, types)
def test_acceptance_is_antisymmetric(one, other):
    # Otherwise one of the two conversions would lose information.
    if accepts(one, other) is not None and accepts(other, one) is not None:
        assert one == other


@given(leaf_types, leaf_types, leaf_types)
def test_acceptance_of_leaves_is_transitive(wide, middle, narrow):
    if accepts(wide, middle) is not None and accepts(middle, narrow) is not None:
        assert accepts(wide, narrow) is not None


@given(st.data())
def test_integers_and_decimals_are_converted_without_loss(data):
    exact = st.sampled_from(
        [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(10, 2), pa.decimal128(38, 18)]
    )
    source, target = data.draw(exact), data.draw(exact)
    array = data.draw(arrays(source))
    if accepts(target, source) is not None:
        assert pc.cast(array, target).cast(source).equals(array)


@pytest.mark.parametrize(
    ("parameter", "argument"),
    [
        ("bigint", "int"),
        ("double", "float"),
        ("double", "bigint"),
        ("double", "decimal(38,18)"),
        ("float", "smallint"),
        ("decimal(38,18)", "bigint"),
        ("decimal(12,3)", "decimal(10,2)"),
        ("array<bigint>", "array<int>"),
        ("map<string,double>", "map<string,float>"),
        ("struct<a:bigint,b:string>", "struct<a:int,b:string>"),
    ],
)
def test_wider_types_take_narrower_ones(parameter, argument):
    assert accepts(parse_type(parameter), parse_type(argument)) == parse_type(parameter)


@pytest.mark.parametrize(
    ("parameter", "argument"),
    [
        ("int", "bigint"),
        ("float", "int"),
        ("float", "double"),
        ("bigint", "double"),
        ("bigint", "decimal(5,0)"),
        ("decimal(10,0)", "bigint"),
        ("decimal(10,2)", "decimal(10,1)"),
        ("decimal(12,2)", "decimal(12,3)"),
        ("string", "int"),
        ("string", "binary"),
        ("boolean", "int"),
        ("timestamp", "timestamp_ntz"),
        ("timestamp", "date"),
        ("array<int>", "array<bigint>"),
        ("struct<a:int>", "struct<b:int>"),
        ("struct<a:int,b:int>", "struct<b:int,a:int>"),
        ("struct<a:int>", "struct<a:int,b:int>"),
    ],
)
def test_narrower_and_foreign_types_are_refused(parameter, argument):
    assert accepts(parse_type(parameter), parse_type(argument)) is None


def test_an_exact_member_of_a_union_goes_before_a_wider_one():
    union = pa.dense_union([pa.field("0", pa.float64()), pa.field("1", pa.int64())])
    assert accepts(union, pa.int64()) == pa.int64()


def test_the_first_wider_member_of_a_union_is_taken():
    union = pa.dense_union([pa.field("0", pa.float64()), pa.field("1", pa.int64())])
    assert accepts(union, pa.int32()) == pa.float64()


def test_a_union_refuses_what_no_member_takes():
    assert accepts(pa.dense_union([pa.field("0", pa.float64()), pa.field("1", pa.int64())]), pa.string()) is None


def test_a_union_is_written_with_bars():
    union = pa.dense_union([pa.field("0", pa.float64()), pa.field("1", pa.string())])
    assert spelled(union) == "double | string"


def test_alternatives_of_a_plain_type_are_itself():
    assert alternatives(pa.int64()) == [pa.int64()]


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(4), pa.binary()),
        (pa.timestamp("ns", tz="Europe/Berlin"), TIMESTAMP),
        (pa.timestamp("s"), TIMESTAMP_NTZ),
        (pa.duration("ms"), pa.duration("us")),
        (pa.time32("s"), pa.time64("ns")),
        (pa.decimal256(20, 2), pa.decimal128(20, 2)),
        (pa.large_list(pa.large_string()), pa.list_(pa.field("element", pa.string()))),
        (pa.list_(pa.int8(), 3), pa.list_(pa.field("element", pa.int8()))),
        (pa.dictionary(pa.int8(), pa.large_string()), pa.string()),
        (pa.struct([pa.field("a", pa.large_string(), nullable=False)]), pa.struct([("a", pa.string())])),
    ],
)
def test_layouts_that_mean_the_same_are_normalized(given_, expected):
    assert normalized(given_) == expected


@pytest.mark.parametrize(
    "type_", [pa.uint8(), pa.float16(), pa.date64(), pa.decimal256(50, 2), pa.month_day_nano_interval()]
)
@pytest.mark.parametrize("wrap", [lambda t: t, pa.list_, lambda t: pa.struct([("a", t)])])
def test_types_without_a_spark_counterpart_are_refused_by_name(type_, wrap):
    with pytest.raises(UnsupportedType, match=r"^the argument: type .* does not exist in Spark"):
        require_supported(wrap(type_), "the argument")


def test_a_struct_with_two_fields_of_one_name_is_refused():
    with pytest.raises(UnsupportedType, match="two fields with the same name"):
        require_supported(pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())]), "here")
