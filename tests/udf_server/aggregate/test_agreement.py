"""Classic, bundled and vectorized averages agree, for any segments and however the input was cut."""

from dataclasses import asdict, is_dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.properties import examples
from tests.udf_server.aggregate_functions import BundledAverage, ClassicAverage, SumAndCount, VectorizedAverage
from udf_server import BundledKeySegment as Segment
from udf_server import RowKind
from udf_server.testing import FunctionEnvironment

AVERAGES = [BundledAverage, ClassicAverage, VectorizedAverage]
numbers = st.integers(-(10**6), 10**6)
row_kinds = st.sampled_from(RowKind)


@st.composite
def segments(draw):
    rows = draw(st.lists(st.tuples(numbers), max_size=5))
    kinds = draw(st.none() | st.lists(row_kinds, min_size=len(rows), max_size=len(rows)))
    pairs = draw(st.lists(st.tuples(numbers, st.integers(-3, 9)), max_size=3))
    accumulators = [{"sum": total, "count": count} for total, count in pairs]
    return Segment((draw(st.integers(0, 9)),), rows, accumulators, draw(st.booleans()), kinds)


def plain(applied):
    return [
        (
            asdict(each.accumulator) if is_dataclass(each.accumulator) else each.accumulator,
            each.starting_value, each.final_value, list(each.updated_values_after_each_row),
        )
        for each in applied
    ]  # fmt: skip


@examples(60, deadline=None)
@given(st.lists(segments(), max_size=6), st.integers(1, 4))
async def test_any_segments_give_the_same_in_each_way(given_segments, size):
    found = []
    async with FunctionEnvironment() as environment:
        for average in AVERAGES:
            bundle = [
                Segment(
                    each.key, each.rows,
                    [SumAndCount(**a) for a in each.accumulators] if average is ClassicAverage else each.accumulators,
                    each.updated_values_after_each_row, each.row_kinds,
                )
                for each in given_segments
            ]  # fmt: skip
            found.append(plain((await environment.apply(average, bundle, size=size)).to_list()))
    assert found[0] == found[1] == found[2]


@examples(40, deadline=None)
@given(
    st.lists(st.tuples(st.none() | st.integers(0, 3), numbers, row_kinds), max_size=12),
    st.integers(1, 13),
    st.booleans(),
)
async def test_values_do_not_depend_on_how_the_input_is_cut_or_merged(rows, size, merge):
    keys, values, kinds = ([row[place] for row in rows] for place in range(3))
    expected = {}
    for key in keys:
        signs = [-1 if kind.is_retract else 1 for k, _, kind in rows if k == key]
        total = sum(sign * value for sign, value in zip(signs, [v for k, v, _ in rows if k == key], strict=True))
        expected[key] = total // sum(signs) if sum(signs) else None
    async with FunctionEnvironment() as environment:
        for average in AVERAGES:
            cut = {"size": size, "merge": merge}
            assert await environment.aggregate(average, values, keys=keys, row_kinds=kinds, **cut) == expected


@examples(30, deadline=None)
@given(
    st.lists(st.tuples(st.lists(numbers, max_size=90), st.lists(st.tuples(numbers, st.integers(1, 9)), max_size=2))),
)
async def test_long_segments_have_the_same_values_after_each_row_in_each_way(given_segments):
    bundle = [
        Segment((0,), [(row,) for row in rows], [{"sum": total, "count": count} for total, count in pairs], True)
        for rows, pairs in given_segments
    ]
    async with FunctionEnvironment() as environment:
        by_rows = plain((await environment.apply(BundledAverage, bundle)).to_list())
        by_columns = plain((await environment.apply(VectorizedAverage, bundle)).to_list())
    assert by_columns == by_rows


class ReusingAverage(VectorizedAverage):
    """Returns arrays over the same memory each time."""

    def __init__(self):
        self.sums, self.counts, self.averages = np.zeros((3, 1000), np.int64)

    def apply_bundle(self, bundle):
        total, count = (part.to_numpy() for part in super().apply_bundle(bundle).flatten())
        self.sums[: len(total)], self.counts[: len(count)] = total, count
        parts = [pa.array(self.sums[: len(total)]), pa.array(self.counts[: len(count)])]
        return pa.StructArray.from_arrays(parts, ["sum", "count"])

    def get_values(self, accumulators):
        values = super().get_values(accumulators).fill_null(0).to_numpy()
        self.averages[: len(values)] = values
        return self.averages[: len(values)]


class FreshAverage(VectorizedAverage):
    def get_values(self, accumulators):
        return super().get_values(accumulators).fill_null(0)


@pytest.mark.parametrize("rows", [3, 40], ids=["by steps", "by merging"])
async def test_arrays_whose_memory_a_later_call_writes_to_have_the_values_they_were_returned_with(environment, rows):
    bundle = [
        Segment((key,), [(key * 10 + row,) for row in range(rows + key)], [{"sum": key, "count": key}], True)
        for key in range(4)
    ]
    fresh = plain((await environment.apply(FreshAverage, bundle)).to_list())
    assert plain((await environment.apply(ReusingAverage, bundle)).to_list()) == fresh
