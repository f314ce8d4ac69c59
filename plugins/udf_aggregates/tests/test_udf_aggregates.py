"""Every function equals a plain model of it, however the rows are cut, merged and retracted."""

import math
from decimal import Decimal, localcontext

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from remote_udf.errors import ErrorCode
from udf_aggregates import (
    ApproxDistinct,
    ApproxQuantile,
    Average,
    EwmMean,
    ExactSum,
    Maximum,
    Median,
    Minimum,
    Mode,
    Percentile,
    TopK,
    WeightedAverage,
    udf_functions,
)
from udf_server import BundledKeySegment as Segment
from udf_server import RowKind
from udf_server.testing import FunctionEnvironment

numbers = st.floats(width=64)
finite = st.floats(-1e9, 1e9)
bigints = st.integers(-(2**63), 2**63 - 1)
decimals = st.decimals(-(10**10), 10**10, places=18)
keys = st.sampled_from(["a", "b", None])


def nan_last(value):
    return (math.isnan(value), 0.0 if math.isnan(value) else value)


def same(found, wanted):
    """Compares values; NaN equals NaN and null equals null."""
    if isinstance(wanted, float) and isinstance(found, float):
        return found == wanted or (math.isnan(found) and math.isnan(wanted))
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and found == wanted


def close(found, wanted):
    return same(found, wanted) or (None not in (found, wanted) and found == pytest.approx(wanted, rel=1e-12, abs=1e-5))


def mean(values):
    if not values:
        return None
    if all(isinstance(value, int) for value in values):
        return float(sum(values)) / len(values)
    if any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
        return math.nan
    return next((value for value in values if math.isinf(value)), math.fsum(values) / len(values))


def exact(values):
    with localcontext(prec=60):
        return sum(map(Decimal, values), Decimal(0)) if values else None


def median(values):
    if not values:
        return None
    ordered = sorted(values, key=nan_last)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return low if low == high else low / 2 + high / 2


def least(values):
    return min(values, key=nan_last, default=None)


def greatest(values):
    return max(values, key=nan_last, default=None)


def mode(values):
    return min(set(values), key=lambda value: (-values.count(value), value), default=None)


def percentile(values):
    """The percentile of pairs of a value and 0.3."""
    if not values:
        return None
    ordered = sorted((value for value, _ in values), key=nan_last)
    place = values[0][1] * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[math.ceil(place)]
    return low if below == place or low == high else low * (1 - (place - below)) + high * (place - below)


def weighted_mean(values):
    """The weighted mean of pairs of a value and a weight."""
    counted = [(value, weight) for value, weight in values if weight]
    if not counted:
        return None
    parts = {value for value, _ in counted if not math.isfinite(value)}
    if any(map(math.isnan, parts)) or len(parts) == 2:
        return math.nan
    return parts.pop() if parts else math.fsum(v * w for v, w in counted) / math.fsum(w for _, w in counted)


weights = st.sampled_from([0.0, 0.5, 1.0, 3.0])
MODELS = [
    (Average, st.lists(bigints), mean, same),
    (Average, st.lists(finite), mean, close),
    (Average, st.lists(st.sampled_from([1.0, 2.5, math.inf, -math.inf, math.nan])), mean, same),
    (ExactSum, st.lists(bigints, max_size=10), exact, lambda a, b: a == b),
    (ExactSum, st.lists(decimals), exact, lambda a, b: a == b),
    (Minimum, st.lists(numbers), least, same),
    (Maximum, st.lists(numbers), greatest, same),
    (Median, st.lists(numbers), median, same),
    (Median, st.lists(st.integers(0, 5).map(float)), median, same),
    (Mode, st.lists(st.sampled_from(["red", "blue", ""])), mode, same),
    (Percentile, st.lists(st.tuples(numbers, st.just(0.3))), percentile, same),
    (WeightedAverage, st.lists(st.tuples(finite, weights)), weighted_mean, close),
    (WeightedAverage, st.lists(st.tuples(st.sampled_from([1.0, math.inf, -math.inf, math.nan]), weights)),
     weighted_mean, close),
]  # fmt: skip
IDS = ["average-integers", "average", "average-nan", "sum-integers", "sum", "minimum", "maximum", "median", "ties"]
IDS += ["mode", "percentile", "weighted", "weighted-nan"]
retractable = pytest.mark.parametrize(("function", "rows", "model", "equal"), MODELS, ids=IDS)


