"""Results that break the contract of arrays: another length, buffers that are too short, indexes that lie."""

import datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode
from tests.remote_udf.strategies import arrays, types
from udf_server import BundledKeySegment as Segment
from udf_server import BundledKeySegmentApplied as Applied
from udf_server.runners.calling import MalformedResult, validated


def shortened(array, place):
    """A copy of the array one of whose buffers is emptied afterwards, as no constructor of Arrow allows."""
    owned = []
    for buffer in array.buffers():
        own = None if buffer is None else pa.allocate_buffer(buffer.size, resizable=True)
        if own is not None and buffer.size:
            np.frombuffer(own, np.uint8)[:] = np.frombuffer(buffer, np.uint8)
        owned.append(own)
    left = list(owned)
    copied = rebuilt(array.type, len(array), left)
    assert (left, copied.equals(array)) == ([], True)
    owned[place].resize(0)
    return copied


def rebuilt(type_, length, owned):
    """An array of these buffers, which stand in the order of `Array.buffers`."""
    count = 1 if pa.types.is_struct(type_) else 3 if type_ in (pa.string(), pa.binary()) else 2
    own, owned[:] = owned[:count], owned[count:]
    children = []
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        inner = type_.value_type if pa.types.is_list(type_) else pa.struct([type_.key_field, type_.item_field])
        children = [rebuilt(inner, np.frombuffer(own[1], np.int32)[length], owned)]
    elif pa.types.is_struct(type_):
        children = [rebuilt(field.type, length, owned) for field in type_]
    return pa.Array.from_buffers(type_, int(length), own, children=children)


@given(types, st.data())
def test_an_array_with_a_short_buffer_is_refused_or_harmless(type_, data):
    array = data.draw(arrays(type_, rows=3)).take(pa.array([0, 1, 2]))
    places = [place for place, buffer in enumerate(array.buffers()) if buffer is not None and buffer.size]
    assume(places)
    short = shortened(array, data.draw(st.sampled_from(places)))
    try:
        # An empty child needs no buffer.
        assert validated(short).equals(array)
    except MalformedResult as malformed:
        assert str(malformed).startswith("a malformed array of")


def test_every_buffer_of_an_array_without_empty_parts_is_needed():
    array = pa.array([[{"a": "x", "b": [True]}], [{"a": None, "b": [False, None]}], None])
    for place, buffer in enumerate(array.buffers()):
        if buffer is None:
            continue
        with pytest.raises(MalformedResult, match="a malformed array of"):
            validated(shortened(array, place))


@given(types.flatmap(arrays))
def test_an_array_as_it_should_be_is_passed_through_whole_sliced_or_chunked(array):
    assert validated(array) is array
    assert validated(array.slice(1)).equals(array.slice(1))
    assert validated(pa.chunked_array([array, array.slice(1)])).equals(pa.concat_arrays([array, array.slice(1)]))


def short_numbers(count):
    buffer = pa.allocate_buffer(8 * count, resizable=True)
    np.frombuffer(buffer, np.int64)[:] = range(count)
    array = pa.Array.from_buffers(pa.int64(), count, [None, buffer])
    buffer.resize(8)
    return array


SHORT = "expected 8 values, one per row, got 1"
BROKEN = [
    ("one value for many", lambda a: pa.array([sum(a.to_pylist())]), "RESULT_LENGTH", SHORT),
    ("one value of numpy", lambda a: a.to_numpy().sum(keepdims=True), "RESULT_LENGTH", SHORT),
    ("one value in a list", lambda a: [len(a)], "RESULT_LENGTH", SHORT),
    ("a scalar", lambda a: a.to_numpy().sum(), "RESULT_TYPE", "with 8 values, one per row, got a value of type int64"),
    ("an Arrow scalar", pc.sum, "RESULT_TYPE", "with 8 values, one per row, got a value of type Int64Scalar"),
    ("a zero-dimensional array", lambda a: np.array(5), "RESULT_TYPE", "expected an array of bigint"),
    ("nothing", lambda a: None, "RESULT_TYPE", "with 8 values, one per row, got a value of type NoneType"),
    ("a short buffer", lambda a: short_numbers(len(a)), "RESULT_TYPE", "a malformed array of bigint"),
    ("a slice of one", lambda a: short_numbers(20).slice(5, len(a)), "RESULT_TYPE", "a malformed array of bigint"),
    ("a chunk of one", lambda a: pa.chunked_array([a.slice(2), short_numbers(2)]), "RESULT_TYPE", "a malformed array"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "make", "code", "why"), BROKEN, ids=[row[0] for row in BROKEN])
