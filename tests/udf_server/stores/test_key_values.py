"""Key-value stores of functions: compare-and-set in memory, in a folder and in a Redis."""

import asyncio
import base64
import contextlib
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from remote_udf.errors import StreamError
from tests.udf_server.lying_redis import lies_of
from tests.udf_server.redis_process import RedisProcess, with_redis
from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_store import Change, KeyValueStore, StoreError
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig
from udf_server.serving.server import Server
from udf_server.stores.entries import sealing
from udf_server.stores.file import FileStore
from udf_server.stores.memory import MemoryStore
from udf_server.stores.opening import KeyValueStores, store_from_url
from udf_server.stores.redis import RedisStore
from udf_server.testing import FunctionEnvironment

KEY = base64.b64encode(bytes(32)).decode()


@pytest.fixture(params=["clear", "sealed"])
async def opened(request, url):
    """Opens stores of functions at the URL, in clear or encrypted."""
    sealed = sealing("K", {"K": KEY}) if request.param == "sealed" else None
    stores, opened = KeyValueStores(url, sealing=sealed), []

    async def open_(function):
        opened.append(await stores.open(f"{request.node.name} {function}"))
        return opened[-1].store

    yield open_
    for each in opened:
        await each.close()


def values(entries):
    return [None if entry is None else entry.value for entry in entries]


async def test_of_two_who_saw_the_same_entry_one_changes_it(opened):
    one, two = await opened("f@1"), await opened("f@1")
    assert await one.compare_and_set([(b"a", None, b"1"), (b"b\x00", None, b"\xff:2")], 60) == [True, True]
    assert await two.compare_and_set([(b"a", None, b"3"), (b"c", None, b"4")], 60) == [False, True]
    (seen,), (same,) = await one.get([b"a"]), await two.get([b"a"])
    assert await two.compare_and_set([(b"a", same, b"5")], 60) == [True]
    assert await one.compare_and_set([(b"a", seen, b"6")], 60) == [False]
    assert values(await one.get([b"a", b"b\x00", b"c", b"d"])) == [b"5", b"\xff:2", b"4", None]


async def test_many_calls_use_a_store_at_once(opened):
    store = await opened("f@1")
    keys = [str(number).encode() for number in range(300)]
    made = await asyncio.gather(*(store.compare_and_set([(key, None, key)], 60) for key in keys))
    assert made == [[True]] * len(keys)
    found = await asyncio.gather(*(store.get([key]) for key in keys))
    assert [values(each) for each in found] == [[key] for key in keys]


async def test_functions_do_not_see_entries_of_others(opened):
    one, other = await opened("f@1"), await opened("g@1")
    await one.compare_and_set([(b"a", None, b"1")], 60)
    assert values(await other.get([b"a"])) == [None]
    assert await other.compare_and_set([(b"a", None, b"2")], 60) == [True]


async def test_an_entry_that_has_expired_counts_as_none(opened):
    store = await opened("f@1")
    await store.compare_and_set([(b"a", None, b"1")], 0.001)
    await asyncio.sleep(0.05)  # the clocks of SQLite and Redis are real
    assert values(await store.get([b"a"])) == [None]
    assert await store.compare_and_set([(b"a", None, b"2")], 60) == [True]
    assert values(await store.get([b"a"])) == [b"2"]


async def test_many_entries_of_some_size(opened):
    store = await opened("f@1")
    changes = [(b"%d" % number, None, bytes(2_000)) for number in range(3_000)]
    assert all(await store.compare_and_set(changes, 60))
    assert values(await store.get([key for key, _, _ in changes])) == [bytes(2_000)] * 3_000


async def test_a_value_that_is_too_large_is_refused(opened):
    store = await opened("f@1")
    with pytest.raises(udf.KeyValueError, match="a value has 1048577 bytes; at most 1048576"):
        await store.compare_and_set([(b"a", None, bytes((1 << 20) + 1))], 60)


@pytest.mark.parametrize("is_file", [False, True])
async def test_a_full_store_refuses_and_keeps_what_it_has(is_file, tmp_path):
    now = [1_000.0]
    clock = lambda: now[0]  # noqa: E731 - a clock of the test
    backend = FileStore(tmp_path, 200_000, clock) if is_file else MemoryStore(200_000, clock)
    await backend.open_own()
    assert await backend.compare_and_set("f", [Change(b"a", None, bytes(90_000))], 60) == [True]
    with pytest.raises(StoreError, match="is full: cache_max_bytes is 200000"):
        await backend.compare_and_set("f", [Change(b"b", None, bytes(150_000))], 60)
    with pytest.raises(StoreError, match="is full"):
        await backend.compare_and_set("f", [Change(b"a", bytes(90_000), bytes(300_000))], 60)
    assert await backend.own("f", [b"a", b"b"]) == [bytes(90_000), None]
    now[0] += 61  # what has expired makes room
    assert await backend.compare_and_set("f", [Change(b"b", None, bytes(150_000))], 60) == [True]
    await backend.close()


