"""The outcome of a row does not depend on its neighbours, on how the input was cut, or on the output mode."""

import asyncio

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.outcomes import RowError
from tests.properties import examples
from udf_server.testing import FunctionEnvironment

OPTIONS = {"nulls": "skip", "fixed_delay": "1 ms", "max_attempts": 2}


def outcome(a):
    """Derives the outcome of a row from its value."""
    if a % 7 == 1:
        raise ValueError(f"bad {a}")
    if a % 7 == 2:
        raise udf.RetryableError(f"busy {a}")
    if a % 7 == 3:
        return f"{a}"
    if a % 7 == 4:
        return None
    if a % 7 == 5:
        return 2**70
    return a * 2


@udf.scalar(**OPTIONS)
async def by_coroutine(a: int) -> int:
    await asyncio.sleep(0.001 * (a % 3))
    return outcome(a)


@udf.scalar(**OPTIONS)
def by_thread(a: int) -> int:
    return outcome(a)


@udf.scalar(vectorized=True, **OPTIONS)
def by_array(a: pa.Int64Array) -> pa.Int64Array:
    return [outcome(value) for value in a.to_pylist()]


@udf.scalar(vectorized=True, **OPTIONS)
async def by_async_array(a: pa.Int64Array) -> pa.Int64Array:
    await asyncio.sleep(0)
    return [outcome(value) for value in a.to_pylist()]


def facts(error: RowError):
    return (error.code, error.message, error.attempts, error.retryable)


async def outcomes(function, values, **options):
    async with FunctionEnvironment() as environment:
        result = await environment.run(function, pa.array(values, pa.int64()), **options)
    counts = result.counts
    assert counts.rows_in == counts.rows_ok + counts.rows_failed + counts.rows_skipped == len(values)
    return [
        facts(result.errors[row]) if row in result.errors else value
        for row, value in enumerate(result.values.to_pylist())
    ]


inputs = st.lists(st.none() | st.integers(0, 50), min_size=1, max_size=30)
cuts = st.fixed_dictionaries(
    {
        "batch_rows": st.integers(1, 31),
        "batch-rows": st.integers(1, 31),
        "buffer_capacity": st.none() | st.integers(1, 40),
        "output_mode": st.sampled_from(["ordered", "unordered"]),
    }
)


@pytest.mark.parametrize("function", [by_coroutine, by_thread, by_array, by_async_array], ids=lambda f: f.spec.name)
def test_the_outcome_of_a_row_is_its_own(function):
    alone = {}

    async def check(values, cut):
        for value in set(values) - alone.keys():
            [alone[value]] = await outcomes(function, [value])
        assert await outcomes(function, values, **cut) == [alone[value] for value in values]

    @examples(30)
    @given(inputs, cuts)
    def run(values, cut):
        asyncio.run(check(values, cut))

    run()


def test_every_execution_gives_the_same_outcomes():
    values = [None, *range(21)]
    functions = [by_coroutine, by_thread, by_array, by_async_array]
    first, *others = [asyncio.run(outcomes(function, values)) for function in functions]
    assert all(other == first for other in others)
