"""The cache as an author and a caller see it: which rows are called, and what comes back."""

import asyncio
import threading
from typing import NamedTuple

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.effective_options import canonical
from remote_udf.errors import ErrorCode, InvalidOption, StreamError
from remote_udf.options import AGGREGATE_OPTIONS
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.stores.memory import MemoryStore
from udf_server.testing import FunctionEnvironment


class Label(NamedTuple):
    name: str
    score: float


def counted(execution, **options):
    """A function that doubles a number in one of the three executions, and the arguments it was called with."""
    called = []

    if execution == "async":

        async def f(a: int) -> int:
            called.append(a)
            await asyncio.sleep(0.001)
            return a * 2

    elif execution == "def":

        def f(a: int) -> int:
            called.append(a)
            return a * 2

    else:

        def f(a: pa.Int64Array) -> pa.Int64Array:
            called.extend(a.to_pylist())
            return pa.array([None if each is None else each * 2 for each in a.to_pylist()], pa.int64())

    return udf.scalar(vectorized=execution == "vectorized", cache_ttl="1 h", **options)(f), called


EXECUTIONS = pytest.mark.parametrize("execution", ["async", "def", "vectorized"])
MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])


@EXECUTIONS
@MODES
@pytest.mark.parametrize("batch_rows", [1, 7, 1000])
async def test_equal_rows_are_called_once(execution, mode, batch_rows):
    function, called = counted(execution)
    rows = [row % 16 for row in range(64)]
    async with FunctionEnvironment() as environment:
        first = await environment.run(function, rows, batch_rows=batch_rows, output_mode=mode)
        again = await environment.run(function, rows, batch_rows=batch_rows, output_mode=mode)
    assert first.to_pylist() == again.to_pylist() == [2 * row for row in rows]
    assert sorted(called) == list(range(16))
    assert again.counts.calls == 0


@EXECUTIONS
async def test_a_call_without_ttl_keeps_nothing(execution):
    function, called = counted(execution)
    async with FunctionEnvironment() as environment:
        for _ in range(2):
            await environment.run(function, [1, 1], cache_ttl="0 s")
    assert called == [1] * 4


@EXECUTIONS
async def test_refresh_calls_each_distinct_row_and_keeps_the_new_values(execution):
    function, called = counted(execution)
    async with FunctionEnvironment() as environment:
        await environment.run(function, [1, 2])
        await environment.run(function, [1, 1, 2], cache_mode="refresh")
        await environment.run(function, [1, 2])
    assert sorted(called) == [1, 1, 2, 2]


@EXECUTIONS
async def test_null_is_an_argument_like_others_unless_nulls_are_skipped(execution):
    function, called = counted(execution, nulls="skip")
    async with FunctionEnvironment() as environment:
        result = await environment.run(function, [1, None, 1, None])
    assert result.to_pylist() == [2, None, 2, None]
    assert called == [1] and result.counts.rows_skipped == 2


async def test_errors_are_shared_by_equal_rows_of_a_call_and_are_not_kept():
    calls = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        calls.append(a)
        await asyncio.sleep(0.001)
        raise ValueError(f"no {a}")

    async with FunctionEnvironment() as environment:
        first = await environment.run(f, [1, 1, 2])
        assert [first.errors[row].message for row in range(3)] == [
            "ValueError: no 1",
            "ValueError: no 1",
            "ValueError: no 2",
        ]
        assert sorted(calls) == [1, 2]
        await environment.run(f, [1])
        assert sorted(calls) == [1, 1, 2]


async def test_errors_that_are_not_retryable_are_kept_if_the_author_says_so():
    calls = []

    @udf.scalar(cache_ttl="1 h", cache_errors="10 min", fixed_delay="1 ms")
    async def f(a: int) -> int:
        calls.append(a)
        raise udf.RetryableError("later") if a else ValueError("never")

    async with FunctionEnvironment() as environment:
        for _ in range(2):
            result = await environment.run(f, [0, 1])
            assert result.errors[0].message == "ValueError: never" and not result.errors[0].retryable
            assert result.errors[1].code is ErrorCode.FUNCTION_ERROR and result.errors[1].retryable
    assert calls.count(0) == 1 and calls.count(1) == 6


async def test_nan_zero_and_maps_in_another_order_are_equal_arguments():
    calls = []

    @udf.scalar(cache_ttl="1 h", parameters="x double, m map<string,int>", returns="bigint")
    def f(x, m):
        calls.append(x)
        return len(calls)

    maps = pa.array([[("a", 1), ("b", 2)], [("b", 2), ("a", 1)]] * 2, pa.map_(pa.string(), pa.int32()))
    floats = pa.array([float("nan"), -float("nan"), 0.0, -0.0])
    async with FunctionEnvironment() as environment:
        assert (await environment.run(f, floats, maps)).to_pylist() == [1, 1, 2, 2]