async def test_a_broken_contract_is_reported_at_once_for_all_rows_of_the_call(environment, what, make, code, why):
    sizes = []

    @udf.scalar(vectorized=True, batch_rows=8, fixed_delay="1 ms", retry_on=[Exception])
    def f(a: pa.Int64Array) -> pa.Int64Array:
        sizes.append(len(a))
        return make(a) if len(sizes) > 1 else a

    result = await environment.run(f, range(24))
    assert sizes == [8, 8, 8]
    assert result.values.to_pylist() == [*range(8), *[None] * 16]
    assert {(error.code, error.attempts) for error in result.errors.values()} == {(code, 1)}
    assert all(why in error.message for error in result.errors.values())


def with_index(index):
    return lambda a: pa.DictionaryArray.from_arrays(pa.array([0, index, 1]), a, safe=False)


def with_text(*codes):
    offsets = pa.py_buffer(np.arange(4, dtype=np.int32))
    return lambda a: pa.Array.from_buffers(pa.string(), 3, [None, offsets, pa.py_buffer(bytes(codes))])


@pytest.mark.parametrize(
    ("type_", "make", "good"),
    [("bigint", with_index(77), [10, None, 11]), ("string", with_text(97, 255, 98), ["a", None, "b"])],
)
async def test_an_invalid_value_costs_its_own_row_only(environment, type_, make, good):
    @udf.scalar(vectorized=True, returns=type_)
    def f(a: pa.Int64Array):
        wanted = make(pa.array([10, 11]) if type_ == "bigint" else a)
        return wanted.slice(a[0].as_py(), len(a))

    result = await environment.run(f, range(3))
    assert result.values.to_pylist() == good
    assert (result.errors[1].code, "an invalid array of" in result.errors[1].message) == (ErrorCode.RESULT_TYPE, True)


class Sum(udf.VectorizedAggregateFunction):
    """A sum whose parts can be made to break."""

    name, parameters, returns, accumulator = "sum", "v bigint", "bigint", "bigint"

    def __init__(self, accumulators=lambda array: array, values=lambda array: array):
        self.accumulators, self.values, self.calls = accumulators, values, 0

    def apply_bundle(self, bundle):
        self.calls += 1
        sums = bundle.reduce_rows(np.add, bundle.columns[0].to_numpy(zero_copy_only=False))
        return self.accumulators(pa.array(sums))

    def get_values(self, accumulators):
        return self.values(accumulators)


BROKEN_PARTS = [
    ("one for many", lambda a: pa.array([1]), "RESULT_LENGTH", "expected 3 {of}, got 1"),
    ("one in a list", lambda a: [1], "RESULT_LENGTH", "expected 3 {of}, got 1"),
    ("a number", lambda a: 1, "RESULT_TYPE", "expected an array of bigint, got a value of type int"),
    ("a short buffer", lambda a: short_numbers(len(a)), "RESULT_TYPE", "a malformed array of bigint"),
    ("a type without a cast", lambda a: pa.array([{}] * len(a)), "RESULT_TYPE", "expected bigint, got struct<>"),
]


@pytest.mark.parametrize(("what", "make", "code", "why"), BROKEN_PARTS, ids=[row[0] for row in BROKEN_PARTS])
@pytest.mark.parametrize(
    ("verb", "part", "of"),
    [
        ("apply_bundle", "accumulators", "accumulators, one per segment"),
        ("get_values", "values", "values, one per accumulator"),
    ],
)
async def test_arrays_of_an_aggregate_that_break_the_contract_are_reported_at_once(
    environment, verb, part, of, what, make, code, why
):
    function = Sum(**{part: make})
    result = await environment.apply(function, [Segment((k,), [(k,)]) for k in range(3)])
    assert function.calls <= 2  # the second is for starting values
    assert len(result.errors) == 3
    assert {(error.code, error.message.startswith(f"{verb}: ")) for error in result.errors.values()} == {(code, True)}
    assert all(why.format(of=of) in error.message for error in result.errors.values())


