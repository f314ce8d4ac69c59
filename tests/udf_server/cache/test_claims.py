"""Claims on rows of a shared store end with what they were taken for."""

import asyncio
import base64
import contextlib
import logging
import time

import pytest

import udf_server as udf
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from tests.udf_server.file_stores import two_file_stores
from tests.udf_server.outcomes_only import OutcomesOnly
from tests.udf_server.redis_process import WITH_REDIS, RedisProcess
from tests.udf_server.talk import Talk, batch, eventually
from udf_server.base.key_value_store import StoreError
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.stores import leases
from udf_server.stores.entries import sealing
from udf_server.stores.file import FileStore
from udf_server.stores.leases import LEASE_SECONDS, Beats
from udf_server.stores.opening import store_from_url
from udf_server.testing import FunctionEnvironment


@pytest.fixture(params=["file", pytest.param("redis", marks=WITH_REDIS)])
def url(request, tmp_path):
    if request.param == "file":
        yield f"file://{tmp_path}/cache"
        return
    process = RedisProcess().start()
    yield process.url
    process.stop()


class Slow(OutcomesOnly):
    """A shared store that grants claims when the test lets it."""

    def __init__(self):
        self.entries, self.claims, self.granted, self.asked, self.gate = {}, set(), 0, 0, asyncio.Event()

    async def get(self, function, keys):
        return [self.entries.get(key) for key in keys]

    async def put(self, function, entries, seconds):
        self.entries |= dict(entries)
        self.claims -= {key for key, _ in entries}

    async def claim(self, function, keys, useless):
        self.asked += 1
        await self.gate.wait()
        self.claims |= {*keys}
        self.granted += len(keys)
        return [True] * len(keys)

    async def release(self, function, keys):
        self.claims -= {*keys}


async def test_claims_that_are_granted_after_the_stream_has_ended_are_released():
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        called.append(a)
        return a

    cache = OutcomeCache(store := Slow(), ServerMetrics())
    async with Talk(f, cache=cache) as talk:
        await talk.open(options={"cache-timeout": "20 s"})
        talk.send(batch(0, 0, [1, 2, 3]))
        await eventually(lambda: store.asked == 1)
        talk.reads.clear()  # what runs beside the stream ends after its last message
        before = talk.writes
        talk.send(encode(pb.ExecuteRequest(cancel=pb.Cancel())))
        await eventually(lambda: talk.writes > before)
        store.gate.set()
        await eventually(lambda: store.granted == 3)
        await eventually(lambda: not store.claims)
        talk.reads.set()
        await talk.ended()
    assert called == []
    await cache.close()
    await talk.host.close()


class Away(Slow):
    """A shared store that can be away."""

    def __init__(self):
        super().__init__()
        self.away, self.refused = "", []
        self.gate.set()

    async def get(self, function, keys):
        self._refuse("get")
        return await super().get(function, keys)

    async def claim(self, function, keys, useless):
        self._refuse("claim")
        return await super().claim(function, keys, useless)

    def _refuse(self, operation):
        if operation in self.away:
            self.refused.append(operation)
            raise StoreError("away")


@pytest.fixture
async def away():
    """A store that can be away, the rows for which a function was called, and a way to call it."""
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        called.append(a)
        return 2 * a

    cache = OutcomeCache(store := Away(), ServerMetrics())
    async with FunctionEnvironment(cache=cache) as environment:
        await environment.run(f, [1, 2])
        await eventually(lambda: len(store.entries) == 2)
        called.clear()
        yield store, called, lambda rows, **options: environment.run(f, rows, **options)
    await cache.close()


@pytest.mark.slow
@pytest.mark.parametrize("operations", ["get", "claim"])
async def test_rows_wait_while_a_required_cache_is_away_and_nothing_is_paid_twice(away, operations):
    store, called, run = away
    store.away = operations
    running = asyncio.create_task(run([1, 2, 3, 3], cache_required=True))
    await eventually(lambda: store.refused)
    assert called == [] and not running.done()
    store.away = ""
    assert (await running).to_pylist() == [2, 4, 6, 6]
    assert called == [3]


