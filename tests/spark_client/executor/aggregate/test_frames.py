"""Values of windows compared with plain Python: every frame, every order, with and without retraction."""

import datetime
import decimal
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_client.executor.aggregate import over
from spark_client.executor.aggregate.frames import Frame, bounds_of
from spark_client.executor.aggregate.over import OverInput, OverPlan, map_over
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.aggregate.steps import recomputed, slid, stretches
from spark_client.testing import FaultyTransport
from tests.properties import examples
from tests.spark_client.executor.aggregate.world import (
    Opening,
    Rows,
    Sum,
    Trail,
    batches_of,
    call_of,
    rows_of,
    table_of,
)

DAY = datetime.date(2024, 1, 1)
NOON = datetime.datetime(2024, 1, 1, 12)
TENTHS = st.integers(-9, 9).map(lambda x: decimal.Decimal(x) / 10)
FLOATS = st.sampled_from([-1.5, 0.0, 0.5, 1.0, 2.5, math.inf, -math.inf])
ORDERS = {
    pa.int64(): (st.integers(-4, 4), st.integers(1, 3) | st.just(1.5), False),
    pa.int8(): (st.integers(-4, 4), st.integers(1, 3), False),
    pa.float64(): (FLOATS, st.sampled_from([0.5, 1, 2]), False),
    pa.decimal128(10, 1): (TENTHS, st.sampled_from([0.1, 0.2]), False),
    pa.decimal128(38, 1): (TENTHS.map(lambda x: decimal.Decimal(10**25) + x), st.sampled_from([0.1, 0.2]), False),
    pa.date32(): (st.integers(0, 5).map(lambda x: DAY + datetime.timedelta(x)), st.integers(1, 3), False),
    pa.timestamp("us"): (
        st.integers(0, 9).map(lambda x: NOON + datetime.timedelta(microseconds=100_000 * x)),
        st.sampled_from([0.1, 0.3, 1.0]),
        True,
    ),
}
"""Types to order by: values, offsets, and whether offsets are seconds."""


def plus(value, offset, of_time):
    """Computes `value + offset` exactly."""
    if isinstance(value, float):
        return value + offset
    if isinstance(value, datetime.datetime):
        return value + datetime.timedelta(microseconds=round(offset * 1e6))
    if isinstance(value, datetime.date):
        return value + datetime.timedelta(offset)
    with decimal.localcontext(prec=60):
        return decimal.Decimal(value) + decimal.Decimal(repr(offset))


def same(one, other):
    return one == other or (one is None and other is None) or (nan(one) and nan(other))


def nan(value):
    return isinstance(value, float) and math.isnan(value)


def in_frame(frame, rows, i, j, descending):
    """Whether row j is in the frame of row i; rows are those of one partition, in order."""
    if frame.rows:
        return (frame.start is None or j >= i + frame.start) and (frame.end is None or j <= i + frame.end)
    here, there = rows[i], rows[j]
    later = j > i
    for bound, end in ((frame.start, False), (frame.end, True)):
        if bound is None:
            continue
        alone = here is None or there is None or nan(here) or nan(there)
        if bound == 0 or alone:
            if not same(here, there) and later is end:
                return False
            continue
        offset = -bound if descending else bound
        limit = plus(here, offset, frame.of_time)
        beyond = there < limit if descending else there > limit
        short = there > limit if descending else there < limit
        if (end and beyond) or (not end and short):
            return False
    return True


@st.composite
def windows(draw):
    type_ = draw(st.sampled_from(list(ORDERS)))
    values, offsets, of_time = ORDERS[type_]
    by_rows = draw(st.booleans())
    numbers = st.integers(-3, 3) if by_rows else st.just(0) | offsets | offsets.map(lambda x: -x)
    start, end = draw(st.none() | numbers), draw(st.none() | numbers)
    if start is not None and end is not None and start > end:
        start, end = end, start
    frame = Frame(rows=by_rows, start=start, end=end, of_time=of_time and not by_rows)
    descending = draw(st.booleans())
    if pa.types.is_floating(type_):
        values |= st.just(math.nan)
    partitions = draw(st.lists(st.lists(st.none() | values, min_size=1, max_size=8), max_size=4))
    for part in partitions:
        part.sort(key=lambda x: (x is not None, nan(x), 0 if x is None or nan(x) else x), reverse=descending)
    return type_, frame, descending, partitions


def as_table(type_, partitions, values):
    return table_of({
        "k": (pa.int64(), [k for k, part in enumerate(partitions) for _ in part]),
        "t": (type_, [t for part in partitions for t in part]),
        "v": (pa.int64(), values),
        "only": (pa.bool_(), [v % 3 != 0 for v in values]),
    })  # fmt: skip


def plan_of(frame, *sources):
    names = ("k", "t", "v", "only", *(f"x{i}" for i in range(len(sources))))
    return OverPlan(
        inputs=tuple(OverInput(source, frame) for source in sources), partition=(0,), partition_names=("k",),
        order=(1,), passed=(0, 1, 2, 3), names=names,
    )  # fmt: skip


