"""Calls whose arguments are values of other calls of the same task."""

import random
import threading

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.options import OnError
from spark_client.base.errors import FunctionFailed
from spark_client.executor.engine.planned_calls import EarlierAnswers, PlannedCall
from spark_client.executor.engine.policy import PolicyKeeper, keep_policies
from spark_client.models.thresholds import Deferral
from spark_client.testing import LocalTransport
from tests.spark_client.engines import all_outcomes, numbered, through
from tests.spark_client.scripted import call_of

WIDTH = 2
"""The number of columns of `numbered`: the values of the calls come after them."""


@udf.scalar
async def plus_one(x: int) -> int:
    return x + 1


@udf.scalar(vectorized=True)
def twice(x: pa.Int64Array) -> pa.Int64Array:
    return pa.array([2 * each if each is not None else None for each in x.to_pylist()], pa.int64())


@udf.scalar
def added(x: int, y: int) -> int:
    return x + y


@udf.scalar
async def even(x: int) -> int:
    if x % 2:
        raise ValueError("odd")
    return x


@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_gets_the_values_of_another_one(ordered):
    with LocalTransport(plus_one, twice) as transport:
        engine = through(transport, (call_of(plus_one), (0,)), (call_of(twice), (WIDTH,)), ordered=ordered)
        found = all_outcomes(engine, numbered(5, 0, 300, 1))
    assert sorted(found) == [(x, x + 1, 2 * (x + 1)) for x in range(306)]
    if ordered:
        assert found == sorted(found)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_call_of_several_calls_and_of_a_column_gets_them_together(ordered):
    calls = [
        (call_of(plus_one), (0,)), (call_of(twice), (1,)), (call_of(added, arguments=2), (WIDTH, WIDTH + 1)),
        (call_of(added, arguments=2), (WIDTH + 2, 0)),
    ]  # fmt: skip
    with LocalTransport(plus_one, twice, added) as transport:
        found = all_outcomes(through(transport, *calls, ordered=ordered), numbered(7, 200))
    assert sorted(found) == [(x, x + 1, 20 * x, 21 * x + 1, 22 * x + 1) for x in range(207)]


@pytest.mark.parametrize("ordered", [True, False])
def test_the_outer_call_begins_while_the_inner_one_still_has_rows_of_the_batch(ordered):
    begun = threading.Event()

    @udf.scalar(output_mode="ordered" if ordered else "unordered")
    def inner(x: int) -> int:
        assert x < 90 or begun.wait(20)
        return x

    @udf.scalar
    def outer(x: int) -> int:
        begun.set()
        return -x

    with LocalTransport(inner, outer) as transport:
        calls = (call_of(inner), (0,)), (call_of(outer), (WIDTH,))
        found = all_outcomes(through(transport, *calls, ordered=ordered), numbered(100))
    assert sorted(found) == [(x, x, -x) for x in range(100)]


def test_equal_inner_calls_and_the_calls_of_them_are_made_once():
    seen = []

    @udf.scalar
    def noted(x: int) -> int:
        seen.append(x)
        return x + 1

    calls = [(call_of(noted), (0,)), (call_of(noted), (0,)), (call_of(noted), (WIDTH,)), (call_of(noted), (WIDTH + 1,))]
    with LocalTransport(noted) as transport:
        found = all_outcomes(through(transport, *calls), numbered(3))
    assert found == [(x, x + 1, x + 1, x + 2, x + 2) for x in range(3)]
    assert sorted(seen) == [0, 1, 1, 2, 2, 3]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("on_error", ["column", "dead-letter", "null"])
def test_a_row_whose_inner_call_failed_reaches_the_outer_call_only_as_null(on_error, ordered):
    seen = []

    @udf.scalar
    def outer(x: int | None) -> int:
        seen.append(x)
        return -1 if x is None else 10 * x

    inner = call_of(even, policy={"on_error": OnError(on_error), "dead_letter": "nowhere"})
    with LocalTransport(even, outer) as transport:
        engine = through(transport, (inner, (0,)), (call_of(outer), (WIDTH,)), ordered=ordered)
        found = all_outcomes(engine, numbered(6))
    failed = ErrorCode.FUNCTION_ERROR
    instead = -1 if on_error == "null" else failed
    assert sorted(found) == [(x, failed if x % 2 else x, instead if x % 2 else 10 * x) for x in range(6)]
    assert sorted(x for x in seen if x is not None) == [0, 2, 4]
    assert seen.count(None) == (3 if on_error == "null" else 0)


def test_the_inner_call_that_fails_is_the_one_named():
    calls = [PlannedCall(call_of(even), (0,)), PlannedCall(call_of(plus_one), (WIDTH,))]
    with LocalTransport(even, plus_one) as transport:
        completed = list(through(transport, *calls).run(numbered(3)))
    keepers = [PolicyKeeper(planned.call, planned.columns) for planned in calls]
    with pytest.raises(FunctionFailed, match=r"^even\(x=1\) of even@1 failed"):
        keep_policies(calls, keepers, completed[0])