async def test_timestamps_of_several_zones_are_compared_as_instants():
    calls = []

    @udf.scalar(cache_ttl="1 h", parameters="at timestamp", returns="bigint")
    def f(at):
        calls.append(at)
        return len(calls)

    utc = pa.array([0, 3_600_000_000], pa.timestamp("us", "UTC"))
    async with FunctionEnvironment() as environment:
        for zone in ("UTC", "Asia/Kolkata", "America/New_York"):
            await environment.run(f, utc.cast(pa.timestamp("us", zone)))
    assert len(calls) == 2


def test_a_cache_of_an_aggregate_or_a_process_table_function_is_refused():
    with pytest.raises(InvalidOption, match="option 'cache-ttl' is for scalar functions"):
        canonical({"cache_ttl": "1 h"}, source="call", known=(AGGREGATE_OPTIONS,))


async def test_an_authors_key_says_which_rows_are_equal():
    called = []

    @udf.scalar(cache_ttl="1 h", cache_key=lambda text, request: text.lower())
    def f(text: str, request: int) -> str:
        called.append(text)
        return text.upper()

    async with FunctionEnvironment() as environment:
        result = await environment.run(f, ["a", "A", "b"], [1, 2, 3])
    assert result.to_pylist() == ["A", "A", "B"] and len(called) == 2


async def test_an_authors_key_that_fails_or_hangs_costs_no_row():
    release = threading.Event()

    def key(a):
        if a == 1:
            raise ValueError
        if a == 2:
            release.wait(10)
        return {a}

    @udf.scalar(cache_ttl="1 h", cache_key=key)
    def f(a: int) -> int:
        return -a

    async with FunctionEnvironment() as environment:
        assert (await environment.run(f, [1, 3])).to_pylist() == [-1, -3]
        assert (await environment.run(f, [2, 3], cache_timeout="20 ms")).to_pylist() == [-2, -3]
        release.set()


async def test_another_key_text_version_or_declaration_never_hits():
    calls = []

    def made(version, returns):
        @udf.scalar(name="f", version=version, returns=returns, cache_ttl="1 h")
        def f(a: int):
            calls.append(version)
            return a

        return f

    one = made("1", "bigint")
    async with FunctionEnvironment() as environment:
        for function, options in [
            (one, {}),
            (one, {"cache_key": "model-2"}),
            (made("2", "bigint"), {}),
            (made("1", "int"), {}),
        ]:
            assert (await environment.run(function, [1], **options)).to_pylist() == [1]
    assert calls == ["1", "1", "2", "1"]


async def test_a_value_of_other_code_never_hits_where_code_is_edited():
    calls = []

    @udf.scalar(cache_ttl="1 h")
    def f(a: int) -> int:
        calls.append(a)
        return a

    store = MemoryStore(1 << 20)
    for code in ("v1", "v2", "v1", ""):
        cache = OutcomeCache(store, ServerMetrics(), code=code)
        async with FunctionEnvironment(cache=cache) as environment:
            assert (await environment.run(f, [1])).to_pylist() == [1]
    assert calls == [1, 1, 1]


async def test_values_of_records_come_back_from_the_cache():
    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> Label | None:
        return None if a % 3 == 0 else Label(f"label {a}", a / 2)

    rows = [row % 10 for row in range(50)]
    async with FunctionEnvironment() as environment:
        once = await environment.run(f, rows)
        again = await environment.run(f, rows)
    assert (
        once.to_pylist()
        == again.to_pylist()
        == [None if a % 3 == 0 else {"name": f"label {a}", "score": a / 2} for a in rows]
    )
    assert again.counts.calls == 0


async def test_a_cache_for_a_function_that_is_not_deterministic_is_refused_unless_its_author_declares_it():
    @udf.scalar(deterministic=False)
    def roll(a: int) -> int:
        return a

    @udf.scalar(deterministic=False, cache_ttl="1 h")
    def draw(a: int) -> int:
        return a

    async with FunctionEnvironment() as environment:
        with pytest.raises(StreamError, match=r"deterministic=False.*only its author"):
            await environment.run(roll, [1], cache_ttl="1 h")
        assert (await environment.run(draw, [1])).to_pylist() == [1]


async def test_arguments_that_are_too_large_are_called_as_without_a_cache():
    calls = []

    @udf.scalar(cache_ttl="1 h")
    def f(a: str) -> int:
        calls.append(len(a))
        return len(a)

    async with FunctionEnvironment() as environment:
        for _ in range(2):
            assert (await environment.run(f, ["x" * (2 << 20), "y"])).to_pylist() == [2 << 20, 1]
    assert calls.count(2 << 20) == 2 and calls.count(1) == 1


async def test_the_context_of_a_row_is_the_same_with_a_cache():
    seen = {}

    @udf.scalar()
    def f(a: int, context: udf.CallContext) -> int:
        seen.setdefault(a, set()).add((context.row, context.idempotency_key))
        return a

    async with FunctionEnvironment() as environment:
        await environment.run(f, [5, 6, 7, 8])
        await environment.run(f, [5, 6], cache_ttl="1 h")
        await environment.run(f, [5, 6, 7, 8], cache_ttl="1 h")
    assert all(len(contexts) == 1 for contexts in seen.values())
