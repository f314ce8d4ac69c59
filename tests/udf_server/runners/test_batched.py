"""List functions: Python lists in and out, an outcome per row, and only failed rows called again."""

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from udf_server.base.errors import DeclarationError
from udf_server.testing import FunctionEnvironment


def both(body: Any) -> list[udf.Function]:
    """The body as a plain and as an asynchronous list function of a number."""

    def plain(numbers: list[int]) -> list[int]:
        return body(numbers)

    async def asynchronous(numbers: list[int]) -> list[int]:
        await asyncio.sleep(0)
        return body(numbers)

    return [udf.scalar(batched=True, fixed_delay="1 ms")(code) for code in (plain, asynchronous)]


@pytest.mark.parametrize("number", [0, 1], ids=["threads", "async"])
@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
async def test_lists_of_python_values_go_in_and_come_out(environment, number, output_mode):
    seen = []

    def body(numbers: list[int]) -> list[int | None]:
        seen.append(numbers)
        return [None if each is None else 2 * each for each in numbers]

    result = await environment.run(
        both(body)[number], [1, None, 3, 4, 5], batch_rows=4, output_mode=output_mode, **{"batch-rows": 2}
    )
    assert result.to_pylist() == [2, None, 6, 8, 10]
    assert sorted(map(len, seen)) == [1, 2, 2]
    assert all(type(numbers) is list for numbers in seen)


async def test_values_have_the_types_of_the_elements(environment):
    @udf.scalar(batched=True)
    def lengths(texts: list[str], factor: Sequence[float]) -> list[list[float]]:
        return [[len(text) * each] for text, each in zip(texts, factor, strict=True)]

    assert lengths.spec.signature == "lengths(texts string, factor double) -> array<double>"
    assert lengths.spec.execution == "batched"
    assert (await environment.run(lengths, ["a", "bc"], [1.0, 0.5])).to_pylist() == [[1.0], [1.0]]


async def test_explicit_types_are_those_of_a_row(environment):
    @udf.scalar(batched=True, parameters="a int", returns="int")
    def same(a):
        return a

    assert same.spec.signature == "same(a int) -> int"
    assert (await environment.run(same, [1, 2])).to_pylist() == [1, 2]


@pytest.mark.parametrize("number", [0, 1], ids=["threads", "async"])
async def test_a_failure_is_the_outcome_of_its_row_alone(environment, number):
    calls = []

    def body(numbers: list[int]) -> list[Any]:
        calls.append(numbers)
        return [udf.Failure("odd") if each % 2 else each for each in numbers]

    result = await environment.run(both(body)[number], [0, 1, 2, 3])
    assert result.values.to_pylist() == [0, None, 2, None]
    assert result.errors == dict.fromkeys((1, 3), RowError(ErrorCode.FUNCTION_ERROR, "odd", 1))
    assert calls == [[0, 1, 2, 3]]
    assert (result.counts.calls, result.counts.retries) == (1, 0)


@pytest.mark.parametrize("number", [0, 1], ids=["threads", "async"])
async def test_only_rows_with_a_retryable_failure_are_called_again(environment, number):
    calls: list[list[int]] = []

    def body(numbers: list[int]) -> list[Any]:
        calls.append(numbers)
        attempt = len(calls)
        return [
            udf.Failure("busy", retryable=True) if each < 0 or (each % 3 == 0 and attempt == 1) else each
            for each in numbers
        ]

    result = await environment.run(both(body)[number], [0, 1, -2, 3, 4])
    assert calls == [[0, 1, -2, 3, 4], [0, -2, 3], [-2]]
    assert result.values.to_pylist() == [0, 1, None, 3, 4]
    error = result.errors[2]
    assert (error.message, error.retryable, error.attempts) == ("busy", True, 3)
    assert (result.counts.calls, result.counts.retries) == (3, 2)


TIMER_SECONDS = 0.001
"""The precision of the timers of the loop."""


async def test_a_row_is_called_again_no_sooner_than_its_failure_says():
    clock = asyncio.get_running_loop().time
    times = []

    @udf.scalar(batched=True, fixed_delay="1 ms")
    async def f(a: list[int]) -> list[int | udf.Failure]:
        times.append(clock())
        return a if len(times) == 2 else [udf.Failure("later", retryable=True, retry_after=0.2)] * len(a)

    async with FunctionEnvironment() as environment:
        assert (await environment.run(f, [1])).to_pylist() == [1]
    assert times[1] - times[0] > 0.2 - TIMER_SECONDS