def by_key(rows, keys):
    found = {}
    for key, row in zip(keys, rows, strict=True):
        found.setdefault(key, []).append(row)
    return found


@retractable
@settings(deadline=None, max_examples=25)
@given(data=st.data(), merge=st.booleans())
async def test_values_are_those_of_the_model_however_the_rows_are_cut(function, rows, model, equal, data, merge):
    given_rows = data.draw(rows)
    size = data.draw(st.integers(1, len(given_rows) + 1))
    given_keys = data.draw(st.lists(keys, min_size=len(given_rows), max_size=len(given_rows)))
    async with FunctionEnvironment() as environment:
        found = await environment.aggregate(function, given_rows, keys=given_keys, size=size, merge=merge)
    wanted = {key: model(values) for key, values in by_key(given_rows, given_keys).items()}
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert equal(found[key], value), (key, found[key], value)


@pytest.mark.long
@retractable
@settings(deadline=None, max_examples=25)
@given(data=st.data(), merge=st.booleans())
async def test_a_row_taken_back_is_as_if_it_had_never_come(function, rows, model, equal, data, merge):
    kept, taken = data.draw(rows), data.draw(rows)
    # In a part of a changelog a row may be retracted before it is added.
    changes = [("+I", row) for row in kept] + [(kind, row) for row in taken for kind in ("+I", "-D")]
    changes = data.draw(st.permutations(changes))
    size = data.draw(st.integers(1, len(changes) + 1))
    kinds, values = [kind for kind, _ in changes], [row for _, row in changes]
    async with FunctionEnvironment() as environment:
        found = await environment.aggregate(function, values, row_kinds=kinds, size=size, merge=merge)
    assert equal(found[()], model(kept)), (found, model(kept))


@retractable
@settings(deadline=None, max_examples=15)
@given(data=st.data())
async def test_values_after_each_row_are_those_of_the_rows_so_far(function, rows, model, equal, data):
    values, other = data.draw(rows), data.draw(rows.filter(bool))[:1]
    async with FunctionEnvironment() as environment:
        segments = [
            Segment((key,), [value if isinstance(value, tuple) else (value,) for value in part], [], True)
            for key, part in enumerate((values, other))
        ]
        applied = (await environment.apply(function, segments)).to_list()[0]
    assert equal(applied.starting_value, None)
    for count, found in enumerate(applied.updated_values_after_each_row, 1):
        assert equal(found, model(values[:count])), (count, found)


EXTRA = {ApproxQuantile: (0.5,), EwmMean: (0.5,), Percentile: (0.5,), TopK: (3,), WeightedAverage: (2.0,)}
"""Arguments beside the value."""


def one_of(function, value):
    """A value that the function accepts."""
    return str(value) if function is Mode else value


MERGEABLE = [kind for kind in udf_functions() if kind().supports_merging()]


@pytest.mark.parametrize("function", MERGEABLE, ids=lambda kind: kind.__name__)
@settings(deadline=None, max_examples=15)
@given(parts=st.lists(st.lists(st.integers(-50, 50), max_size=6), min_size=3, max_size=3))
async def test_merging_is_associative_and_has_an_empty_one(function, parts):
    extra = EXTRA.get(function, ())

    async with FunctionEnvironment() as environment:

        async def apply(*segments):
            applied = (await environment.apply(function, segments)).to_list()
            return [each.accumulator for each in applied], [each.final_value for each in applied]

        rows = [[(one_of(function, value), *extra) for value in part] for part in parts]
        (a, b, c, empty), _ = await apply(*(Segment((), part) for part in rows), Segment((), []))
        (ab, bc), _ = await apply(Segment((), [], [a, b]), Segment((), [], [b, c]))
        ways = [[ab, c], [a, bc], [c, b, a], [a, b, c], [empty, a, empty, b, c]]
        _, found = await apply(*(Segment((), [], way) for way in ways), Segment((), rows[0] + rows[1] + rows[2]))
    assert all(same(value, found[0]) for value in found)


