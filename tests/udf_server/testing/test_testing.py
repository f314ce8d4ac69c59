"""The test kit: FunctionEnvironment and FaultInjector."""

import time

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, InvalidOption, StreamError
from udf_server.testing import FaultInjector, FunctionEnvironment


@udf.scalar(fixed_delay="1 ms")
async def same(a: int) -> int:
    return a


@udf.scalar(fixed_delay="1 ms")
def thread_same(a: int) -> int:
    return a


@pytest.mark.parametrize(
    "column",
    [[1, 2], (1, 2), range(1, 3), pa.array([1, 2]), pa.chunked_array([[1], [2]])],
    ids=lambda column: type(column).__name__,
)
async def test_arguments_are_anything_with_values(environment, column):
    assert (await environment.run(same, column)).to_pylist() == [1, 2]


async def test_a_failed_row_fails_the_test_that_takes_values_for_granted(environment):
    @udf.scalar
    def f(a: int) -> int:
        return 1 // a

    result = await environment.run(f, [1, 0])
    with pytest.raises(AssertionError, match="row 1: FUNCTION_ERROR: ZeroDivisionError"):
        result.to_pylist()


async def test_arguments_have_one_length(environment):
    @udf.scalar
    def f(a: int, b: int) -> int:
        return a

    with pytest.raises(ValueError, match=r"arguments of different lengths: \[1, 2\]"):
        await environment.run(f, [1], [1, 2])


async def test_options_are_those_of_a_call(environment):
    with pytest.raises(InvalidOption, match="unknown option 'time_out'"):
        await environment.run(same, [1], time_out="1 s")


async def test_what_a_server_refuses_is_raised(environment):
    with pytest.raises(StreamError) as raised:
        await environment.run(same, ["text"])
    assert raised.value.code is ErrorCode.ARGUMENT_TYPE


async def test_maps_come_back_as_dictionaries(environment):
    @udf.scalar
    def f(a: int) -> dict[str, int]:
        return {"a": a}

    assert (await environment.run(f, [1])).to_pylist() == [{"a": 1}]


both = pytest.mark.parametrize("function", [same, thread_same], ids=["async", "threads"])


@both
async def test_injected_errors_are_retried_as_real_ones(environment, function):
    faults = FaultInjector(7, error_rate=0.3)
    result = await environment.run(faults.wrap(function), range(200), max_attempts=50)
    assert result.to_pylist() == list(range(200))
    assert result.counts.retries == faults.injected > 20


@both
async def test_faults_come_at_their_rate(environment, function):
    faults = FaultInjector(7, error_rate=0.25)
    result = await environment.run(faults.wrap(function), range(2000), retry_strategy="none")
    assert 400 < len(result.errors) == faults.injected < 600


async def test_one_seed_gives_the_same_faults(environment):
    async def failed(seed):
        faults = FaultInjector(seed, error_rate=0.5)
        return sorted((await environment.run(faults.wrap(same), range(50), retry_strategy="none")).errors)

    assert await failed(1) == await failed(1) != await failed(2)


@both
async def test_a_hang_runs_into_the_deadline(environment, function):
    faults = FaultInjector(1, hang_rate=1.0, hang_seconds=0.5)
    result = await environment.run(faults.wrap(function), [1], timeout="50 ms")
    assert result.errors[0].code is ErrorCode.TIMEOUT


@both
async def test_latency_is_added(environment, function):
    faults = FaultInjector(1, latency=0.05)
    began = time.monotonic()
    assert (await environment.run(faults.wrap(function), [1])).to_pylist() == [1]
    assert time.monotonic() - began >= 0.05


async def test_the_wrapped_function_is_left_alone(environment):
    FaultInjector(1, error_rate=1.0).wrap(same)
    assert (await environment.run(same, [1])).to_pylist() == [1]


async def test_vectorized_functions_have_faults_too(environment):
    @udf.scalar(vectorized=True, fixed_delay="1 ms")
    def f(a: pa.Int64Array) -> pa.Int64Array:
        return a

    faults = FaultInjector(3, error_rate=0.4)
    result = await environment.run(faults.wrap(f), range(20), batch_rows=1, max_attempts=50)
    assert result.to_pylist() == list(range(20))
    assert faults.injected > 0


async def test_the_seed_of_the_environment_decides_the_jitter():
    async def retries(seed):
        async with FunctionEnvironment(seed=seed) as environment:
            return environment._random.random()

    assert await retries(5) == await retries(5) != await retries(6)