async def test_a_row_that_could_not_be_called_in_time_costs_no_other_row(environment):
    calls = []

    @udf.scalar(batched=True, fixed_delay="1 ms", timeout="5 s")
    def f(a: list[int]) -> list[int | udf.Failure]:
        calls.append(a)
        if len(calls) > 1:
            return a
        return [udf.Failure("later", retryable=True, retry_after=600.0 if each == 1 else None) for each in a]

    result = await environment.run(f, [0, 1, 2])
    assert result.values.to_pylist() == [0, None, 2]
    assert result.errors[1].code is ErrorCode.TIMEOUT
    assert "failed with later" in result.errors[1].message
    assert calls == [[0, 1, 2], [0, 2]]


@pytest.mark.parametrize("vectorized", [False, True])
async def test_row_errors_name_the_rows_that_failed_beside_the_values(environment, vectorized):
    calls = []

    def body(a: Any) -> Any:
        rows = a.to_pylist() if vectorized else a
        calls.append(rows)
        bad = {row: ValueError(f"bad {each}") for row, each in enumerate(rows) if each < 0}
        values = [abs(each) for each in rows]
        if bad:
            raise udf.RowErrors(bad, pa.array(values) if vectorized else values)
        return values

    if vectorized:

        @udf.scalar(vectorized=True)
        def f(a: pa.Int64Array) -> pa.Int64Array:
            return body(a)
    else:

        @udf.scalar(batched=True)
        def f(a: list[int]) -> list[int]:
            return body(a)

    result = await environment.run(f, [1, -2, 3, -4])
    assert result.values.to_pylist() == [1, None, 3, None]
    assert [result.errors[row].message for row in (1, 3)] == ["ValueError: bad -2", "ValueError: bad -4"]
    assert calls == [[1, -2, 3, -4]]


async def test_without_values_the_other_rows_are_called_again(environment):
    calls = []

    @udf.scalar(batched=True, fixed_delay="1 ms")
    async def f(a: list[int]) -> list[int]:
        calls.append(a)
        if 0 in a:
            raise udf.RowErrors({a.index(0): KeyError("zero")})
        if len(calls) == 2:
            raise udf.RowErrors({0: udf.RetryableError("busy")})
        return a

    result = await environment.run(f, [5, 0, 6, 7])
    assert result.values.to_pylist() == [5, None, 6, 7]
    assert calls == [[5, 0, 6, 7], [5, 6, 7], [5], [6, 7]]
    assert (result.counts.calls, result.counts.retries) == (4, 1)


async def test_an_exception_that_names_no_row_is_isolated_by_halving(environment):
    @udf.scalar(batched=True)
    def f(a: list[int]) -> list[int]:
        if 5 in a:
            raise ValueError("five")
        return a

    result = await environment.run(f, range(8))
    assert result.values.to_pylist() == [0, 1, 2, 3, 4, None, 6, 7]
    assert result.errors[5].message == "ValueError: five"
    assert "five" in result.errors[5].traceback


WRONG = [
    (lambda a: a[1:], ErrorCode.RESULT_LENGTH, "expected 3 values, one per row, got 2"),
    (lambda a: [*a, 1], ErrorCode.RESULT_LENGTH, "expected 3 values, one per row, got 4"),
    (lambda a: 5, ErrorCode.RESULT_TYPE, "got a value of type int"),
    (lambda a: udf.Failure("all"), ErrorCode.RESULT_TYPE, "got a value of type Failure"),
]


@pytest.mark.parametrize(("body", "code", "why"), WRONG)
async def test_a_result_that_is_no_list_of_that_length_fails_all_rows_at_once(environment, body, code, why):
    for function in both(body):
        result = await environment.run(function, [1, 2, 3])
        assert {(error.code, why in error.message) for error in result.errors.values()} == {(code, True)}
        assert result.counts.calls == 1


@pytest.mark.parametrize(
    ("errors", "why"),
    [
        ({}, "RowErrors without errors"),
        ({3: ValueError()}, "row 3 of a call for 3 rows"),
        ({-1: ValueError()}, "row -1 of a call for 3 rows"),
        ({"0": ValueError()}, "row '0' of a call"),
        ({0: "bad"}, "a str for row 0; expected an exception"),
    ],
)
async def test_row_errors_that_name_no_row_of_the_call_are_malformed(environment, errors, why):
    @udf.scalar(batched=True)
    def f(a: list[int]) -> list[int]:
        raise udf.RowErrors(errors)

    result = await environment.run(f, [1, 2, 3])
    assert len(result.errors) == 3
    assert all(why in error.message for error in result.errors.values())