async def test_rows_with_nulls_are_left_out_and_no_rows_have_their_value():
    wanted = {ApproxDistinct: 0, TopK: []}
    async with FunctionEnvironment() as environment:
        for function in udf_functions():
            extra = EXTRA.get(function, ())
            assert await environment.aggregate(function, []) == {(): wanted.get(function)}
            assert await environment.aggregate(function, [(None, *extra)], keys=[1]) == {1: wanted.get(function)}
            seven = 7 if function is ExactSum else one_of(function, 7.0)
            one = await environment.aggregate(function, [(seven, *extra), (None, *extra)])
            assert one == {(): {ApproxDistinct: 1, TopK: [7.0], Mode: "7.0"}.get(function, 7)}


async def test_means_of_integers_keep_their_digits():
    async with FunctionEnvironment() as environment:
        large = [2**53 + 1, -(2**53), 2**63 - 1, -(2**63 - 1)]
        assert await environment.aggregate(Average, large, size=1, merge=True) == {(): 0.25}


async def test_doubles_that_are_too_large_together_are_infinite():
    async with FunctionEnvironment() as environment:
        for size in (None, 1):
            assert await environment.aggregate(Average, [1e308] * 3, size=size, merge=True) == {(): math.inf}
        assert await environment.aggregate(Median, [1e308, 1.5e308]) == {(): 1.25e308}


async def test_a_sum_passes_what_does_not_fit_and_fails_only_if_it_ends_there():
    largest = Decimal("99999999999999999999.999999999999999999")
    async with FunctionEnvironment() as environment:
        least = largest.copy_negate()
        rows = [largest, largest, least]
        for merge in (False, True):
            assert await environment.aggregate(ExactSum, rows, size=1, merge=merge) == {(): largest}
        segments = [Segment((1,), [(largest,)] * 2), Segment((2,), [(largest,)]), Segment((3,), [(least,)] * 40)]
        result = await environment.apply(ExactSum, segments)
    assert list(result.errors) == [0, 2]
    assert "does not fit decimal(38,18)" in result.errors[0].message
    assert result.applied[1].final_value == largest


@settings(deadline=None, max_examples=25)
@given(st.lists(st.floats(-1e6, 1e6), max_size=12), st.floats(0.01, 1.0), st.integers(1, 13))
async def test_the_weighted_mean_is_that_of_pandas(values, alpha, size):
    async with FunctionEnvironment() as environment:
        found = await environment.aggregate(EwmMean, [(value, alpha) for value in values], size=size)
    wanted = pd.Series(values, dtype=float).ewm(alpha=alpha).mean()
    assert close(found[()], float(wanted.iloc[-1]) if values else None)


@settings(deadline=None, max_examples=50)
@given(st.lists(numbers, max_size=15), st.integers(1, 5), st.integers(1, 16), st.booleans())
async def test_the_top_values_are_the_last_of_the_sorted_ones(values, k, size, merge):
    async with FunctionEnvironment() as environment:
        found = await environment.aggregate(TopK, [(value, k) for value in values], size=size, merge=merge)
    assert same(found[()], sorted(values, key=nan_last)[::-1][:k])


WRONG = [
    (TopK, [(1.0, 2), (1.0, 3)], "k: 2 and 3; it is the same for all rows of a key"),
    (TopK, [(1.0, 0)], "k: 0 is not from 1 to 10000"),
    (EwmMean, [(1.0, 0.0)], "alpha: 0.0 is not greater than 0 and at most 1"),
    (EwmMean, [(1.0, math.nan)], "alpha: nan is not greater"),
    (ApproxQuantile, [(1.0, 0.1), (1.0, 0.2)], "q: 0.1 and 0.2; it is the same for all rows of a key"),
    (ApproxQuantile, [(1.0, 1.5)], "q: 1.5 is not from 0 to 1"),
    (ApproxQuantile, [(1.0, math.nan)], "q: nan is not from 0 to 1"),
    (Percentile, [(1.0, 0.1), (1.0, 0.2)], "q: 0.1 and 0.2; it is the same for all rows of a key"),
    (Percentile, [(1.0, -0.5)], "q: -0.5 is not from 0 to 1"),
    (Percentile, [(1.0, math.nan)], "q: nan is not from 0 to 1"),
    (WeightedAverage, [(1.0, -1.0)], "w: -1.0 is not finite and at least 0"),
    (WeightedAverage, [(1.0, math.inf)], "w: inf is not finite and at least 0"),
]