def test_the_values_of_inner_calls_are_named_in_the_error_of_the_outer_one():
    calls = [PlannedCall(call_of(plus_one), (0,)), PlannedCall(call_of(even), (WIDTH,))]
    with LocalTransport(even, plus_one) as transport:
        completed = list(through(transport, *calls).run(numbered(3)))
    keepers = [PolicyKeeper(planned.call, planned.columns) for planned in calls]
    with pytest.raises(FunctionFailed, match=r"^even\(x=1\) of even@1 failed"):
        keep_policies(calls, keepers, completed[0])


def test_rows_that_became_dead_letters_count_for_no_outer_call():
    inner = call_of(even, policy={"on_error": OnError("dead-letter"), "dead_letter": "nowhere"})
    outer = call_of(plus_one, policy={"on_error": OnError.NULL, "max_errors": 0})
    calls = [PlannedCall(inner, (0,)), PlannedCall(outer, (WIDTH,))]
    with LocalTransport(even, plus_one) as transport:
        completed = list(through(transport, *calls).run(numbered(6)))
    keepers = [PolicyKeeper(planned.call, planned.columns) for planned in calls]
    keep_policies(calls, keepers, completed[0])
    assert [(keeper.rows, keeper.failed) for keeper in keepers] == [(6, 3), (3, 0)]


@pytest.mark.parametrize("seed", range(8))
def test_any_tree_of_calls_has_the_values_of_its_functions(seed):
    rng = random.Random(seed)
    sizes = [rng.choice([0, 1, 3, 120, 700]) for _ in range(rng.randint(1, 4))]
    calls, expected = [], [lambda x: x, lambda x: 10 * x]
    for index in range(rng.randint(1, 7)):
        one, other = rng.randrange(WIDTH + index), rng.randrange(WIDTH + index)
        a, b = expected[one], expected[other]
        function, columns, value = rng.choice([
            (plus_one, (one,), lambda x, a=a: a(x) + 1),
            (twice, (one,), lambda x, a=a: 2 * a(x)),
            (added, (one, other), lambda x, a=a, b=b: a(x) + b(x)),
        ])  # fmt: skip
        calls.append((call_of(function, arguments=len(columns)), columns))
        expected.append(value)
    ordered = rng.random() < 0.5
    with LocalTransport(plus_one, twice, added) as transport:
        found = all_outcomes(through(transport, *calls, ordered=ordered), numbered(*sizes))
    assert sorted(found) == [(x, *(value(x) for value in expected[WIDTH:])) for x in range(sum(sizes))]
    if ordered:
        assert found == sorted(found)


@udf.scalar(returns="struct<value bigint, confidence double>")
def guess(x: int) -> dict:
    if x % 10 == 3:
        raise ValueError("no guess")
    return {"value": -x, "confidence": x % 10 / 10}


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("nested", [True, False])
def test_a_call_is_made_for_the_rows_that_another_one_leaves_to_it(ordered, nested):
    seen = []

    @udf.scalar
    async def sure(x: int) -> int:
        seen.append(x)
        return x

    by = 1 if nested else 0
    argument = (WIDTH,) if nested else (0,)
    inner = [PlannedCall(call_of(plus_one), (0,))] if nested else []
    calls = [
        *inner,
        PlannedCall(call_of(guess, policy={"on_error": OnError.NULL}), argument),
        PlannedCall(call_of(sure), argument, earlier=EarlierAnswers(by, Deferral("value", "confidence", 0.5))),
        PlannedCall(call_of(plus_one), (WIDTH + by + 1,)),
    ]
    with LocalTransport(guess, sure, plus_one) as transport:
        engine = through(transport, *calls, ordered=ordered)
        found = sorted((row[0], row[-2], row[-1]) for row in all_outcomes(engine, numbered(40, 1, 300)))
    left = [x for x in range(by, 341 + by) if x % 10 < 5]
    assert sorted(seen) == left
    values = {x: x if x % 10 < 5 else -x for x in range(by, 341 + by)}
    assert found == [(x - by, value, value + 1) for x, value in values.items()]


def test_equal_calls_with_equal_rules_are_made_once_and_others_are_not():
    seen = []

    @udf.scalar(returns="struct<value bigint, confidence double>")
    def sure(x: int) -> dict:
        seen.append(x)
        return {"value": x, "confidence": None}

    def calls_of(place, threshold):
        rule = Deferral("value", "confidence", threshold, whole=True)
        return [
            PlannedCall(call_of(guess, policy={"on_error": OnError.NULL}), (0,)),
            PlannedCall(call_of(sure), (0,), earlier=EarlierAnswers(place, rule), field="value"),
        ]

    with LocalTransport(guess, sure) as transport:
        calls = [*calls_of(0, 0.5), *calls_of(2, 0.5), *calls_of(4, 0.9), PlannedCall(call_of(sure), (0,))]
        found = all_outcomes(through(transport, *calls), numbered(10))
    assert [row[2] for row in found] == [row[4] for row in found] == [0, 1, 2, 3, 4, -5, -6, -7, -8, -9]
    assert [row[6] for row in found] == [0, 1, 2, 3, 4, 5, 6, 7, 8, -9]
    assert [row[7]["value"] for row in found] == list(range(10))
    assert len(seen) == 5 + 9 + 10
