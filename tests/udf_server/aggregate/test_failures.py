"""Segments that fail: each alone, with its reason, however many share its bundle."""

import threading

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, InvalidOption, StreamError
from remote_udf.segments import list_of
from tests.udf_server.aggregate_functions import BundledAverage, Chosen, ClassicAverage, VectorizedAverage
from tests.udf_server.talk import Talk, opening
from udf_server import BundledKeySegment as Segment
from udf_server import BundledKeySegmentApplied as Applied
from udf_server import RowKind
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.testing import FaultInjector, FunctionEnvironment

AVERAGES = [BundledAverage, ClassicAverage, VectorizedAverage]


def poor(average):
    """The same without retraction and merging."""
    members = {"supports_retracting": lambda self: False, "supports_merging": lambda self: False, "name": "poor"}
    return type("Poor", (average,), members)


every_way = pytest.mark.parametrize("average", AVERAGES, ids=lambda kind: kind.__name__)


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
    one = declare_aggregate(average).accumulator.decode(pa.array([{"sum": 4, "count": 2}]))[0]
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


class Grown(udf.AggregateFunction):
    """Keeps as many bytes as its rows say."""

    def create_accumulator(self) -> bytes:
        return b""

    def accumulate(self, accumulator, count: int):
        return accumulator + bytes(count)

    def merge(self, accumulator, others):
        return accumulator + b"".join(others)

    def get_value(self, accumulator) -> int:
        return len(accumulator)


async def test_a_bundle_that_grows_beyond_a_message_is_answered_in_several():
    async with FunctionEnvironment(message_bytes=1 << 16) as environment:
        result = await environment.apply(Grown, [Segment((k,), [(10_000,)]) for k in range(50)])
    assert [len(each.accumulator) for each in result.to_list()] == [10_000] * 50


async def test_a_segment_that_grows_beyond_a_message_fails_alone():
    async with FunctionEnvironment(message_bytes=1 << 16) as environment:
        result = await environment.apply(Grown, [Segment((k,), [(100_000 if k == 1 else 10,)]) for k in range(3)])
    assert {row: error.code for row, error in result.errors.items()} == {1: ErrorCode.RESULT_TOO_LARGE}
    assert [each and each.final_value for each in result.applied] == [10, None, 10]


@pytest.mark.parametrize("part", ["create_accumulator", "get_value", "merge"])
async def test_a_verb_that_fails_for_one_segment_costs_that_one_only(environment, part):
    class Fails(Grown):
        def get_value(self, accumulator) -> int:
            if part == "get_value" and len(accumulator) == 3:
                raise ValueError("three")
            return len(accumulator)

        def merge(self, accumulator, others):
            if part == "merge":
                raise ValueError("merge")
            return super().merge(accumulator, others)

        def create_accumulator(self) -> bytes:
            if part == "create_accumulator":
                raise ValueError("create")
            return b""

    segments = [
        Segment((1,), [(1,)], [b"x"]),
        {"get_value": Segment((2,), [(2,)], [b"x"]), "merge": Segment((2,), [], [b"x"] * 2)}.get(
            part, Segment((2,), [])
        ),
        Segment((3,), [], [b"x"]),
    ]
    result = await environment.apply(Fails, segments)
    assert [each and each.final_value for each in result.applied] == [2, None, 1]
    assert result.errors[1].message.startswith("ValueError")
    assert f"in {part}" in result.errors[1].traceback
