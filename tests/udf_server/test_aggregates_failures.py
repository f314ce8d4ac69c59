"""Segments that fail: each alone, with its reason, however many share its bundle."""

import threading
from typing import NamedTuple

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, InvalidOption, StreamError
from remote_udf.segments import list_of
from tests.udf_server.averages import BundledAverage, ClassicAverage, VectorizedAverage
from tests.udf_server.streams import Talk, opening
from udf_server import BundledKeySegment as Segment
from udf_server import BundledKeySegmentApplied as Applied
from udf_server import RowKind
from udf_server.aggregates.declaration import declare_aggregate
from udf_server.testing import FaultInjector

AVERAGES = [BundledAverage, ClassicAverage, VectorizedAverage]


def poor(average):
    """The same without retraction and merging."""
    members = {"supports_retracting": lambda self: False, "supports_merging": lambda self: False, "name": "poor"}
    return type("Poor", (average,), members)


every_way = pytest.mark.parametrize("average", AVERAGES, ids=lambda kind: kind.__name__)


class Chosen(udf.BundledAggregateFunction):
    """Answers a bundle with what `answer` makes of it."""

    name, parameters, returns, accumulator = "chosen", "v bigint", "bigint", "bigint"

    def __init__(self, answer):
        self.answer = answer

    def bundled_accumulate_retract(self, bundle):
        return self.answer(bundle)


@every_way
async def test_taking_a_row_back_from_a_function_that_cannot_is_an_error_of_its_segment(environment, average):
    segments = [
        Segment((1,), [(1,)], row_kinds=[RowKind.INSERT]),
        Segment((2,), [(1,), (1,)], row_kinds=[RowKind.INSERT, RowKind.DELETE]),
        Segment((3,), [(3,)], row_kinds=[RowKind.UPDATE_AFTER]),
        Segment((4,), [(1,)], row_kinds=[RowKind.UPDATE_BEFORE]),
    ]
    result = await environment.apply(poor(average), segments)
    assert list(result.errors) == [1, 3]
    for error in result.errors.values():
        assert error.code is ErrorCode.FUNCTION_ERROR
        assert "Retract functionality is not implemented for the aggregate function: poor@1" in error.message
    assert [each and each.final_value for each in result.applied] == [1, None, 3, None]


@every_way
async def test_merging_with_a_function_that_cannot_is_an_error_of_its_segment(environment, average):
    one = environment._aggregate(average).accumulator.decode(pa.array([{"sum": 4, "count": 2}]))[0]
    segments = [Segment((1,), [], [one]), Segment((2,), [(1,)], [one, one]), Segment((3,), [(3,)])]
    result = await environment.apply(poor(average), segments)
    assert list(result.errors) == [1]
    assert "Merge functionality is not implemented for the aggregate function: poor@1" in result.errors[1].message
    assert [each and each.final_value for each in result.applied] == [2, None, 3]


@pytest.mark.parametrize("bad", [{0}, {7}, {0, 15}, {3, 4, 5}, set(range(16))])
@every_way
async def test_a_failing_segment_costs_no_other_one(environment, average, bad):
    def check(values):
        for value in values:
            if value in bad:
                raise ValueError(f"bad value {value}")

    class Checked(average):
        def accumulate(self, accumulator, v: int):
            check([v])
            super().accumulate(accumulator, v)

        def bundled_accumulate_retract(self, bundle):
            check([row[0] for segment in bundle for row in segment.rows])
            return super().bundled_accumulate_retract(bundle)

        def apply_bundle(self, bundle):
            check(bundle.columns[0].to_pylist())
            return super().apply_bundle(bundle)

    result = await environment.apply(Checked, [Segment((k,), [(100,), (k,)]) for k in range(16)])
    assert {row: error.message for row, error in result.errors.items()} == {
        row: f"ValueError: bad value {row}" for row in bad
    }
    assert [each and each.final_value for each in result.applied] == [
        None if key in bad else (100 + key) // 2 for key in range(16)
    ]


