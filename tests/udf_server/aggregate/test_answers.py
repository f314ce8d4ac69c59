"""Answers that are no applied segments: of another length or type, or with parts that cannot be encoded."""

from typing import NamedTuple

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from tests.udf_server.aggregate_functions import Chosen
from udf_server import BundledKeySegment as Segment
from udf_server import BundledKeySegmentApplied as Applied

ANSWERS = [
    ("too few", lambda b: [Applied(0)] * (len(b) - 1), ErrorCode.RESULT_LENGTH, "expected 3 applied segments"),
    ("too many", lambda b: [Applied(0)] * (len(b) + 1), ErrorCode.RESULT_LENGTH, "one per segment, got 4"),
    ("nothing", lambda b: None, ErrorCode.RESULT_TYPE, "expected a list of 3 applied segments, got a"),
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
    ("short", lambda b: pa.nulls(0, pa.int64()), ErrorCode.RESULT_LENGTH, "2 accumulators, one per segment, got 0"),
    ("null", lambda b: pa.nulls(b.segments, pa.int64()), ErrorCode.RESULT_TYPE, "an accumulator is null"),
    ("text", lambda b: pa.array(["x"] * b.segments), ErrorCode.RESULT_TYPE, "expected bigint, got string"),
    ("none", lambda b: None, ErrorCode.RESULT_TYPE, "expected an array of bigint, got a value"),
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
