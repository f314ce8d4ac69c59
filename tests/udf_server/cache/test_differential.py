"""With and without a cache, every call has the same outcomes: random functions, rows, options and cuts."""

import asyncio

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from udf_server.testing import FunctionEnvironment


def made(execution, nulls):
    """A function of a number and a text that fails for some rows, in one of the three executions."""

    def value(a, text):
        if a is not None and a % 5 == 3:
            raise ValueError(f"not {a}")
        return None if text is None else f"{a}:{text}"

    if execution == "async":

        async def f(a: int, text: str) -> str | None:
            await asyncio.sleep(0 if a is None else a % 3 / 1000)
            return value(a, text)

    elif execution == "def":

        def f(a: int, text: str) -> str | None:
            return value(a, text)

    else:

        def f(a: pa.Int64Array, text: pa.StringArray) -> pa.StringArray:
            return pa.array(list(map(value, a.to_pylist(), text.to_pylist())), pa.string())

    return udf.scalar(vectorized=execution == "vectorized", nulls=nulls)(f)


def outcomes(result):
    errors = {row: (error.code, error.message, error.attempts) for row, error in result.errors.items()}
    return result.values.to_pylist(), errors, result.counts.rows_skipped


def counted(metrics):
    """The rows of which the metrics of the cache say what it did."""
    samples = [sample for metric in metrics.cache_rows.collect() for sample in metric.samples]
    return sum(sample.value for sample in samples if sample.name.endswith("_total"))


rows = st.lists(st.tuples(st.none() | st.integers(0, 12), st.none() | st.sampled_from(["", "a", "ä"])), max_size=60)


@given(
    rows,
    rows,
    st.sampled_from(["async", "def", "vectorized"]),
    st.sampled_from(["call", "skip"]),
    st.sampled_from(["ordered", "unordered"]),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(["0 s", "1 h"]),
)
def test_outcomes_are_the_same_with_and_without_a_cache(first, second, execution, nulls, mode, cut, other, errors):
    async def compare():
        function = made(execution, nulls)
        cached = {"cache_ttl": "1 h", "cache_errors": errors, "output_mode": mode}
        async with FunctionEnvironment() as environment:

            async def run(table, batch_rows, **options):
                columns = [list(column) for column in zip(*table, strict=True)] or [[], []]
                return outcomes(await environment.run(function, *columns, batch_rows=batch_rows, **options))

            expected = [await run(table, cut, output_mode=mode) for table in (first, second)]
            together = await asyncio.gather(run(first, cut, **cached), run(second, other, **cached))
            assert together == expected
            assert await run(first, other, **cached) == expected[0]
            assert await run(second, other, **cached, cache_mode="refresh") == expected[1]
            called = [len(table) - skipped for table, (_, _, skipped) in zip((first, second), expected, strict=True)]
            assert counted(environment.metrics) == 2 * sum(called)

    asyncio.run(compare())