ANSWERS = [
    ("too few", lambda b: [Applied(0)] * (len(b) - 1), ErrorCode.RESULT_LENGTH, "expected 1 applied segments"),
    ("too many", lambda b: [Applied(0)] * (len(b) + 1), ErrorCode.RESULT_LENGTH, "one per segment, got 2"),
    ("nothing", lambda b: None, ErrorCode.RESULT_TYPE, "expected a list of applied segments, got a value of type None"),
    ("a generator", lambda b: (Applied(0) for _ in b), ErrorCode.RESULT_TYPE, "got a value of type generator"),
    ("other things", lambda b: [1] * len(b), ErrorCode.RESULT_TYPE, "expected a BundledKeySegmentApplied, got a value"),
    ("no accumulator", lambda b: [Applied(None, 0, 0, [1])] * len(b), ErrorCode.RESULT_TYPE, "an accumulator is null"),
    ("text for it", lambda b: [Applied("x")] * len(b), ErrorCode.RESULT_TYPE, "accumulator: TypeError: expected"),
    ("a value of text", lambda b: [Applied(0, None, "x")] * len(b), ErrorCode.RESULT_TYPE, "final_value: TypeError"),
    ("a large value", lambda b: [Applied(0, 1 << 63)] * len(b), ErrorCode.RESULT_TYPE, "starting_value: OverflowError"),
    ("no updates", lambda b: [Applied(0)] * len(b), ErrorCode.RESULT_LENGTH, "one per row, got 0"),
    ("a number of them", lambda b: [Applied(0, 0, 0, 1)] * len(b), ErrorCode.RESULT_TYPE, "expected a list, got"),
    ("updates of text", lambda b: [Applied(0, 0, 0, ["x"])] * len(b), ErrorCode.RESULT_TYPE, "updated_values_after"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "answer", "code", "message"), ANSWERS, ids=[row[0] for row in ANSWERS])
async def test_an_answer_that_is_none_is_an_error_of_every_segment(environment, what, answer, code, message):
    result = await environment.apply(Chosen(answer), [Segment((k,), [(1,)], [], True) for k in range(3)])
    assert {error.code for error in result.errors.values()} == {code}
    assert all(message in error.message for error in result.errors.values())
    assert result.applied == [None] * 3


async def test_a_value_that_cannot_be_encoded_costs_its_own_segment_only(environment):
    odd = Chosen(lambda bundle: [Applied(0, None, "x" if s.rows[0][0] % 2 else s.rows[0][0]) for s in bundle])
    result = await environment.apply(odd, [Segment((k,), [(k,)]) for k in range(4)])
    assert [each and each.final_value for each in result.applied] == [0, None, 2, None]


async def test_an_accumulator_that_a_verb_forgets_is_an_error_if_it_cannot_change_in_place(environment):
    class Pair(NamedTuple):
        sum: int
        count: int

    class Number(udf.AggregateFunction):
        def create_accumulator(self) -> int:
            return 0

        def accumulate(self, accumulator, v: int):
            accumulator + v

        def get_value(self, accumulator) -> int:
            return 0

    class Tuple(Number):
        accumulator = Pair

        def create_accumulator(self):
            return Pair(0, 0)

        def accumulate(self, accumulator, v: int):
            accumulator._replace(sum=v)

    class Nothing(Number):
        def create_accumulator(self) -> int:
            return None

    for kind in (Number, Tuple):
        result = await environment.apply(kind, [Segment((), [(1,)])])
        assert "accumulate returned None; an accumulator that cannot be changed in place" in result.errors[0].message
    result = await environment.apply(Nothing, [Segment((), [])])
    assert (result.errors[0].code, "an accumulator is null" in result.errors[0].message) == (
        ErrorCode.RESULT_TYPE,
        True,
    )


VECTORS = [
    ("short", lambda b: pa.nulls(0, pa.int64()), ErrorCode.RESULT_LENGTH, "apply_bundle: expected 1 values, got 0"),
    ("null", lambda b: pa.nulls(b.segments, pa.int64()), ErrorCode.RESULT_TYPE, "an accumulator is null"),
    ("text", lambda b: pa.array(["x"] * b.segments), ErrorCode.RESULT_TYPE, "expected bigint, got string"),
    ("none", lambda b: None, ErrorCode.RESULT_TYPE, "apply_bundle: expected bigint, got NoneType"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "answer", "code", "message"), VECTORS, ids=[row[0] for row in VECTORS])
async def test_an_array_that_is_no_accumulator_per_segment_is_an_error(environment, what, answer, code, message):
    class Vectorized(udf.VectorizedAggregateFunction):
        parameters, returns, accumulator = "v bigint", "bigint", "bigint"

        def apply_bundle(self, bundle):
            return answer(bundle)

        def get_values(self, accumulators):
            return accumulators

    result = await environment.apply(Vectorized, [Segment((k,), [(1,)]) for k in range(2)])
    assert [(error.code, message in error.message) for error in result.errors.values()] == [(code, True)] * 2


