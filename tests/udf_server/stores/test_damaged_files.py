"""A folder whose file is damaged, full, or has what no server has written: the server runs without it, and says so."""

import asyncio
import contextlib
import logging
import os
import sqlite3
import time

import pytest

import udf_server as udf
from tests.udf_server.file_stores import two_file_stores
from udf_server.base.key_value_store import LARGEST_ENTRY, StoreError
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.registry import Registry
from udf_server.serving.config import ServerConfig
from udf_server.serving.server import Server
from udf_server.stores.file import FILE, FileStore
from udf_server.testing import FunctionEnvironment


def tripling():
    called = []

    @udf.scalar(cache_ttl="1 h")
    async def triple(a: int) -> int:
        called.append(a)
        return 3 * a

    return triple, called


async def served(folder, rows, clock=time.monotonic):
    """Runs a function behind a cache in the folder. Returns how often it was called."""
    function, called = tripling()
    cache = OutcomeCache(FileStore(folder, 1 << 20), ServerMetrics(), clock=clock)
    await cache.open()
    async with FunctionEnvironment(cache=cache) as environment:
        result = await environment.run(function, rows, cache_timeout="20 s")
        assert result.to_pylist() == [3 * row for row in rows]
    await cache.close()
    return len(called)


@pytest.mark.parametrize("kept", [10, 5_000, 0.9, "other"])
async def test_a_server_starts_with_a_cache_file_that_was_truncated_or_overwritten(tmp_path, kept, caplog):
    path = tmp_path / FILE
    await served(tmp_path, range(500))
    if kept == "other":
        path.write_bytes(b"not a database at all" * 500)
    else:
        os.truncate(path, kept if isinstance(kept, int) else int(path.stat().st_size * kept))
    server = Server(ServerConfig(port=0, metrics_port=0, cache_url=f"file://{tmp_path}"), Registry([]))
    with caplog.at_level(logging.WARNING):
        await server.start()
        await server.stop(drain_seconds=0.0)
        assert await served(tmp_path, range(500)) > 0
    assert any(record.message.startswith("cache is unavailable") for record in caplog.records)


async def test_a_server_starts_without_its_cache_if_the_disk_is_full_and_uses_it_later(tmp_path, monkeypatch, caplog):
    function, called = tripling()
    now = [0.0]
    cache = OutcomeCache(FileStore(tmp_path / "new", 1 << 20), ServerMetrics(), clock=lambda: now[0])
    with monkeypatch.context() as full:

        def mkdir(*arguments, **named):
            raise OSError(28, "No space left on device")

        full.setattr("pathlib.Path.mkdir", mkdir)
        with caplog.at_level(logging.WARNING):
            await cache.open()
        assert [record.message for record in caplog.records] == [
            "cache is unavailable; functions are called without it"
        ]
        assert "No space left on device" in caplog.records[0].why
    async with FunctionEnvironment(cache=cache) as environment:
        for _ in range(2):
            now[0] += 60
            assert (await environment.run(function, [1, 2], cache_timeout="20 s")).to_pylist() == [3, 6]
            async with asyncio.timeout(20):
                while not await cache.store.stats():  # noqa: ASYNC110 - entries are written behind the answer
                    await asyncio.sleep(0.001)
    assert called == [1, 2]
    await cache.close()


ODD = [
    "UPDATE entries SET used = 'text', expires = 'text'",
    "UPDATE entries SET used = NULL, entry = NULL",
    "UPDATE entries SET entry = 'text'",
    f"UPDATE entries SET entry = zeroblob({2 * LARGEST_ENTRY})",
    "INSERT INTO entries SELECT NULL, NULL, zeroblob(100), 9e99, NULL FROM entries",
    "INSERT INTO entries SELECT 5, CAST(key AS TEXT), 7, 9e99, 0 FROM entries",
    "UPDATE servers SET until = 'text'",
    "INSERT INTO claims SELECT function, key, 'nobody' FROM entries; INSERT INTO servers VALUES ('nobody', 9e99)",
    "DROP TABLE entries",
    "ALTER TABLE entries RENAME TO others; CREATE VIEW entries AS SELECT * FROM others",
]


@pytest.mark.slow
@pytest.mark.parametrize("statement", ODD)
async def test_odd_entries_of_a_database_cost_no_row(tmp_path, statement):
    await served(tmp_path, range(20))
    with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.executescript(statement)
    for _ in range(2):
        await served(tmp_path, range(30))
    store = FileStore(tmp_path, 1 << 20)
    await store.open()
    with contextlib.suppress(StoreError):
        await store.put("g@1", [(b"%d" % number, bytes(10_000)) for number in range(500)], 60)
        assert sum(each.entries for each in await store.stats()) < 200, "older entries make room"
        assert all(isinstance(key, bytes) for key in [key async for _, key, _ in store.export()])
    await store.close()


ENDLESS = """
    ALTER TABLE entries RENAME TO others;
    CREATE VIEW entries AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
    SELECT '' AS function, x'00' AS key, x'00' AS entry, 9e9 AS expires, x AS used FROM n;
"""


@pytest.mark.slow
async def test_a_database_without_an_end_does_not_keep_a_server_from_stopping(tmp_path):
    await served(tmp_path, [1])
    with contextlib.closing(sqlite3.connect(tmp_path / FILE, isolation_level=None)) as db:
        db.executescript(ENDLESS)
    function, called = tripling()
    cache = OutcomeCache(FileStore(tmp_path, 1 << 20), ServerMetrics())
    await cache.open()
    async with asyncio.timeout(20):
        async with FunctionEnvironment(cache=cache) as environment:
            assert (await environment.run(function, [1, 2], cache_timeout="50 ms")).to_pylist() == [3, 6]
        await cache.close()
    assert called == [1, 2]


async def test_entries_that_have_expired_are_in_no_statistics_and_no_export(tmp_path):
    async with two_file_stores(tmp_path) as (one, two, now):
        await one.put("f@1", [(b"a", b"1"), (b"b", b"2")], 10)
        await one.put("f@1", [(b"c", b"3")], 60)
        await one.put("g@1", [(b"d", b"4")], 10)
        assert [(each.function, each.entries) for each in await two.stats()] == [("f@1", 3), ("g@1", 1)]
        now[0] += 11
        assert [(each.function, each.entries) for each in await two.stats()] == [("f@1", 1)]
        assert [key async for _, key, _ in two.export()] == [b"c"]


async def test_an_entry_of_the_future_is_a_miss(tmp_path):
    """The clock was set back: nobody knows how old it is."""
    wall, (function, called) = [1_000_000.0], tripling()
    for back in (0, 30, 3_600, 0):
        wall[0] -= back
        store = FileStore(tmp_path, 1 << 20, wall=lambda: wall[0])
        cache = OutcomeCache(store, ServerMetrics(), wall=lambda: wall[0])
        await cache.open()
        async with FunctionEnvironment(cache=cache) as environment:
            assert (await environment.run(function, [1], cache_timeout="20 s")).to_pylist() == [3]
        await cache.close()
    assert called == [1, 1], "clocks of servers differ by some seconds, not by an hour"
