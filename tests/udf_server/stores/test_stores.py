"""What every store does, and what happens if it fails."""

import asyncio
import contextlib
import logging
import sqlite3
import threading

import pytest

import udf_server as udf
from tests.udf_server.file_stores import two_file_stores
from tests.udf_server.outcomes_only import OutcomesOnly
from tests.udf_server.redis_process import RedisProcess, with_redis
from tests.udf_server.talk import eventually
from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_store import StoreError
from udf_server.base.metrics import ServerMetrics
from udf_server.cache import looking_up, store_access
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.stores.entries import EntryCodec
from udf_server.stores.file import FILE, FileStore
from udf_server.stores.leases import LEASE_SECONDS
from udf_server.stores.memory import MemoryStore
from udf_server.stores.opening import store_from_url
from udf_server.testing import FunctionEnvironment


@pytest.fixture
async def opened(url):
    """Opens stores of the URL, which are empty and are closed at the end."""
    stores = []

    async def opened():
        stores.append(store_from_url(url, 1 << 20))
        await stores[-1].open()
        if len(stores) == 1:
            await stores[-1].clear()
        return stores[-1]

    yield opened
    for store in stores:
        await store.close()


async def test_entries_are_kept_by_function_and_key(opened):
    store = await opened()
    await store.put("f@1", [(b"\x00key", b"one"), (b"b", b"\xfftwo")], 60)
    await store.put("g@1", [(b"b", b"three")], 60)
    assert await store.get("f@1", [b"b", b"none", b"\x00key"]) == [b"\xfftwo", None, b"one"]
    assert await store.get("g@1", [b"b", b"\x00key"]) == [b"three", None]
    assert [(each.function, each.entries) for each in await store.stats()] == [("f@1", 2), ("g@1", 1)]
    exported = {(function, key): entry async for function, key, entry in store.export()}
    assert exported == {("f@1", b"\x00key"): b"one", ("f@1", b"b"): b"\xfftwo", ("g@1", b"b"): b"three"}
    assert await store.clear("f@1") == 2
    assert await store.get("f@1", [b"b"]) == [None] and await store.get("g@1", [b"b"]) == [b"three"]
    assert await store.clear() == 1


@pytest.mark.parametrize("seconds", [1e-9, 1e11, 1e16, 1e300])
async def test_entries_are_kept_for_any_time(opened, seconds):
    store = await opened()
    await store.put("f@1", [(b"a", b"one")], seconds)
    await asyncio.sleep(0.01)
    assert await store.get("f@1", [b"a"]) == [None if seconds < 1 else b"one"]


async def test_entries_expire(opened):
    store = await opened()
    await store.put("f@1", [(b"a", b"1")], 0.02)
    await store.put("f@1", [(b"b", b"2")], 60)
    async with asyncio.timeout(20):
        while (found := await store.get("f@1", [b"a", b"b"])) != [None, b"2"]:
            assert found == [b"1", b"2"]


async def test_many_keys_are_got_and_put_at_once(opened):
    store = await opened()
    entries = [(number.to_bytes(16, "big"), str(number).encode()) for number in range(2_500)]
    await store.put("f@1", entries, 60)
    assert await store.get("f@1", [key for key, _ in entries]) == [entry for _, entry in entries]


async def test_other_servers_wait_for_what_one_has_claimed(opened):
    one, two = await opened(), await opened()
    if not one.shared:
        pytest.skip("memory: is not shared")
    assert await one.claim("f@1", [b"a", b"b"], {}) == [True, True]
    assert await two.claim("f@1", [b"b", b"c"], {}) == [False, True]
    assert await one.claim("f@1", [b"a", b"c"], {}) == [True, False]
    await one.put("f@1", [(b"a", b"1")], 60)
    assert await two.claim("f@1", [b"a"], {}) == [False], "there is an entry"
    await one.release("f@1", [b"b", b"c"])
    assert await two.claim("f@1", [b"b"], {}) == [True]
    assert await one.claim("f@1", [b"c"], {}) == [False], "it was not one's to release"


