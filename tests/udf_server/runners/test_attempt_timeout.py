"""`attempt-timeout`: a call that hangs costs an attempt and not the row."""

import asyncio

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from tests.udf_server.limits.test_guards import answers, guards


def hanging(times, *, vectorized=False, **options):
    """A function whose first calls hang."""
    calls = []

    async def work(value):
        calls.append(value)
        if len(calls) <= times:
            await asyncio.Event().wait()
        return value

    if vectorized:

        @udf.scalar(vectorized=True, **options)
        async def f(a: pa.Int64Array) -> pa.Int64Array:
            return await work(a)
    else:

        @udf.scalar(**options)
        async def f(a: int) -> int:
            return await work(a)

    return f, calls


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("at", ["declaration", "call"])
async def test_a_hung_call_costs_one_attempt(environment, vectorized, at):
    options = {"attempt_timeout": "50 ms", "fixed_delay": "1 ms"}
    function, calls = hanging(2, vectorized=vectorized, **(options if at == "declaration" else {}))
    result = await environment.run(function, [5], **({} if at == "declaration" else options))
    assert (result.to_pylist(), len(calls), result.counts.retries) == ([5], 3, 2)


async def test_a_row_whose_every_attempt_hangs_says_so(environment):
    function, calls = hanging(9)
    result = await environment.run(function, [5], attempt_timeout="20 ms", fixed_delay="1 ms", max_attempts=2)
    (error,) = result.errors.values()
    assert (error.code, error.attempts, error.retryable) == (ErrorCode.FUNCTION_ERROR, 2, True)
    assert error.message == "AttemptTimeout: the attempt had no result within 20 ms"
    assert len(calls) == 2


async def test_the_time_of_the_row_still_bounds_all_attempts(environment):
    function, _ = hanging(9)
    result = await environment.run(
        function, [5], attempt_timeout="30 ms", timeout="100 ms", fixed_delay="1 ms", max_attempts=100
    )
    (error,) = result.errors.values()
    assert error.code is ErrorCode.TIMEOUT
    assert "the last one failed with AttemptTimeout: the attempt had no result within 30 ms" in error.message


@pytest.mark.parametrize("options", [{}, {"attempt_timeout": "30 s"}])
async def test_a_timeout_error_of_the_functions_client_keeps_its_text(environment, options):
    @udf.scalar
    async def f(a: int) -> int:
        raise TimeoutError("the geocoder gave up after 3 s")

    result = await environment.run(f, [5], max_attempts=1, **options)
    (error,) = result.errors.values()
    assert error.message == "TimeoutError: the geocoder gave up after 3 s"


async def test_a_row_that_is_in_time_has_its_value_among_rows_that_hang(environment):
    @udf.scalar
    async def f(a: int) -> int:
        if a % 2:
            await asyncio.Event().wait()
        return a

    result = await environment.run(f, [0, 1, 2, 3], attempt_timeout="20 ms", max_attempts=1)
    assert result.values.to_pylist() == [0, None, 2, None]
    assert sorted(result.errors) == [1, 3]


@pytest.mark.slow
def test_the_wait_for_a_guard_is_not_part_of_an_attempt(serve):
    @udf.scalar(name="f", attempt_timeout="400 ms", max_attempts=1, buffer_capacity=10)
    async def slow(x: int) -> int:
        await asyncio.sleep(0.1)
        return x

    serving = serve(slow, guards=guards(**{"max-concurrency": 1}))
    # The last row waits for a second, and its own call takes a tenth.
    assert answers(serving.target, slow, range(10)) == {row: row for row in range(10)}


def test_a_guarded_call_that_hangs_ends_after_its_time(serve):
    function, calls = hanging(1, name="f", attempt_timeout="50 ms", fixed_delay="1 ms")
    serving = serve(function, guards=guards(**{"max-concurrency": 1}))
    assert answers(serving.target, function, [7]) == {0: 7}
    assert calls == [7, 7]


async def test_a_plain_function_is_refused_with_the_way_out(environment):
    @udf.scalar
    def f(a: int) -> int:
        return a

    with pytest.raises(StreamError, match=r"f@1: option 'attempt-timeout': the function is a plain `def`, .* client"):
        await environment.run(f, [1], attempt_timeout="1 s")


def test_a_default_of_the_server_is_for_functions_that_can_be_cancelled(serve):
    @udf.scalar
    def plain(x: int) -> int:
        return x

    function, calls = hanging(1, name="f", fixed_delay="1 ms")
    serving = serve(plain, function, functions={"*": {"attempt-timeout": "50 ms"}})
    assert answers(serving.target, plain, [7]) == {0: 7}
    assert answers(serving.target, function, [7]) == {0: 7}
    assert calls == [7, 7]


@pytest.mark.parametrize("merged", [{}, {"max_queue_delay": "10 ms"}])
async def test_a_call_for_many_rows_that_hangs_is_made_again_and_not_halved(environment, merged):
    calls: list[list[int]] = []

    @udf.scalar(batched=True, name="f", attempt_timeout="30 ms", fixed_delay="1 ms", max_attempts=3, **merged)
    async def f(a: list[int]) -> list[int]:
        calls.append(a)
        if 13 in a or len(calls) == 1:
            await asyncio.Event().wait()
        return a

    result = await environment.run(f, [1, 2, 3, 4])
    assert result.values.to_pylist() == [1, 2, 3, 4]
    assert calls == [[1, 2, 3, 4]] * 2
    calls.clear()
    result = await environment.run(f, [13, 14, 15, 16])
    assert calls == [[13, 14, 15, 16]] * 3
    assert {error.message for error in result.errors.values()} == {
        "AttemptTimeout: the attempt had no result within 30 ms"
    }
    assert len(result.errors) == 4