@pytest.mark.parametrize("operations", ["get", "claim"])
async def test_rows_fail_if_a_required_cache_is_away_for_too_long(away, operations):
    store, called, run = away
    store.away = operations
    failed = await run([3, 4, 3], cache_required=True, timeout="300 ms")
    assert {error.code for error in failed.errors.values()} == {"CACHE_UNAVAILABLE"} and len(failed.errors) == 3
    assert called == [] and all(error.retryable for error in failed.errors.values())
    assert (await run([1, 3], timeout="20 s")).to_pylist() == [2, 6]
    assert called == ([3] if operations == "claim" else [1, 3])


async def test_a_claim_that_was_lost_does_not_return_when_its_server_does(tmp_path):
    async with two_file_stores(tmp_path) as (one, two, now):
        assert await one.claim("f@1", [b"a"], {}) == [True]
        await one._beats.stop()  # it cannot reach the store, and what it does not call any more is not released
        now[0] += LEASE_SECONDS + 1
        assert await one.claim("f@1", [b"b"], {}) == [True]
        assert await two.claim("f@1", [b"a", b"b"], {}) == [True, False]


async def test_a_server_has_another_name_after_its_lease_has_ended():
    now, names, fails = [0.0], [], False

    async def beat(name):
        if fails:
            raise StoreError("gone")
        names.append(name)

    beats = Beats(beat, lambda: now[0])
    before = beats.name
    beats.start()
    await eventually(lambda: names)
    now[0] += LEASE_SECONDS - 1
    assert beats.name == before == names[0], "its lease has not ended"
    await beats.stop()
    beats, names, fails = Beats(beat, lambda: now[0]), [], True
    before = beats.name
    beats.start()
    await asyncio.sleep(0)
    now[0] += LEASE_SECONDS
    assert beats.name != before and beats.name == beats.name
    await beats.stop()


async def test_a_lease_is_renewed_after_an_error_of_any_class(monkeypatch):
    """redis-py raises AttributeError, for example, if what answers is no Redis."""
    monkeypatch.setattr(leases, "BEAT_SECONDS", 0.0)
    tried = []

    async def beat(name):
        tried.append(name)
        if len(tried) == 1:
            raise AttributeError("'bool' object has no attribute 'decode'")

    beats = Beats(beat)
    beats.start()
    await eventually(lambda: len(tried) > 1)
    await beats.stop()