async def test_an_entry_under_another_encryption_key_is_an_error_and_not_absent(tmp_path):
    url = f"file://{tmp_path}"
    for key, fails in [(bytes(32), False), (bytes(31) + b"x", True)]:
        sealed = sealing("K", {"K": base64.b64encode(key).decode()})
        opened = await KeyValueStores(url, sealing=sealed).open("f@1")
        if fails:
            with pytest.raises(udf.KeyValueError, match="cannot be decrypted: cache_encryption_variable has another"):
                await opened.store.get([b"a"])
        else:
            await opened.store.compare_and_set([(b"a", None, b"secret")], 60)
        await opened.close()
    assert all(b"secret" not in file.read_bytes() for file in tmp_path.iterdir())


async def test_a_value_of_another_key_or_function_is_an_error(opened):
    one, other = await opened("f@1"), await opened("g@1")
    await one.compare_and_set([(b"a", None, b""), (b"b", None, b"2")], 60)
    assert values(await one.get([b"a", b"b"])) == [b"", b"2"]

    class Swapped(MemoryStore):
        """Has the entries of both keys for each function, in the wrong order."""

        async def own(self, function, keys):
            return (await one._backend.own(one._function, [b"a", b"b"]))[::-1]

    for function in ("f@1", "g@1"):
        store = KeyValueStore(Swapped(1 << 20), function, one._sealing)
        with pytest.raises(udf.KeyValueError, match=r"belongs to another key|cannot be decrypted"):
            await store.get([b"a", b"b"])
    # An entry of another function for the same key.
    (entry,) = await one._backend.own(one._function, [b"b"])
    await other._backend.compare_and_set(other._function, [Change(b"b", None, entry)], 60)
    with pytest.raises(udf.KeyValueError, match="belongs to another key"):
        await other.get([b"b"])


@given(seed=st.integers(0, 1 << 32))
def test_a_redis_that_lies_gives_an_error_or_the_value_of_the_key(lying, seed):
    async def run():
        lying.lie, store = None, None
        while store is None:
            with contextlib.suppress(udf.KeyValueError):  # on a busy machine a good answer may take as long, too
                store = await KeyValueStores(lying.url).open("f@1")
        lying.lie = lies_of(seed)
        keys = [b"%d %d" % (seed, number) for number in range(10)]
        for _ in range(4):
            with contextlib.suppress(udf.KeyValueError):
                found = await store.store.get(keys)
                pairs = list(zip(keys, found, strict=True))
                assert all(each is None or each.value == key for key, each in pairs)
                made = await store.store.compare_and_set([(key, each, key) for key, each in pairs], 60)
                assert all(type(each) is bool for each in made) and len(made) == len(keys)
        lying.lie = None
        await store.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("udf_server.stores.redis.ANSWER_SECONDS", 0.2)
        asyncio.run(asyncio.wait_for(run(), 60))


CHILD = """
import asyncio, sys
from udf_server.stores.opening import KeyValueStores

async def main():
    store = (await KeyValueStores(sys.argv[1]).open("f@1")).store
    won = 0
    for number in range(200):
        won += sum(await store.compare_and_set([(b"%d" % number, None, b"x")], 60))
    print(won)

asyncio.run(main())
"""


@pytest.mark.slow
def test_of_several_processes_one_sets_each_key(tmp_path):
    command = [sys.executable, "-c", CHILD, f"file://{tmp_path}"]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    printed = [child.communicate()[0] for child in children]
    assert sum(int(text) for text in printed) == 200