async def test_claims_of_a_server_that_was_lost_end(tmp_path):
    async with two_file_stores(tmp_path) as (one, two, now):
        assert await one.claim("f@1", [b"a"], {}) == [True]
        await one._beats.stop()
        assert await two.claim("f@1", [b"a"], {}) == [False]
        now[0] += LEASE_SECONDS + 1
        assert await two.claim("f@1", [b"a"], {}) == [True]


async def test_claims_of_a_server_that_was_lost_end_although_the_clock_was_set_back(tmp_path):
    async with two_file_stores(tmp_path) as (one, two, now):
        assert await one.claim("f@1", [b"a"], {}) == [True]
        await one._beats.stop()
        now[0] -= 3_600
        assert await two.claim("f@1", [b"a"], {}) == [True], "no lease is that long"


@with_redis
async def test_a_lease_in_redis_that_is_longer_than_leases_are_is_not_believed(module_redis):
    stores = [store_from_url(module_redis.url, 1 << 20) for _ in range(2)]
    for store in stores:
        await store.open()
    one, two = stores
    for number, left in enumerate((3_600_000, None)):
        key = b"lease %d" % number
        assert await one.claim("f@1", [key], {}) == [True]
        assert await two.claim("f@1", [key], {}) == [False]
        await one._beats.stop()
        name = b"udf:server:" + one._beats.name.encode()
        await (two._client.persist(name) if left is None else two._client.pexpire(name, left))
        assert await two.claim("f@1", [key], {}) == [True]
    for store in stores:
        await store.close()


@pytest.mark.parametrize("is_file", [False, True])
async def test_the_least_recently_used_entries_are_evicted(is_file, tmp_path):
    now = [1_000_000.0]
    store = FileStore(tmp_path, 400_000, wall=lambda: now[0]) if is_file else MemoryStore(400_000)
    await store.open()
    for number in range(300):
        await store.put("f@1", [(number.to_bytes(2, "big"), b"x" * 2_000)], 1e6)
        now[0] += 61
        assert await store.get("f@1", [(0).to_bytes(2, "big")]) != [None], "it is used all the time"
    assert await store.get("f@1", [(299).to_bytes(2, "big")]) != [None]
    assert await store.get("f@1", [(1).to_bytes(2, "big")]) == [None]
    assert sum(each.entries for each in await store.stats()) < 250
    await store.close()


@pytest.mark.parametrize(
    "url", ["redis://h", "redis://h/1", "unix:///s?db=1", "rediss://h/0?ssl_cert_reqs=none&health_check_interval=9"]
)
def test_a_url_of_a_redis_may_have_parameters_of_its_connections(url):
    assert store_from_url(url, 1 << 20).shared


def test_a_url_that_is_not_valid_is_refused_without_its_secret():
    for url in (
        "file://host/path",
        "file:relative",
        "http://user:s3cret@host",
        "s3cret",
        "memory:s3cret",
        "file:///folder#s3cret",
        "file:///folder?mode=s3cret",
        "redis://:s3cret@host:port/0",
        "redis://:s3cret@host/database",
        "redis:/host/s3cret",
        "redis://host/0?unknown=s3cret",
        "redis://:s3cret@host/0?decode_responses=true",
    ):
        with pytest.raises(InvalidConfig, match="cache_url") as refused:
            store_from_url(url, 1 << 20)
        assert "s3cret" not in str(refused.value)


@with_redis
async def test_a_wrong_password_is_refused_at_start(module_redis):
    store = store_from_url(module_redis.url.replace("pa55", "s3cret"), 1 << 20)
    with pytest.raises(InvalidConfig, match="refuses the password") as refused:
        await store.open()
    assert "s3cret" not in str(refused.value)


