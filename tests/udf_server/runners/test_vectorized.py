"""Vectorized functions: arrays in, an array out; accepted results; halves if a call fails."""

import asyncio

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode


@udf.scalar(vectorized=True)
def double(a: pa.Int64Array) -> pa.Int64Array:
    return pc.multiply(a, 2)


@udf.scalar(vectorized=True)
async def async_double(a: pa.Int64Array) -> pa.Int64Array:
    await asyncio.sleep(0)
    return pc.multiply(a, 2)


both = pytest.mark.parametrize("function", [double, async_double], ids=["threads", "async"])


def calling(code, like, **options):
    """A function that calls the code, on threads or on an event loop as another function does."""

    def on_thread(a: pa.Int64Array) -> pa.Int64Array:
        return code(a)

    async def on_loop(a: pa.Int64Array) -> pa.Int64Array:
        return code(a)

    return udf.scalar(vectorized=True, **options)(on_loop if like.is_async else on_thread)


@both
@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
async def test_arrays_in_an_array_out(environment, function, output_mode):
    result = await environment.run(function, [1, None, 3, 4, 5], batch_rows=2, output_mode=output_mode)
    assert result.to_pylist() == [2, None, 6, 8, 10]


async def test_a_call_gets_no_more_rows_than_batch_rows(environment):
    sizes = []

    @udf.scalar(vectorized=True)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        sizes.append(len(a))
        return a

    result = await environment.run(f, range(10), **{"batch-rows": 4})
    assert (result.to_pylist(), sizes) == (list(range(10)), [4, 4, 2])


async def test_buffer_capacity_bounds_the_rows_of_a_call(environment):
    sizes = []

    @udf.scalar(vectorized=True)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        sizes.append(len(a))
        return a

    await environment.run(f, range(10), buffer_capacity=3)
    assert max(sizes) == 3


RESULTS = [
    ("an array", lambda a: a),
    ("a wider array", lambda a: a.cast(pa.int32())),
    ("a chunked array", lambda a: pa.chunked_array([a.slice(0, 1), a.slice(1)])),
    ("a numpy array", lambda a: a.to_numpy()),
    ("a list", lambda a: a.to_pylist()),
    ("a tuple", lambda a: tuple(a.to_pylist())),
    ("a dictionary array", lambda a: a.dictionary_encode()),
    ("a decimal array without fraction", lambda a: a.cast(pa.decimal128(20, 0)).to_pylist() and a),
]


@pytest.mark.parametrize(("what", "make"), RESULTS, ids=[what for what, _ in RESULTS])
async def test_what_means_the_same_values_is_taken_for_an_array(environment, what, make):
    @udf.scalar(vectorized=True)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        return make(a)

    assert (await environment.run(f, [1, 2, 3])).to_pylist() == [1, 2, 3]


WRONG = [
    ("one value", lambda a: 5, ErrorCode.RESULT_TYPE, "3 values, one per row, got a value of type int"),
    ("nothing", lambda a: None, ErrorCode.RESULT_TYPE, "one per row, got a value of type NoneType"),
    ("text", lambda a: "abc", ErrorCode.RESULT_TYPE, "got a value of type str"),
    ("a dict", lambda a: {}, ErrorCode.RESULT_TYPE, "got a value of type dict"),
    ("too few", lambda a: a.slice(1), ErrorCode.RESULT_LENGTH, "expected 3 values, one per row, got 2"),
    ("too many", lambda a: pa.concat_arrays([a, a]), ErrorCode.RESULT_LENGTH, "expected 3 values, one per row, got 6"),
    ("other values", lambda a: a.cast(pa.string()), ErrorCode.RESULT_TYPE, "expected bigint, got a value of type str"),
    ("floats", lambda a: a.cast(pa.float64()), ErrorCode.RESULT_TYPE, "expected bigint, got a value of type float"),
    ("a 0-d array", lambda a: np.array(5), ErrorCode.RESULT_TYPE, "expected an array of bigint"),
]


@both
@pytest.mark.parametrize(("what", "make", "code", "why"), WRONG, ids=[row[0] for row in WRONG])
async def test_a_result_that_is_no_value_per_row_is_an_error_of_every_row(environment, function, what, make, code, why):
    f = calling(make, like=function)
    result = await environment.run(f, [1, 2, 3])
    assert {error.code for error in result.errors.values()} == {code}
    assert all(why in error.message for error in result.errors.values())
    assert result.values.to_pylist() == [None] * 3