@pytest.mark.slow
@examples(150)
@given(windows(), st.integers(1, 30), st.lists(st.integers(0, 30), max_size=3), st.booleans())
def test_every_row_has_the_value_of_its_frame(transport, window, size, cuts, filtered):
    type_, frame, descending, partitions = window
    count = sum(map(len, partitions))
    values = [(7 * i) % 11 for i in range(count)]
    table = as_table(type_, partitions, values)
    only = 3 if filtered else None
    sources = [
        AggregateInput(call_of(Sum, size=size), (2,), only),
        AggregateInput(call_of(Trail, size=size), (2,), only),
        AggregateInput(call_of(Rows, arguments=0, size=size), (), only),
    ]
    found = rows_of(map_over(plan_of(frame, *sources), batches_of(table, cuts), Opening(transport)))
    expected, first = [], 0
    for part in partitions:
        here = values[first : first + len(part)]
        first += len(part)
        for i in range(len(part)):
            chosen = [here[j] for j in range(len(part)) if in_frame(frame, part, i, j, descending)]
            expected.append([v for v in chosen if v % 3 != 0 or not filtered])
    assert [row["v"] for row in found] == values
    assert [row["x0"] for row in found] == [{"sum": sum(vs), "count": len(vs)} for vs in expected]
    assert [row["x1"] for row in found] == ["".join(f"{v}," for v in vs) for vs in expected]
    assert [row["x2"] for row in found] == [len(vs) for vs in expected]


@examples(20)
@given(windows(), st.integers(1, 10), st.integers(0, 1 << 30))
def test_lost_servers_change_no_value(transport, window, size, seed):
    type_, frame, _, partitions = window
    table = as_table(type_, partitions, range(sum(map(len, partitions))))
    plan = plan_of(frame, AggregateInput(call_of(Sum, size=size), (2,)))
    faulty = FaultyTransport(transport, seed, loss_rate=0.2, most_losses=6)
    found = rows_of(map_over(plan, iter(table.to_batches()), Opening(faulty)))
    assert found == rows_of(map_over(plan, iter(table.to_batches()), Opening(transport)))


FRAMES = st.lists(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=6), max_size=4)


def bounds(partitions):
    """Bounds that do not fall within a partition, and lie in it."""
    low, high, starts = [], [], []
    for part in partitions:
        begin, size = len(low), len(part)
        starts.append(begin)
        lows = sorted(min(a, size) for a, _ in part)
        highs = sorted(min(b, size) for _, b in part)
        low += [begin + a for a in lows]
        high += [begin + max(a, b) for a, b in zip(lows, highs, strict=True)]
    return (np.array(each, np.int64) for each in (low, high, starts))


def applied(steps):
    """Returns the rows in each row's frame after the steps up to its place."""
    found = []
    for segment, position in zip(steps.segment.tolist(), steps.position.tolist(), strict=True):
        begin = steps.offsets[segment]
        held = []
        for step in range(begin, begin + position):
            if steps.retracts is not None and steps.retracts[step]:
                held.remove(int(steps.rows[step]))
            else:
                held.append(int(steps.rows[step]))
        found.append(held)
    return found


@given(FRAMES)
def test_sliding_and_recomputing_lead_to_the_same_rows(partitions):
    low, high, starts = bounds(partitions)
    expected = [list(range(a, b)) for a, b in zip(low, high, strict=True)]
    assert applied(slid(low, high, starts)) == expected
    assert applied(recomputed(low, high)) == expected


@given(FRAMES, st.data())
def test_rows_that_are_not_chosen_are_in_no_step(partitions, data):
    low, high, starts = bounds(partitions)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(low), max_size=len(low))), np.bool_)
    expected = [[row for row in range(a, b) if chosen[row]] for a, b in zip(low, high, strict=True)]
    assert applied(slid(low, high, starts).only(chosen)) == expected
    assert applied(recomputed(low, high).only(chosen)) == expected


def test_values_near_the_ends_of_their_type_are_compared_exactly():
    most = (1 << 63) - 1
    order = [pa.chunked_array([pa.array([-most - 1, -most, 0, most - 1, most], pa.int64())])]
    low, high = bounds_of(Frame(rows=False, start=-1, end=1), np.zeros(1, np.int64), order, 5)
    assert low.tolist() == [0, 0, 2, 3, 3]
    assert high.tolist() == [2, 2, 3, 5, 5]


def test_the_largest_offsets_leave_nulls_and_nan_out():
    order = [pa.chunked_array([pa.array([None, -1e308, 0.0, 1e308, float("inf"), float("nan")])])]
    low, high = bounds_of(Frame(rows=False, start=-1e308, end=1e308), np.zeros(1, np.int64), order, 6)
    assert low.tolist() == [0, 1, 1, 2, 4, 5]
    assert high.tolist() == [1, 3, 4, 5, 5, 6]


@given(FRAMES, st.integers(1, 20))
def test_stretches_have_every_row_once_and_part_no_rows_of_one_frame(partitions, most):
    low, high, _ = bounds(partitions)
    found = list(stretches(low, high, most))
    assert [row for begin, end in found for row in range(begin, end)] == list(range(len(low)))
    for begin, end in found:
        frames = {(low[row], high[row]) for row in range(begin, end)}
        largest = max((b - a for a, b in frames), default=0)
        assert sum(b - a for a, b in frames) <= most + largest
        assert not begin or (low[begin - 1], high[begin - 1]) not in frames


def test_frames_that_are_computed_one_by_one_are_laid_out_a_few_at_a_time(transport, monkeypatch):
    """A partition has 300 rows, each with all rows after it: 45,150 steps."""
    monkeypatch.setattr(over, "TABLE_STEPS", 1000)
    seen = []

    def counted(low, high):
        steps = recomputed(low, high)
        seen.append(len(steps.rows))
        return steps

    monkeypatch.setattr(over, "recomputed", counted)
    table = as_table(pa.int64(), [range(300)], range(300))
    plan = plan_of(Frame(rows=True, start=0, end=None), AggregateInput(call_of(Trail), (2,)))
    found = rows_of(map_over(plan, iter(table.to_batches()), Opening(transport)))
    assert found[290]["x0"] == "".join(f"{v}," for v in range(290, 300))
    assert sum(seen) == 45_150
    assert max(seen) <= 1300
