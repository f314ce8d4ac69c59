"""A Redis that answers anything: no row fails, and none gets the value of another."""

import asyncio
import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from tests.udf_server.lying_redis import LyingRedis, Raw, lies_of
from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_store import StoreError
from udf_server.base.metrics import ServerMetrics
from udf_server.cache import store_access
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.stores.opening import store_from_url
from udf_server.testing import FunctionEnvironment


@pytest.fixture(scope="module")
def shared_redis():
    redis = LyingRedis()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_access, "STALLED_SECONDS", 0.05)
        yield redis
    redis.close()


@pytest.fixture
def redis(shared_redis):
    shared_redis.lie = None
    shared_redis.texts.clear()
    return shared_redis


def doubling():
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def double(a: int) -> int:
        called.append(a)
        return 2 * a

    return double, called


@contextlib.asynccontextmanager
async def server_of(redis, clock=time.monotonic):
    """An environment whose cache is in the Redis, and its metrics."""
    metrics = ServerMetrics()
    cache = OutcomeCache(store_from_url(redis.url, 1 << 20), metrics, clock=clock)
    await cache.open()
    try:
        async with FunctionEnvironment(cache=cache) as environment:
            yield environment, metrics
    finally:
        await cache.close()


def errors(metrics):
    samples = [each for family in metrics.registry.collect() for each in family.samples]
    return sum(each.value for each in samples if each.name == "udf_cache_errors_total")


@pytest.mark.long
@given(seed=st.integers(0, 1 << 32))
def test_a_redis_that_lies_costs_no_row_and_gives_none_the_value_of_another(shared_redis, seed):
    now = [0.0]
    shared_redis.lie = None
    # Claims that the servers of other examples left would end by the clock, which does not run here.
    shared_redis.texts.clear()

    async def run():
        function, _ = doubling()
        async with server_of(shared_redis, lambda: now[0]) as (environment, _):
            await environment.run(function, range(30), cache_timeout="20 s")
            shared_redis.lie = lies_of(seed)
            for first in (0, 20, 10, 0):
                now[0] += 100.0  # the store is asked again, although it has failed
                rows = range(first, first + 30)
                result = await environment.run(function, rows, timeout="300 ms", cache_timeout="50 ms")
                assert result.to_pylist() == [2 * row for row in rows]
            shared_redis.lie = None

    asyncio.run(asyncio.wait_for(run(), 60))


@pytest.mark.slow
@pytest.mark.parametrize(
    "lie",
    [
        lambda name, answer: [*answer, None] if name == b"MGET" else answer,
        lambda name, answer: answer[:-1] if name == b"MGET" else answer,
        lambda name, answer: [5] * len(answer) if name == b"MGET" else answer,
        lambda name, answer: [1] if name == b"EVALSHA" and isinstance(answer, list) else answer,
        lambda name, answer: [7] * len(answer) if name == b"EVALSHA" and isinstance(answer, list) else answer,
        lambda name, answer: Raw(b"*2000000000\r\n") if name == b"MGET" else answer,
        lambda name, answer: answer[1:] + answer[:1] if name == b"MGET" else answer,
        lambda name, answer: [b"x" * (1 << 21)] * len(answer) if name == b"MGET" else answer,
    ],
    ids=["one more", "one less", "numbers", "claims of another length", "no claims", "announced", "shifted", "large"],
)
async def test_an_answer_that_does_not_fit_is_a_miss_and_an_error_that_is_counted(redis, lie):
    function, called = doubling()
    async with server_of(redis) as (environment, metrics):
        await environment.run(function, range(10), cache_timeout="20 s")
    async with server_of(redis) as (environment, metrics):
        redis.lie = lie
        # Rows that have an entry, and others, so that claims are asked for.
        result = await environment.run(function, range(20), timeout="1 s", cache_timeout="20 s")
        assert result.to_pylist() == [*range(0, 40, 2)]
        assert errors(metrics) > 0
        redis.lie = None
    assert len(called) >= 20


@pytest.mark.parametrize("answer", [b"*2000000000\r\n", b"*1\r\n*2000000000\r\n", b"$2000000000\r\n"])
async def test_a_size_that_no_answer_has_is_refused_when_it_is_announced(redis, answer):
    store = store_from_url(redis.url, 1 << 20)
    await store.open()
    redis.lie = lambda name, true: Raw(answer) if name == b"MGET" else true
    with pytest.raises(StoreError, match="InvalidResponse: an answer has more than"):
        await store.get("f@1", [b"a"])
    redis.lie = None
    await store.close()


async def test_entries_of_other_keys_are_misses_that_are_replaced(redis):
    function, called = doubling()
    async with server_of(redis) as (environment, _):
        await environment.run(function, range(50), cache_timeout="20 s")
    entries = {name: entry for name, entry in redis.texts.items() if name.startswith(b"udf:entry:")}
    assert len(entries) == 50
    names = sorted(entries)
    redis.texts.update(zip(names, [entries[name] for name in names[1:] + names[:1]], strict=True))
    for calls in (50, 0):
        called.clear()
        async with server_of(redis) as (environment, _):
            result = await environment.run(function, range(50), cache_timeout="20 s")
        assert result.to_pylist() == [*range(0, 100, 2)]
        assert len(called) == calls


@pytest.mark.parametrize("answer", [Raw(b"*2000000000\r\n"), 5, b"x" * 10_000, [b"x"], Raw(b"-ERR no\r\n"), None])
async def test_a_server_starts_or_says_why_not_whatever_a_redis_answers_first(redis, answer):
    function, _ = doubling()
    redis.lie = lambda name, true: answer if name in (b"PING", b"INFO") else true
    with contextlib.suppress(InvalidConfig):
        async with server_of(redis) as (environment, _):
            assert (await environment.run(function, [1])).to_pylist() == [2]
    redis.lie = None