@with_redis
async def test_a_redis_that_evicts_keys_without_expiry_is_refused():
    process = RedisProcess().start("--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(udf.KeyValueError, match="maxmemory-policy allkeys-lru, so it may evict"):
            await KeyValueStores(process.url).open("f@1")
    finally:
        process.stop()


@with_redis
async def test_a_full_redis_evicts_values_of_the_cache_only():
    process = RedisProcess().start("--maxmemory", "8mb", "--maxmemory-policy", "volatile-lru")
    try:
        opened = await KeyValueStores(process.url).open("f@1")
        await opened.store.compare_and_set([(b"id", None, b"batch-1")], 60)
        client = opened.store._backend._client
        for number in range(40):
            await client.set(b"udf:entry:%d" % number, bytes(1 << 19), px=60_000)
        assert await client.dbsize() < 30
        assert values(await opened.store.get([b"id"])) == [b"batch-1"]
        changes = [(b"%d" % number, None, bytes(1 << 19)) for number in range(40)]
        with pytest.raises(udf.KeyValueError, match="maxmemory"):
            await opened.store.compare_and_set(changes, 60)
        assert values(await opened.store.get([b"id"])) == [b"batch-1"]
        await opened.close()
    finally:
        process.stop()


async def test_a_store_that_cannot_be_used_says_why(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(udf.KeyValueError, match=r"cannot use .*keyvalue\.sqlite3"):
        await KeyValueStores(f"file://{tmp_path}/file").open("f@1")
    with pytest.raises(udf.KeyValueError, match="ConnectionError"):
        await KeyValueStores("redis://127.0.0.1:1/0").open("f@1")


def numbering():
    @udf.scalar(durable_store=True)
    class Numbered:
        """The number under which the server has seen a text first."""

        async def open(self, store: udf.KeyValueStore) -> None:
            self.store = store

        async def eval(self, text: str) -> int:
            while True:
                last, mine = await self.store.get([b"last", text.encode()])
                if mine is not None:
                    return int(mine.value)
                number = int(last.value) + 1 if last is not None else 1
                if (await self.store.compare_and_set([(b"last", last, b"%d" % number)], 60))[0]:
                    await self.store.compare_and_set([(text.encode(), None, b"%d" % number)], 60)

    return Numbered


async def test_an_open_hook_gets_the_store_of_its_function(tmp_path):
    for _ in range(2):  # what the first environment has kept is there in the second
        async with FunctionEnvironment(key_values=f"file://{tmp_path}") as environment:
            result = await environment.run(numbering(), ["a", "b", "a"], buffer_capacity=1)
            assert result.to_pylist() == [1, 2, 1]


async def test_a_hook_without_a_parameter_gets_nothing():
    opened = []

    @udf.scalar
    async def f(x: int) -> int:
        return x

    f.on_open(lambda: opened.append("plain"))

    @f.on_open
    def open_(store: udf.KeyValueStore) -> None:
        opened.append(type(store).__name__)

    async with FunctionEnvironment() as environment:
        await environment.run(f, [1])
    assert opened == ["plain", "KeyValueStore"]


async def test_a_function_with_a_durable_store_does_not_open_in_memory():
    async with FunctionEnvironment() as environment:
        with pytest.raises(StreamError, match=r"numbered@1: open failed: .* keeps what must outlive this process"):
            await environment.run(numbering(), ["a"])


def test_a_server_does_not_start_if_a_store_would_end_with_it(tmp_path):
    registry = Registry([("test", numbering())])
    with pytest.raises(InvalidConfig, match=r"numbered@1 keeps what must outlive .* set it to a folder"):
        Server(ServerConfig(), registry)
    Server(ServerConfig(cache_url=f"file://{tmp_path}"), registry)


async def test_entries_that_earlier_versions_wrote_into_a_folder_are_read(tmp_path):
    with contextlib.closing(sqlite3.connect(tmp_path / "keyvalue.sqlite3")) as db:
        db.executescript("""
            CREATE TABLE entries (function TEXT, key BLOB, value BLOB, expires REAL, PRIMARY KEY (function, key));
            CREATE INDEX entries_expires ON entries (expires);
            INSERT INTO entries VALUES ('f@1', x'61', x'6f6c64', 9e9), ('f@1', x'62', x'6f6c64', 1.0);
            PRAGMA user_version = 1;
        """)
    store = FileStore(tmp_path, 1 << 20)
    await store.open_own()
    assert await store.own("f@1", [b"a", b"b"]) == [b"old", None]
    assert await store.compare_and_set("f@1", [Change(b"a", b"old", b"new")], 60) == [True]
    await store.close()


@with_redis
async def test_entries_that_earlier_versions_wrote_into_a_redis_are_read(module_redis):
    store = RedisStore(module_redis.url)
    await store.open_own()
    await store._client.hset(b"udf:keyvalue:old@1", b"a", b"9999999999999:a:b")
    assert await store.own("old@1", [b"a", b"b"]) == [b"a:b", None]
    assert await store.compare_and_set("old@1", [Change(b"a", b"a:b", b"new")], 60) == [True]
    await store.close()


async def test_outcomes_and_entries_of_a_functions_own_do_not_share_keys_or_room(url):
    store = store_from_url(url, 200_000)
    await store.open()
    await store.open_own()
    await store.clear()
    await store.compare_and_set("both@1", [Change(b"a", None, b"own")], 60)
    for number in range(40):
        await store.put("both@1", [(b"a", b"outcome"), (b"%d" % number, bytes(20_000))], 60)
    assert await store.get("both@1", [b"a"]) == [b"outcome"]
    assert await store.own("both@1", [b"a", b"0"]) == [b"own", None]
    await store.clear()
    assert await store.own("both@1", [b"a"]) == [b"own"]
    await store.close()