async def test_a_value_that_does_not_fit_costs_its_own_row_only(environment):
    @udf.scalar(vectorized=True)
    def f(a: pa.Int64Array) -> pa.Int8Array:
        return a

    result = await environment.run(f, [1, 1000, 3])
    assert result.values.to_pylist() == [1, None, 3]
    assert result.errors[1].code is ErrorCode.RESULT_TYPE


async def test_lists_are_taken_value_by_value(environment):
    @udf.scalar(vectorized=True)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        return [1, "two", None]

    result = await environment.run(f, [1, 2, 3])
    assert result.values.to_pylist() == [1, None, None]
    assert result.errors.keys() == {1}


@both
@pytest.mark.parametrize("bad", [{0}, {7}, {0, 15}, {3, 4, 5}, set(range(16)), set()])
async def test_a_failing_batch_is_called_on_halves_until_the_bad_rows_stand_alone(environment, function, bad):
    sizes = []

    def check(a):
        sizes.append(len(a))
        for value in a.to_pylist():
            if value in bad:
                raise ValueError(f"bad row {value}")
        return a

    f = calling(check, like=function)
    result = await environment.run(f, range(16))
    assert result.values.to_pylist() == [None if value in bad else value for value in range(16)]
    # Each row gets its own error.
    assert {row: error.message for row, error in result.errors.items()} == {
        row: f"ValueError: bad row {row}" for row in bad
    }
    assert len(sizes) <= 1 + 2 * 4 * max(len(bad), 0)


@both
async def test_a_retryable_failure_is_retried_whole_before_it_is_halved(environment, function):
    sizes = []

    def once(a):
        sizes.append(len(a))
        if len(sizes) == 1:
            raise udf.RetryableError("busy")
        return a

    f = calling(once, like=function, fixed_delay="1 ms")
    result = await environment.run(f, range(8))
    assert (result.to_pylist(), sizes, result.counts.retries) == (list(range(8)), [8, 8], 1)


async def test_a_bad_row_alone_gets_all_its_attempts(environment):
    @udf.scalar(vectorized=True, fixed_delay="1 ms", max_attempts=3)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        if 2 in a.to_pylist():
            raise udf.RetryableError("always")
        return a

    result = await environment.run(f, range(4))
    assert result.values.to_pylist() == [0, 1, None, 3]
    assert (result.errors[2].attempts, result.errors[2].retryable) == (3, True)


async def test_several_batches_of_an_async_function_are_in_flight_together(environment):
    arrived = []
    everyone = asyncio.Event

    @udf.scalar(vectorized=True)
    async def f(a: pa.Int64Array) -> pa.Int64Array:
        nonlocal everyone
        if not arrived:
            everyone = asyncio.Event()
        arrived.append(a)
        if len(arrived) == 4:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), 20)
        return a

    result = await environment.run(f, range(4), batch_rows=1)
    assert result.to_pylist() == [0, 1, 2, 3]


async def test_batches_of_a_plain_function_run_one_at_a_time_unless_more_is_asked_for(environment):
    running, most = 0, 0

    @udf.scalar(vectorized=True)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1
        return a

    await environment.run(f, range(50), batch_rows=1)
    assert most == 1


@pytest.mark.parametrize("wrapped", [np.asarray, pa.array], ids=["numpy", "arrow"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "async"])
@pytest.mark.parametrize("halved", [False, True], ids=["capacity", "halved"])
async def test_values_are_what_they_were_when_they_were_returned_though_a_later_call_changes_the_array(
    environment, wrapped, asynchronous, halved
):
    buffer = np.zeros(64, np.int64)

    def work(a):
        if halved and len(a) > 4:
            raise ValueError("too many")
        buffer[: len(a)] = a.to_numpy()
        return wrapped(buffer[: len(a)])

    def plain(a: pa.Int64Array):
        return work(a)

    async def waiting(a: pa.Int64Array):
        return work(a)

    function = udf.scalar(waiting if asynchronous else plain, vectorized=True, returns="bigint")
    options = {} if halved else {"buffer_capacity": 4}
    result = await environment.run(function, range(50), **options)
    assert result.to_pylist() == list(range(50))