async def test_an_argument_without_a_python_value_costs_its_row_only(environment):
    column = pa.array([0, 2**62, 1], pa.int64()).cast(pa.timestamp("us", "UTC"))
    calls = []

    @udf.scalar(batched=True, returns="string", parameters="at timestamp", retry_on="Exception")
    def f(at):
        calls.append(len(at))
        return [str(each.year) for each in at]

    result = await environment.run(f, column)
    assert result.values.to_pylist() == ["1970", None, "1970"]
    assert result.errors[1].code is ErrorCode.ARGUMENT_VALUE
    assert "parameter 'at'" in result.errors[1].message
    assert calls == [2]
    assert result.counts.calls == 1


async def test_rows_with_nulls_are_skipped(environment):
    @udf.scalar(batched=True, nulls="skip")
    def f(a: list[int]) -> list[int | udf.Failure]:
        return [udf.Failure("two") if each == 2 else each for each in a]

    result = await environment.run(f, [None, 1, None, 2, 3])
    assert result.values.to_pylist() == [None, 1, None, None, 3]
    assert result.errors.keys() == {3}
    assert result.counts.rows_skipped == 2


async def test_a_failure_may_be_raised_by_a_function_of_one_row(environment):
    @udf.scalar(retry_on="Exception")
    async def f(a: int) -> int:
        raise udf.Failure("no")

    error = (await environment.run(f, [1])).errors[0]
    assert (error.message, error.attempts, error.retryable) == ("no", 1, False)


def declared(**keywords: Any) -> Any:
    return udf.scalar(**{"batched": True, **keywords})


def no_list(a: int) -> list[int]: ...
def no_list_result(a: list[int]) -> int: ...
def bare_list(a: list) -> list[int]: ...
def union_result(a: list[int]) -> list[int | str]: ...
def only_failures(a: list[int]) -> list[udf.Failure]: ...
def no_arguments() -> list[int]: ...
def array(a: pa.Int64Array) -> list[int]: ...
def fine(a: list[int]) -> list[int]: ...


REFUSED = [
    (no_list, {}, "parameter 'a': a batched function takes and returns a list with one element per row"),
    (no_list_result, {}, "result: a batched function takes and returns a list"),
    (bare_list, {}, "not list"),
    (array, {}, "not Int64Array"),
    (union_result, {}, "a result has one type"),
    (only_failures, {}, "Failure is not a supported type"),
    (no_arguments, {}, "a batched function without arguments needs a CallContext"),
    (fine, {"vectorized": True}, "choose one of them"),
]


@pytest.mark.parametrize(("code", "keywords", "why"), REFUSED)
def test_a_declaration_that_cannot_work_is_refused_with_the_reason(code, keywords, why):
    with pytest.raises(DeclarationError, match="function ") as refused:
        declared(**keywords)(code)
    assert why in str(refused.value)


@given(st.lists(st.sampled_from(["good", "bad", "flaky", "raises"]), min_size=1, max_size=40), st.integers(1, 9))
async def test_every_row_has_the_outcome_that_it_would_have_alone(kinds, most_rows):
    """`raises` fails its whole call with an exception that names no row."""
    seen: dict[int, int] = {}

    @udf.scalar(batched=True, fixed_delay="0.1 ms", batch_rows=most_rows)
    async def f(rows: list[int]) -> list[int | udf.Failure]:
        for row in rows:
            seen[row] = seen.get(row, 0) + 1
        if any(kinds[row] == "raises" for row in rows):
            raise ValueError("somewhere")
        return [
            udf.Failure("bad") if kinds[row] == "bad"
            else udf.Failure("busy", retryable=True) if kinds[row] == "flaky" and seen[row] % 2
            else row
            for row in rows
        ]  # fmt: skip

    async with FunctionEnvironment() as environment:
        result = await environment.run(f, np.arange(len(kinds)))
    for row, kind in enumerate(kinds):
        if kind in ("good", "flaky"):
            assert result.values[row].as_py() == row
        else:
            assert result.errors[row].message == ("bad" if kind == "bad" else "ValueError: somewhere")