@every_way
async def test_a_bundle_that_fails_for_a_while_is_applied_once_in_the_end(environment, average):
    faults = FaultInjector(3, error_rate=0.4)
    faulty = faults.wrap(average)
    segments = [Segment((k,), [(k,), (k + 2,)]) for k in range(20)]
    result = await environment.apply(faulty, segments, max_attempts=50, fixed_delay="1 ms", size=4)
    assert [each.final_value for each in result.to_list()] == [k + 1 for k in range(20)]
    assert result.counts.retries > 0
    assert faults.injected > 0


async def test_a_segment_that_always_fails_gets_all_its_attempts_and_its_neighbours_get_by(environment):
    def answer(bundle):
        if any(segment.key == (2,) for segment in bundle):
            raise udf.RetryableError("busy")
        return [Applied(0, None, 1) for _ in bundle]

    segments = [Segment((k,), [(1,)]) for k in range(4)]
    result = await environment.apply(Chosen(answer), segments, max_attempts=3, fixed_delay="1 ms")
    assert (result.errors[2].attempts, result.errors[2].retryable, list(result.errors)) == (3, True, [2])


async def test_segments_change_accumulators_in_place_without_harm_to_the_next_attempt(environment):
    attempts = []

    class Grows(udf.BundledAggregateFunction):
        parameters, returns, accumulator = "v bigint", "bigint", "array<bigint>"

        def bundled_accumulate_retract(self, bundle):
            for segment in bundle:
                segment.accumulators[0].extend(row[0] for row in segment.rows)
            attempts.append(len(bundle))
            if len(attempts) < 3:
                raise udf.RetryableError("not yet")
            return [Applied(segment.accumulators[0], None, 0) for segment in bundle]

    result = await environment.apply(Grows, [Segment((), [(2,)], [[1]])], fixed_delay="1 ms", max_attempts=3)
    assert [each.accumulator for each in result.to_list()] == [[1, 2]]


async def test_a_bundle_that_is_late_fails_with_its_deadline(environment):
    ends = threading.Event()

    def answer(bundle):
        ends.wait(20)
        return [Applied(0) for _ in bundle]

    try:
        result = await environment.apply(Chosen(answer), [Segment((k,), [(1,)]) for k in range(2)], timeout="50 ms")
    finally:
        ends.set()
    assert {error.code for error in result.errors.values()} == {ErrorCode.TIMEOUT}


async def test_what_a_server_refuses_of_a_stream_of_segments_is_raised(environment):
    with pytest.raises(StreamError, match="expected bigint, found string; cast the argument") as raised:
        await environment.apply(ClassicAverage, [Segment((), [("x",)])])
    assert raised.value.code is ErrorCode.ARGUMENT_TYPE
    with pytest.raises(StreamError, match="takes 1 arguments, got 2") as raised:
        await environment.apply(BundledAverage, [Segment((), [(1, 2)])])
    assert raised.value.code is ErrorCode.ARGUMENT_COUNT
    with pytest.raises(InvalidOption, match="unknown option 'output_mode'"):
        await environment.apply(BundledAverage, [Segment((), [(1,)])], output_mode="ordered")


SCHEMAS = [
    ({"accumulators": list_of(pa.int64())}, "expected an accumulator struct<sum:bigint,count:bigint>, found bigint"),
    ({"others": pa.int64()}, "segments have no column 'others'"),
    ({"key": pa.struct([("k", pa.int64())])}, None),
    ({"rows": list_of(pa.struct([("row_kind", pa.int32()), ("0", pa.int64())]))}, "row_kind is int, not tinyint"),
    ({}, "a segment has accumulators or rows"),
]


@pytest.mark.parametrize(("columns", "message"), SCHEMAS, ids=["accumulator", "column", "key", "kinds", "nothing"])
async def test_columns_that_are_no_segments_are_refused(columns, message):
    async with Talk(declare_aggregate(BundledAverage)) as talk:
        talk.send(opening("bundled_average", pa.schema(columns.items()), applied=[1]))
        answer = await talk.receive()
        if message is None:
            assert answer.WhichOneof("response") == "opened"
        else:
            assert answer.error.code == "ARGUMENT_TYPE"
            assert message in answer.error.message


async def test_a_stream_that_wants_nothing_of_its_segments_is_refused():
    async with Talk(declare_aggregate(BundledAverage)) as talk:
        talk.send(opening("bundled_average", pa.schema({"key": pa.struct([])}.items())))
        answer = await talk.receive()
        assert "nothing is wanted of its segments" in answer.error.message
