"""The test kit for aggregate functions: segments of one bundle, and plain rows however they are cut."""

from decimal import Decimal

import pytest

import udf_server as udf
from remote_udf.errors import InvalidOption
from tests.udf_server.aggregate_functions import BundledAverage, ClassicAverage, VectorizedAverage
from udf_server import BundledKeySegment as Segment
from udf_server.aggregate.declaration import declare_aggregate
from udf_server.testing import FaultInjector


class Join(udf.AggregateFunction):
    """Shows in which order rows and accumulators came."""

    def create_accumulator(self) -> list[str]:
        return []

    def accumulate(self, accumulator, text: str):
        accumulator.append(text)

    def merge(self, accumulator, others):
        accumulator += ["|", *(text for other in others for text in [*other, "|"][:-1])]

    def get_value(self, accumulator) -> str:
        return "".join(accumulator)


@pytest.mark.parametrize("given", [ClassicAverage, ClassicAverage(), declare_aggregate(ClassicAverage)])
async def test_a_function_is_given_as_class_instance_or_declaration(environment, given):
    assert await environment.aggregate(given, [3, 5]) == {(): 4}


async def test_rows_are_tuples_of_arguments_or_single_ones(environment):
    assert await environment.aggregate(BundledAverage, [(3,), (5,)]) == {(): 4}


async def test_keys_come_back_as_they_were_given_in_the_order_of_their_first_rows(environment):
    found = await environment.aggregate(
        VectorizedAverage, [1, 2, 3, 4], keys=[("b", 1), ("a", 2), ("a", None), ("b", 1)]
    )
    assert list(found.items()) == [(("b", 1), 2), (("a", 2), 2), (("a", None), 3)]
    assert await environment.aggregate(VectorizedAverage, [1, 2], keys=["b", None]) == {"b": 1, None: 2}


@pytest.mark.parametrize(
    ("size", "merge", "wanted"),
    [(None, False, "abcde"), (2, False, "abcde"), (3, True, "abc|de"), (9, True, "abcde")],
)
async def test_size_cuts_rows_into_bundles_that_are_chained_or_merged(environment, size, merge, wanted):
    assert await environment.aggregate(Join, "abcde", size=size, merge=merge) == {(): wanted}


async def test_rows_of_a_key_stay_in_order(environment):
    assert await environment.aggregate(Join, "abcdef", keys=[1, 2] * 3, size=4) == {1: "ace", 2: "bdf"}


async def test_kinds_of_rows_may_be_text(environment):
    kinds = ["+I", "+I", "-D"]
    assert await environment.aggregate(BundledAverage, [3, 5, 3], row_kinds=kinds) == {(): 5}


async def test_columns_of_different_lengths_are_refused(environment):
    with pytest.raises(ValueError, match="2 rows, but 1 keys"):
        await environment.aggregate(Join, "ab", keys=[1])
    with pytest.raises(ValueError, match="2 rows, but 3 row_kinds"):
        await environment.aggregate(Join, "ab", row_kinds=["+I"] * 3)
    with pytest.raises(ValueError, match=r"rows of different widths: \[1, 2\]"):
        await environment.apply(Join, [Segment((), [("a",), ("a", "b")])])
    with pytest.raises(ValueError, match=r"keys of different widths: \[0, 1\]"):
        await environment.apply(BundledAverage, [Segment((), []), Segment((1,), [])])


async def test_a_failed_segment_fails_the_test_that_takes_values_for_granted(environment):
    class Fails(Join):
        def accumulate(self, accumulator, text: str):
            raise ValueError(text)

    with pytest.raises(AssertionError, match="segment 1: FUNCTION_ERROR: ValueError: b"):
        (await environment.apply(Fails, [Segment((), []), Segment((), [("b",)])])).to_list()
    with pytest.raises(AssertionError, match="segment 0: FUNCTION_ERROR: ValueError: a"):
        await environment.aggregate(Fails, "a")


async def test_the_types_of_a_key_may_be_given(environment):
    seen = []

    class Keys(udf.BundledAggregateFunction):
        parameters, returns, accumulator = "", "int", "int"

        def bundled_accumulate_retract(self, bundle):
            seen.extend(segment.key for segment in bundle)
            return [udf.BundledKeySegmentApplied(0) for _ in bundle]

    await environment.apply(Keys, [Segment((Decimal("1"), None), [])], key="price decimal(10,2), day date")
    assert list(map(repr, seen)) == ["(Decimal('1.00'), None)"]


async def test_options_are_those_of_aggregate_functions(environment):
    with pytest.raises(InvalidOption, match="unknown option 'batch-rows'"):
        await environment.apply(Join, [Segment((), [])], **{"batch-rows": 3})


@pytest.mark.parametrize("kind", [BundledAverage, ClassicAverage, VectorizedAverage])
async def test_faults_are_injected_into_every_kind_of_function_and_the_original_is_left_alone(environment, kind):
    faults = FaultInjector(1, error_rate=1.0)
    result = await environment.apply(faults.wrap(kind), [Segment((), [(1,)])], retry_strategy="none")
    assert "injected fault" in result.errors[0].message
    assert await environment.aggregate(kind, [1]) == {(): 1}
    assert faults.injected == 1


async def test_an_aggregate_function_has_no_value_per_row(environment):
    with pytest.raises(TypeError, match="classic_average@1 is an aggregate function: use apply or aggregate"):
        await environment.run(declare_aggregate(ClassicAverage), [1])
