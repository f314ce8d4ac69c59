"""`retry-empty`: a call without a value is repeated, and its empty result stands after the last attempt."""

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from tests.udf_server.limits.test_guards import answers, guards

AGAIN = {"retry_empty": True, "fixed_delay": "1 ms"}


def found_late(times, *, plain=False):
    """A function that finds nothing in its first calls for a row."""
    calls = []

    def look_up(a):
        calls.append(a)
        return a if calls.count(a) > times else None

    if plain:

        @udf.scalar(name="f")
        def f(a: int) -> int | None:
            return look_up(a)
    else:

        @udf.scalar(name="f")
        async def f(a: int) -> int | None:
            return look_up(a)

    return f, calls


@pytest.mark.parametrize("plain", [False, True])
async def test_a_row_that_is_not_found_is_looked_up_again(environment, plain):
    function, calls = found_late(2, plain=plain)
    result = await environment.run(function, [5], **AGAIN)
    assert (result.to_pylist(), calls, result.counts.retries) == ([5], [5, 5, 5], 2)


@pytest.mark.parametrize("plain", [False, True])
async def test_the_empty_result_of_the_last_attempt_stands(environment, plain):
    function, calls = found_late(9, plain=plain)
    result = await environment.run(function, [5, 6], **AGAIN, max_attempts=2)
    assert (result.to_pylist(), sorted(calls), result.errors) == ([None, None], [5, 5, 6, 6], {})


async def test_empty_results_are_not_retried_by_default(environment):
    function, calls = found_late(1)
    assert (await environment.run(function, [5])).to_pylist() == [None]
    assert calls == [5]


@pytest.mark.parametrize(("first", "count"), [([], 2), ([None, None], 2), ([None, 1], 1), ([0], 1)])
async def test_an_array_is_empty_if_it_has_no_value(environment, first, count):
    calls = []

    @udf.scalar(returns=pa.list_(pa.int64()))
    async def f(a: int):
        calls.append(a)
        return first if len(calls) == 1 else [7]

    result = await environment.run(f, [1], **AGAIN)
    assert (result.to_pylist(), len(calls)) == ([first if count == 1 else [7]], count)


async def test_errors_and_empty_results_share_the_attempts(environment):
    calls = []

    @udf.scalar
    async def f(a: int) -> int | None:
        calls.append(a)
        if len(calls) == 1:
            raise udf.RetryableError("not yet")
        return None

    result = await environment.run(f, [5], **AGAIN, max_attempts=3)
    assert (result.to_pylist(), len(calls), result.errors) == ([None], 3, {})


def test_an_empty_result_is_no_failure_for_a_guard(serve):
    function, calls = found_late(3)
    serving = serve(function, guards=guards(**{"breaker-failures": 1}))
    assert answers(serving.target, function, [7], **AGAIN, max_attempts=4) == {0: 7}
    assert calls == [7] * 4


async def test_the_time_of_the_row_bounds_the_attempts(environment):
    function, _ = found_late(9)
    result = await environment.run(function, [5], retry_empty=True, fixed_delay="1 h", timeout="1 min", max_attempts=9)
    (error,) = result.errors.values()
    assert error.code is ErrorCode.TIMEOUT
    assert "the last one failed with EmptyResult: the result is empty" in error.message


@pytest.mark.parametrize("options", [{"vectorized": True}, {"batched": True}])
async def test_a_function_with_many_rows_in_a_call_cannot_have_it(environment, options):
    if options.get("vectorized"):

        @udf.scalar(name="f", **options)
        def f(a: pa.Int64Array) -> pa.Int64Array:
            return a
    else:

        @udf.scalar(name="f", **options)
        def f(a: list[int]) -> list[int]:
            return a

    with pytest.raises(StreamError, match="option 'retry-empty': a call of the function has many rows"):
        await environment.run(f, [1], retry_empty=True)