@pytest.mark.parametrize(("function", "rows", "message"), WRONG, ids=[row[2][:8] for row in WRONG])
async def test_a_senseless_argument_is_an_error_of_its_key(function, rows, message):
    good = [(1.0, 1 if function is TopK else 0.5)]
    async with FunctionEnvironment() as environment:
        result = await environment.apply(function, [Segment((1,), good), Segment((2,), rows), Segment((3,), good)])
    assert list(result.errors) == [1]
    assert message in result.errors[1].message


async def test_accumulators_of_different_settings_do_not_merge():
    async with FunctionEnvironment() as environment:
        for function, arguments in ((TopK, (2, 3)), (ApproxQuantile, (0.2, 0.3)), (Percentile, (0.2, 0.3))):
            parts = await environment.apply(function, [Segment((), [(1.0, each)]) for each in arguments])
            result = await environment.apply(
                function, [Segment((), [], [each.accumulator for each in parts.to_list()])]
            )
            assert "it is the same for all rows of a key" in result.errors[0].message


async def test_what_forgets_rows_cannot_take_them_back():
    async with FunctionEnvironment() as environment:
        result = await environment.apply(TopK, [Segment((), [(1.0, 2)], row_kinds=[RowKind.DELETE])])
    assert result.errors[0].code is ErrorCode.FUNCTION_ERROR
    assert "Retract functionality is not implemented for the aggregate function: top_k@1" in result.errors[0].message


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.integers()) | st.lists(st.text()) | st.lists(numbers),
    st.integers(1, 20), st.booleans(), st.randoms(use_true_random=False),
)  # fmt: skip
async def test_few_distinct_values_are_counted_exactly_in_any_order(values, size, merge, random):
    assume(all(not isinstance(value, int) or -(2**63) <= value < 2**63 for value in values))
    values = values + random.choices(values, k=5) if values else values
    async with FunctionEnvironment() as environment:
        found = await environment.aggregate(ApproxDistinct, values, size=size, merge=merge)
    nans = [value for value in values if isinstance(value, float) and math.isnan(value)]
    assert found == {(): len(set(values) - {*nans}) + bool(nans)}


@pytest.mark.parametrize("count", [300, 1000, 5000, 60_000])
async def test_distinct_counts_are_near_and_depend_on_the_values_only(count):
    random = np.random.default_rng(count)
    found = set()
    async with FunctionEnvironment() as environment:
        for size, merge in ((None, False), (count // 3, False), (count // 7, True), (count // 2, True)):
            values = random.permutation(count).tolist()
            values += values[: count // 5]
            found |= set((await environment.aggregate(ApproxDistinct, values, size=size, merge=merge)).values())
    assert len(found) == 1
    assert found.pop() == pytest.approx(count, rel=4 * 0.0163)


@settings(deadline=None, max_examples=25)
@given(st.lists(finite, min_size=1, max_size=30), st.floats(0.0, 1.0), st.integers(1, 31), st.booleans())
async def test_quantiles_of_few_values_are_exact(values, share, size, merge):
    async with FunctionEnvironment() as environment:
        found = await environment.aggregate(
            ApproxQuantile, [(value, share) for value in values], size=size, merge=merge
        )
    ordered = sorted(values)
    assert found[()] == min(value for value in ordered if sum(v <= value for v in values) >= share * len(values))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
async def test_quantiles_of_many_values_have_nearly_the_rank_asked_for(share):
    values = np.random.default_rng(5).permutation(30_000).astype(float).tolist()
    async with FunctionEnvironment() as environment:
        for size, merge in ((None, False), (4_000, False), (7_000, True)):
            rows = [(value, share) for value in values]
            found = await environment.aggregate(ApproxQuantile, rows, size=size, merge=merge)
            # The limit is three times the error that 99 of 100 estimates stay below.
            assert found[()] / 30_000 == pytest.approx(share, abs=3 * 0.007)


async def test_quantiles_leave_nan_out():
    async with FunctionEnvironment() as environment:
        rows = [(math.nan, 1.0), (1.0, 1.0), (math.inf, 1.0)]
        assert await environment.aggregate(ApproxQuantile, rows) == {(): math.inf}
        assert await environment.aggregate(ApproxQuantile, rows[:1]) == {(): None}