@with_redis
async def test_a_redis_cluster_is_refused_at_start(tmp_path):
    process = RedisProcess()
    # Otherwise its second port is 10,000 higher, which may be none.
    settings = ["--cluster-enabled", "yes", "--cluster-port", str(RedisProcess().port), "--dir", str(tmp_path)]
    try:
        process.start(*settings)
        with pytest.raises(InvalidConfig, match="cluster: use one instance"):
            await store_from_url(process.url, 1 << 20).open()
    finally:
        process.stop()


async def test_a_file_of_another_format_is_refused_at_start(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as db:
        db.execute("PRAGMA user_version = 77")
    with pytest.raises(InvalidConfig, match="has format 77, this version needs 1: use another folder"):
        await FileStore(tmp_path, 1 << 20).open()


def doubling():
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        called.append(a)
        await asyncio.sleep(0.001)
        return a * 2

    return f, called


class Servers:
    """Environments as servers of one store."""

    def __init__(self, url, count):
        self.caches = [OutcomeCache(store_from_url(url, 16 << 20), ServerMetrics()) for _ in range(count)]

    async def __aenter__(self):
        for cache in self.caches:
            await cache.open()
        self.environments = [FunctionEnvironment(cache=cache) for cache in self.caches]
        return self.environments

    async def __aexit__(self, *exception):
        for environment, cache in zip(self.environments, self.caches, strict=True):
            await environment.__aexit__(*exception)
            await cache.close()


async def test_two_servers_of_a_store_call_equal_rows_once(url):
    function, called = doubling()
    rows = [number % 200 for number in range(1_000)]
    async with Servers(url, 1 if url == "memory:" else 2) as environments:
        results = await asyncio.gather(
            *(environment.run(function, rows, batch_rows=100, cache_timeout="20 s") for environment in environments * 2)
        )
    assert all(result.to_pylist() == [2 * row for row in rows] for result in results)
    assert sorted(called) == sorted({*rows})


async def test_look_ups_and_claims_are_bounded_while_rows_wait_for_another_server(tmp_path, monkeypatch):
    monkeypatch.setattr(looking_up, "LOOKED_UP_ROWS", 50)
    function, called = doubling()
    sizes = []
    async with Servers(f"file://{tmp_path}/cache", 2) as environments:
        for environment in environments:
            store = environment._cache.store
            for name in ("get", "claim"):
                monkeypatch.setattr(store, name, sized(getattr(store, name), sizes))
        results = await asyncio.gather(
            *(environment.run(function, range(400), cache_timeout="20 s") for environment in environments)
        )
    assert [result.to_pylist() for result in results] == [[2 * row for row in range(400)]] * 2
    assert sorted(called) == list(range(400))
    assert len(sizes) > 2 * 2 * 8, "rows of one server have waited for the other one"
    assert max(sizes) == 50


def sized(method, sizes):
    def called(function, keys, *others):
        sizes.append(len(keys))
        return method(function, keys, *others)

    return called


@pytest.mark.parametrize("size", [10, 100_000])
async def test_large_values_are_read_beside_the_event_loop(tmp_path, size, monkeypatch):
    threads, read = [], EntryCodec.read

    def noted(*arguments):
        threads.append(threading.current_thread() is threading.main_thread())
        return read(*arguments)

    monkeypatch.setattr(EntryCodec, "read", noted)

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> str:
        return "x" * size

    async with Servers(f"file://{tmp_path}/cache", 1) as (environment,):
        for _ in range(2):
            assert (await environment.run(f, [1])).to_pylist() == ["x" * size]
    assert threads == [size == 10]


async def test_values_survive_a_restart_unless_they_are_in_memory(url):
    function, called = doubling()
    for _ in range(2):
        async with Servers(url, 1) as (environment,):
            assert (await environment.run(function, [7001, 7002])).to_pylist() == [14002, 14004]
    assert len(called) == (4 if url == "memory:" else 2)


async def test_a_row_that_another_server_called_and_lost_is_called(url):
    if url == "memory:":
        pytest.skip("memory: is not shared")

    hung, worked = [], []

    @udf.scalar(cache_ttl="1 h", name="f", version="9")
    async def hangs(a: int) -> int:
        hung.append(a)
        await asyncio.sleep(60)
        return a

    @udf.scalar(cache_ttl="1 h", name="f", version="9")
    async def works(a: int) -> int:
        worked.append(a)
        return -a

    async with Servers(url, 2) as (one, two):
        owner = asyncio.create_task(one.run(hangs, [1, 2]))
        await eventually(lambda: len(hung) == 2)
        waiting = asyncio.create_task(two.run(works, [1, 2, 3]))
        await eventually(lambda: worked == [3])
        assert not waiting.done()
        owner.cancel()
        await asyncio.wait([owner])
        await one._cache.orphans.close()  # its server stops
        assert (await waiting).to_pylist() == [-1, -2, -3]


class Broken(OutcomesOnly):
    """A store that is shared, and fails or hangs."""

    def __init__(self, hangs=False):
        self.hangs = hangs
        self.asked = 0

    async def get(self, function, keys):
        self.asked += 1
        if self.hangs:
            await asyncio.Event().wait()
        raise StoreError("gone")

    async def put(self, function, entries, seconds=0.0):
        await self.get(function, entries)

    claim = release = put


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_store_that_fails_costs_no_row_and_one_log_line(hangs, caplog):
    store, metrics = Broken(hangs), ServerMetrics()
    cache = OutcomeCache(store, metrics)
    function, called = doubling()
    with caplog.at_level(logging.WARNING):
        async with FunctionEnvironment(cache=cache) as environment:
            for row in range(3):
                result = await environment.run(function, [row, -row - 1, row], cache_timeout="50 ms")
                assert result.to_pylist() == [2 * row, -2 * row - 2, 2 * row]
    assert sorted(called) == [-3, -2, -1, 0, 1, 2]
    assert sum("cache is unavailable" in record.message for record in caplog.records) == 1
    assert store.asked <= 3, "a store that has just failed is not asked for a second"
    assert metrics.registry.get_sample_value("udf_cache_errors_total", {"reason": "get"}) >= 1
    await cache.close()


class Faulty(MemoryStore):
    """A shared store with a defect: its first operations raise what no store should raise."""

    shared = True

    def __init__(self, times):
        super().__init__(1 << 20)
        self.times = times

    async def get(self, function, keys):
        self._fail()
        return await super().get(function, keys)

    async def put(self, function, entries, seconds):
        self._fail()
        await super().put(function, entries, seconds)

    def _fail(self):
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("a defect")


@pytest.mark.slow
async def test_a_store_with_a_defect_costs_no_row_and_writes_go_on():
    clock = [0.0]
    function, called = doubling()
    store = Faulty(3)
    cache = OutcomeCache(store, ServerMetrics(), clock=lambda: clock[0])
    async with FunctionEnvironment(cache=cache) as environment:
        for row in range(6):
            clock[0] += 60
            assert (await environment.run(function, [row], cache_timeout="10 s")).to_pylist() == [2 * row]
        await eventually(lambda: len(store) > 0)
    assert called == list(range(6))
    await cache.close()


class Slow(MemoryStore):
    """A shared store that takes its time to answer."""

    shared = True

    async def get(self, function, keys):
        await asyncio.sleep(0.02)
        return await super().get(function, keys)


async def test_a_caller_that_does_not_wait_for_the_store_does_not_keep_others_from_it():
    function, called = doubling()
    cache = OutcomeCache(Slow(1 << 20), ServerMetrics())
    async with FunctionEnvironment(cache=cache) as environment:
        await environment.run(function, [1], cache_timeout="20 s")
        await eventually(lambda: not cache.writes.size)
        for row in range(3):
            await environment.run(function, [100 + row], cache_timeout="1 ms")
            assert (await environment.run(function, [1], cache_timeout="20 s")).to_pylist() == [2]
        assert called == [1, 100, 101, 102]
        await eventually(lambda: not cache.writes.size)
    await cache.close()


@pytest.mark.slow
async def test_look_ups_that_fail_together_are_one_failure():
    """Otherwise a short interruption of a busy server would keep it from its cache for half a minute."""
    clock = [100.0]
    function, _ = doubling()
    store = Faulty(8)
    cache = OutcomeCache(store, ServerMetrics(), clock=lambda: clock[0])
    entered, go = 0, asyncio.Event()
    get = store.get

    async def together(*arguments):
        nonlocal entered
        entered += 1
        await go.wait()
        return await get(*arguments)

    store.get = together
    async with FunctionEnvironment(cache=cache) as environment:
        runs = [asyncio.create_task(environment.run(function, [row], cache_timeout="20 s")) for row in range(8)]
        await eventually(lambda: entered == 8)
        clock[0] += 0.5
        go.set()
        assert [(await run).to_pylist() for run in runs] == [[2 * row] for row in range(8)]
        clock[0] += 1.0
        await environment.run(function, [0], cache_timeout="20 s")
        assert entered == 9
    await cache.close()


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_server_that_stops_does_not_wait_for_a_store_that_fails(hangs, monkeypatch):
    monkeypatch.setattr(store_access, "WRITE_SECONDS", 1e6)  # with it, the test would not end
    cache = OutcomeCache(Broken(hangs), ServerMetrics())
    cache.keep("f@1", [(b"key", b"entry")], 60)
    await cache.close()


@with_redis
async def test_a_redis_that_is_stopped_costs_no_row_and_is_used_again_when_it_is_back():
    process = RedisProcess().start()
    function, called = doubling()
    clock = [0.0]
    cache = OutcomeCache(store_from_url(process.url, 0), ServerMetrics(), clock=lambda: clock[0])
    await cache.open()
    environment = FunctionEnvironment(cache=cache)
    try:
        await environment.run(function, [1])
        process.stop()
        assert (await environment.run(function, [1, 2])).to_pylist() == [2, 4]
        process.start()
        clock[0] += 60
        await environment.run(function, [1, 2], cache_timeout="10 s")
        await eventually(lambda: not cache.writes.size)
        before = len(called)
        assert (await environment.run(function, [1, 2])).to_pylist() == [2, 4]
        assert len(called) == before
    finally:
        await environment.__aexit__(None, None, None)
        await cache.close()
        process.stop()


async def test_entries_of_another_type_are_misses_that_are_replaced(tmp_path):
    function, called = doubling()
    foreign = ["text", "", 5, 1.5, None, b"", "ä" * 40]
    async with Servers(f"file://{tmp_path}", 2) as (one, two):
        store = one._cache.store
        await one.run(function, range(len(foreign)))
        await eventually(lambda: not one._cache.writes.size)
        keys = [key async for _, key, _ in store.export()]
        rows = list(zip(foreign, keys, strict=True))
        await store._outcomes.run(lambda db: db.executemany("UPDATE entries SET entry = ? WHERE key = ?", rows))
        assert len([entry async for _, _, entry in store.export()]) == len(foreign) - 1
        called.clear()
        for _ in range(2):
            result = await two.run(function, range(len(foreign)), cache_timeout="20 s")
            assert result.to_pylist() == [2 * row for row in range(len(foreign))]
        assert sorted(called) == list(range(len(foreign)))


async def test_damaged_and_foreign_entries_are_misses(url):
    function, called = doubling()
    async with Servers(url, 1) as (environment,):
        store = environment._cache.store
        await store.clear()
        await environment.run(function, [1, 2, 3])
        await eventually(lambda: not environment._cache.writes.size)
        entries = [(key, entry) async for _, key, entry in store.export()]
        damaged = [b"", entries[1][1][:-1] + b"\x7f", b"pickle" * 20]
        await store.put("f@1", [(key, bad) for (key, _), bad in zip(entries, damaged, strict=True)], 60)
        assert (await environment.run(function, [1, 2, 3])).to_pylist() == [2, 4, 6]
        assert len(called) == 6
