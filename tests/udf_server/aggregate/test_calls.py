"""Segments in, applied segments out: FLIP-491 call by call, for each way to write a function."""

import asyncio

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.segments import AppliedField
from tests.udf_server.aggregate_functions import BundledAverage, ClassicAverage, VectorizedAverage
from udf_server import BundledKeySegment as Segment
from udf_server import BundledKeySegmentApplied as Applied
from udf_server import RowKind
from udf_server.aggregate.declaration import declare_aggregate

AVERAGES = [BundledAverage, ClassicAverage, VectorizedAverage]
every_way = pytest.mark.parametrize("average", AVERAGES, ids=lambda kind: kind.__name__)


def kinds(*texts):
    return [RowKind(text) for text in texts]


def as_dicts(applied):
    """Accumulators alike, whatever class the function has for them."""
    for each in applied:
        if not isinstance(each.accumulator, dict):
            each.accumulator = vars(each.accumulator)
    return applied


@every_way
async def test_the_worked_example_of_the_flip_call_by_call(environment, average):
    """FLIP-491, "Group By Example": odd and even averages, three bundles of three rows."""
    accumulator = declare_aggregate(average).accumulator

    async def bundle(*segments):
        for segment in segments:
            encoded = pa.array(segment.accumulators, accumulator.type)
            segment.accumulators = accumulator.decode(encoded)
        return as_dicts((await environment.apply(average, segments, key="k bigint")).to_list())

    assert await bundle(Segment((1,), [(1,), (5,)], []), Segment((0,), [(2,)], [])) == [
        Applied({"sum": 6, "count": 2}, None, 3),
        Applied({"sum": 2, "count": 1}, None, 2),
    ]
    assert await bundle(
        Segment((1,), [(1,)], [{"sum": 6, "count": 2}], row_kinds=kinds("-U")),
        Segment((0,), [(2,), (6,)], [{"sum": 2, "count": 1}], row_kinds=kinds("-U", "+U")),
    ) == [
        Applied({"sum": 5, "count": 1}, 3, 5),
        Applied({"sum": 6, "count": 1}, 2, 6),
    ]
    assert await bundle(Segment((1,), [(3,)], [{"sum": 5, "count": 1}], row_kinds=kinds("+U"))) == [
        Applied({"sum": 8, "count": 2}, 5, 4)
    ]


@every_way
async def test_several_accumulators_are_merged_before_the_first_row(environment, average):
    make = declare_aggregate(average).accumulator.decode
    before = make(pa.array([{"sum": 6, "count": 2}, {"sum": 9, "count": 1}, {"sum": 0, "count": 0}]))
    applied = (await environment.apply(average, [Segment((), [(1,)], before)])).to_list()
    assert as_dicts(applied) == [Applied({"sum": 16, "count": 4}, 5, 4)]


@every_way
async def test_a_segment_without_rows_keeps_its_value_and_one_without_anything_has_a_new_one(environment, average):
    make = declare_aggregate(average).accumulator.decode
    before = make(pa.array([{"sum": 6, "count": 2}]))
    applied = (await environment.apply(average, [Segment(("a",), [], before), Segment(("b",), [])])).to_list()
    assert as_dicts(applied) == [
        Applied({"sum": 6, "count": 2}, 3, 3),
        Applied({"sum": 0, "count": 0}, None, None),
    ]


@every_way
async def test_all_rows_taken_back_leave_the_value_of_no_rows(environment, average):
    segment = Segment((), [(7,), (7,)], row_kinds=kinds("+I", "-D"))
    assert as_dicts((await environment.apply(average, [segment])).to_list()) == [
        Applied({"sum": 0, "count": 0}, None, None)
    ]


@every_way
async def test_the_value_after_each_row_is_given_to_segments_that_ask(environment, average):
    segments = [
        Segment(("a",), [(1,), (5,), (1,)], [], True, kinds("+I", "+I", "-D")),
        Segment(("b",), [(2,)], []),
        Segment(("c",), [], [], True),
        Segment(("d",), [(4,), (6,)], [], True),
    ]
    applied = (await environment.apply(average, segments)).to_list()
    assert [list(each.updated_values_after_each_row) for each in applied] == [[1, 3, 5], [], [], [4, 5]]
    assert [each.final_value for each in applied] == [5, 2, None, 5]


@every_way
async def test_only_what_is_wanted_is_given(environment, average):
    result = await environment.apply(average, [Segment((), [(4,)])], applied=[AppliedField.FINAL_VALUE])
    assert result.to_list() == [Applied(None, None, 4)]


@every_way
async def test_no_segments_are_no_trouble(environment, average):
    assert (await environment.apply(average, [])).to_list() == []


async def test_a_bundled_function_may_wait_and_several_bundles_wait_together(environment):
    class Waits(udf.BundledAggregateFunction):
        parameters, returns, accumulator = "v bigint", "bigint", "bigint"

        async def bundled_accumulate_retract(self, bundle):
            await asyncio.sleep(0)
            return [Applied(sum(row[0] for row in s.rows), None, len(bundle)) for s in bundle]

    applied = (await environment.apply(Waits, [Segment((k,), [(k,), (1,)]) for k in range(3)])).to_list()
    assert applied == [Applied(1, None, 3), Applied(2, None, 3), Applied(3, None, 3)]


async def test_a_bundled_function_may_ask_for_the_context_of_its_call(environment):
    class WithContext(udf.BundledAggregateFunction):
        parameters, returns, accumulator = "", "string", "boolean"

        def bundled_accumulate_retract(self, bundle, context: udf.CallContext):
            said = f"{context.stream.function} {context.row} {context.rows} {context.attempt}"
            return [Applied(True, None, said) for _ in bundle]

    class AsyncWithContext(WithContext):
        async def bundled_accumulate_retract(self, bundle, *, context: udf.CallContext):
            return super().bundled_accumulate_retract(bundle, context)

    for kind, name in ((WithContext, "with_context"), (AsyncWithContext, "async_with_context")):
        applied = (await environment.apply(kind, [Segment((), [()])] * 3, size=2)).to_list()
        assert [each.final_value for each in applied] == [f"{name} 0 2 1", f"{name} 0 2 1", f"{name} 2 1 1"]


async def test_hooks_of_an_instance_run_around_its_calls():
    from udf_server.testing import FunctionEnvironment

    calls = []

    class Hooked(ClassicAverage):
        async def open(self):
            calls.append("open")

        def close(self):
            calls.append("close")

    async with FunctionEnvironment() as environment:
        assert await environment.aggregate(Hooked, [4]) == {(): 4}
    assert calls == ["open", "close"]