async def test_a_cache_that_was_closed_writes_nothing_more():
    cache = OutcomeCache(store := Slow(), ServerMetrics())
    await cache.close()
    cache.keep("f@1", [(b"a", b"entry")], 60)
    cache.release("f@1", [b"b"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not store.entries and not cache.writes.size


@pytest.mark.parametrize("why", ["too old", "damaged", "of another key"])
async def test_an_entry_that_cannot_be_used_is_replaced_by_one_call_of_all_servers(url, why):
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        called.append(a)
        await asyncio.sleep(0.001)
        return 2 * a

    rows, later = list(range(300)), [0.0]
    sealed = sealing("KEY", {"KEY": base64.b64encode(bytes(32)).decode()}) if why == "of another key" else None
    stores = [store_from_url(url, 16 << 20) for _ in range(3)]
    caches = [
        OutcomeCache(store, ServerMetrics(), sealing=each, wall=lambda: time.time() + later[0])
        for store, each in zip(stores, [None, sealed, sealed], strict=True)
    ]
    for store in stores:
        await store.open()
    await stores[0].clear()
    async with contextlib.AsyncExitStack() as stack:
        before, *servers = [await stack.enter_async_context(FunctionEnvironment(cache=cache)) for cache in caches]
        await before.run(f, rows)
        await eventually(lambda: not caches[0].writes.size)
        later[0] = 7_200.0 if why == "too old" else 0.0
        if why == "damaged":
            await stores[0].put("f@1", [(key, b"damaged") async for _, key, _ in stores[0].export()], 3_600)
        called.clear()
        results = await asyncio.gather(
            *(server.run(f, rows, cache_timeout="20 s", batch_rows=100) for server in servers * 2)
        )
        assert [result.to_pylist() for result in results] == [[2 * row for row in rows]] * 4
        assert sorted(called) == rows
    for cache in caches:
        await cache.close()


async def filled(store):
    """Leave no room in a store."""
    if isinstance(store, FileStore):
        await store._outcomes.run(lambda db: db.execute("PRAGMA max_page_count = 1"))
    else:
        await store._client.config_set("maxmemory", "1")


async def test_values_of_a_store_that_is_full_are_used(url, caplog):
    """Their rows were paid for, whatever else the store refuses."""
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> str:
        called.append(a)
        return f"{a} " * 500

    store, metrics = store_from_url(url, 16 << 20), ServerMetrics()
    cache = OutcomeCache(store, metrics)
    await cache.open()
    rows = list(range(100))
    with caplog.at_level(logging.INFO):
        async with FunctionEnvironment(cache=cache) as environment:
            await environment.run(f, rows)
            await eventually(lambda: not cache.writes.size)
            await filled(store)
            for number in range(1, 4):
                await environment.run(f, [100 * number + row for row in rows])
                await eventually(lambda: metrics.registry.get_sample_value(*errors("put")))
                called.clear()
                result = await environment.run(f, rows, cache_timeout="20 s")
                assert result.to_pylist() == [f"{a} " * 500 for a in rows]
                assert called == []
    lines = [record.message for record in caplog.records if record.message.startswith("cache")]
    assert lines == ["cache is unavailable; nothing new is kept, and rows may be called by several servers"]
    await cache.close()


def errors(reason):
    return "udf_cache_errors_total", {"reason": reason}


async def test_an_entry_that_is_replaced_and_not_written_yet_is_used(tmp_path):
    called, later = [], [0.0]

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        called.append(a)
        return a

    store = FileStore(tmp_path, 1 << 20)
    cache = OutcomeCache(store, ServerMetrics(), wall=lambda: time.time() + later[0])
    await cache.open()
    async with FunctionEnvironment(cache=cache) as environment:
        await environment.run(f, [1, 2])
        await eventually(lambda: not cache.writes.size)
        later[0], put, hangs = 7_200.0, store.put, asyncio.Event()

        async def put_later(*arguments):
            await hangs.wait()
            await put(*arguments)

        store.put = put_later
        for _ in range(3):
            assert (await environment.run(f, [1, 2], cache_timeout="20 s")).to_pylist() == [1, 2]
        assert sorted(called) == [1, 1, 2, 2]
        hangs.set()
    await cache.close()


class Elsewhere(Slow):
    """The same, but another server calls all keys, without an end."""

    async def claim(self, function, keys, useless):
        return [False] * len(keys)


async def test_a_row_that_cannot_wait_for_another_server_has_the_row_called_that_it_waits_for():
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        called.append(a)
        return 2 * a

    cache = OutcomeCache(Elsewhere(), ServerMetrics())
    async with FunctionEnvironment(cache=cache) as environment:
        patient = asyncio.create_task(environment.run(f, [1, 2], timeout="60 s"))
        await eventually(lambda: len(cache.flights) == 2)
        hasty = await asyncio.wait_for(environment.run(f, [2], timeout="200 ms"), 20)
        assert hasty.to_pylist() == [4] and called == [2]
        assert not patient.done()
        impatient = await asyncio.wait_for(environment.run(f, [1], timeout="200 ms"), 20)
        assert impatient.to_pylist() == [2]
        assert (await asyncio.wait_for(patient, 20)).to_pylist() == [2, 4] and called == [2, 1]
    await cache.close()