@pytest.mark.parametrize(
    ("type_", "value", "why"),
    [
        ("bigint", 1.5, "expected bigint, got a value of type float"),
        ("bigint", 2**63, "too large"),
        ("timestamp", datetime.datetime(2026, 1, 1), "a datetime with zone"),
        ("date", datetime.datetime(2026, 1, 1, 12), "expected date, got a value of type datetime"),
        ("struct<a:int>", {"a": 1, "b": 2}, "expected the fields a, got a, b"),
    ],
)
@pytest.mark.parametrize("part", ["apply_bundle", "get_values"])
async def test_values_in_a_list_of_an_aggregate_are_never_changed_to_fit_the_type(environment, part, type_, value, why):
    class Listed(udf.VectorizedAggregateFunction):
        parameters, returns = "v bigint", type_
        accumulator = type_ if part == "apply_bundle" else "bigint"

        def apply_bundle(self, bundle):
            return [value if part == "apply_bundle" else 1] * bundle.segments

        def get_values(self, accumulators):
            return accumulators if part == "apply_bundle" else [value] * len(accumulators)

    result = await environment.apply(Listed, [Segment((1,), [(1,)])])
    assert result.errors[0].code is ErrorCode.RESULT_TYPE
    assert result.errors[0].message.startswith(f"{part}: expected {type_}, got list")
    assert why in result.errors[0].message


OTHER_TYPES = [
    ("bigint", pa.array(["5", None]), "expected bigint, got string: expected bigint, got a value of type str"),
    ("bigint", np.array(["5", "6"]), "expected bigint, got ndarray: expected bigint, got a value of type str"),
    ("bigint", pa.array([5.0, None]), "expected bigint, got double"),
    ("string", pa.array([5, 6]), "expected string, got bigint"),
    ("timestamp", pa.array([0, 1], pa.timestamp("us")), "a datetime with zone"),
    ("date", pa.array([0, 1], pa.timestamp("us")), "expected date, got timestamp_ntz"),
    ("boolean", pa.array([0, 1]), "expected boolean, got bigint"),
    ("bigint", pa.array([5, 6], pa.int8()), None),
    ("tinyint", pa.array([5, 6]), None),
    ("double", pa.array([5, 6]), None),
    ("decimal(5,2)", pa.array([Decimal("1.255"), None], pa.decimal128(9, 5)), None),
    ("bigint", pa.array([None, None], pa.string()), None),
]


@pytest.mark.parametrize(("type_", "array", "why"), OTHER_TYPES, ids=str)
async def test_an_aggregate_may_return_arrays_of_the_types_that_scalar_functions_may(environment, type_, array, why):
    @udf.scalar(vectorized=True, parameters="v bigint", returns=type_)
    def scalar(v):
        return array

    class Aggregate(udf.VectorizedAggregateFunction):
        parameters, returns, accumulator = "v bigint", type_, "bigint"

        def apply_bundle(self, bundle):
            return pa.array([1] * bundle.segments)

        def get_values(self, accumulators):
            return array

    expected = await environment.run(scalar, [1, 2])
    found = await environment.apply(Aggregate, [Segment((k,), [(k,)]) for k in range(2)])
    assert bool(expected.errors) == (why is not None)
    assert len(found.errors) == (2 if why else 0)
    if why:
        assert all(why in error.message for error in found.errors.values())
    else:
        assert [applied.final_value for applied in found.applied] == expected.to_pylist()


async def test_a_list_of_an_aggregate_may_have_scalars_of_arrow(environment):
    function = Sum(accumulators=list, values=list)
    result = await environment.apply(function, [Segment((k,), [(k,)]) for k in range(3)])
    assert [each.final_value for each in result.applied] == [0, 1, 2]


async def test_a_bundled_aggregate_that_loses_segments_is_called_once(environment):
    sizes = []

    class Lossy(udf.BundledAggregateFunction):
        parameters, returns, accumulator = "v bigint", "bigint", "bigint"

        def bundled_accumulate_retract(self, bundle):
            sizes.append(len(bundle))
            return [Applied(0)]

    result = await environment.apply(Lossy, [Segment((k,), [(k,)]) for k in range(3)])
    assert sizes == [3]
    assert {error.message for error in result.errors.values()} == {
        "expected 3 applied segments, one per segment, got 1"
    }
