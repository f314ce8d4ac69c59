"""The store in memory keeps rows in blocks, which are merged, moved, reduced and evicted."""

import asyncio
import collections
import zlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import udf_server as udf
from udf_server.base.key_value_store import ENTRY_BYTES, LARGEST_ENTRY
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.stores.blocks import BLOCK_BYTES, ROW_BYTES
from udf_server.stores.entries import _ERROR, _HEADER, _MARK, EntryCodec, packed
from udf_server.stores.memory import MemoryStore
from udf_server.testing import FunctionEnvironment

FUNCTIONS = ("f@1", "g@1")
keys = st.lists(st.integers(0, 60).map(lambda number: b"%03d" % number), min_size=1, max_size=40)
steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "values", "values", "get", "get", "wait", "clear"]), st.sampled_from(FUNCTIONS), keys
    ),
    max_size=60,
)


def check(store):
    """What the store counts is what it has."""
    live = collections.Counter()
    for function, places in store._places.items():
        for key, number in places.items():
            ((block, _),) = store._blocks.of(np.array([number]))
            place = int(block.places(np.array([number]))[0])
            assert (block.rows.function, block.rows.keys[place]) == (function, key)
            live[id(block)] += 1
    assert [block.live for block in store._blocks] == [live[id(block)] for block in store._blocks]
    ends = [edge for block in store._blocks for edge in (block.first, block.end)]
    assert ends == sorted(ends)
    values = sum(block.rows.values.nbytes for block in store._blocks)
    replaced = sum(len(block.rows.keys) for block in store._blocks) - len(store)
    kept = values + ENTRY_BYTES * len(store) + ROW_BYTES * replaced + BLOCK_BYTES * len(store._blocks)
    assert store.held_bytes == kept, "rows that were replaced take room until their block is written again"


@given(steps, st.sampled_from([1 << 20, 20_000]))
def test_a_store_returns_what_was_kept_last_or_nothing(steps, most):
    now, model, number = [0.0], {}, 0
    store = MemoryStore(most, lambda: now[0])
    for step, function, names in steps:
        names = list(dict.fromkeys(names)) if step == "put" else names
        written = {}
        for name in names:
            number += 1
            written[name] = packed(pa.array([number]), [5.0], [name])[0]
        if step == "put":
            store.keep(function, list(written.items()), 10.0)
        elif step == "values":
            numbers = pa.array(range(number - len(names) + 1, number + 1))
            store.keep_values(function, names, numbers, 10.0, 5.0)
        elif step == "get":
            for name, found in zip(names, found_in(store, function, names), strict=True):
                expected = model.get((function, name), (None, 0.0))
                kept = expected[0] if expected[1] > now[0] else None
                assert found == kept or (found is None and most < 1 << 20), name
        elif step == "wait":
            now[0] += 3.0
        else:
            asyncio.run(store.clear(function))
            model = {each: kept for each, kept in model.items() if each[0] != function}
        if step in ("put", "values"):
            model |= {(function, name): (entry, now[0] + 10.0) for name, entry in written.items()}
            assert store.held_bytes <= most
        check(store)


def found_in(store, function, keys):
    return asyncio.run(store.get(function, keys))


def kept(store, count, *, size=1, first=0):
    for number in range(first, first + count, size):
        names = [b"%06d" % each for each in range(number, number + size)]
        store.keep_values("f@1", names, pa.array([b"x" * 100] * size), 60, 0.0)
        yield names


def test_rows_that_are_kept_one_by_one_are_merged():
    store = MemoryStore(64 << 20)
    assert sum(1 for _ in kept(store, 3_000)) == 3_000
    assert len(store._blocks) < 20
    check(store)


@pytest.mark.slow
def test_rows_that_are_used_stay_although_their_chunk_is_evicted():
    store = MemoryStore(400_000)
    first = next(kept(store, 100, size=100))
    for names in kept(store, 5_000, size=100, first=1_000):
        assert None not in found_in(store, "f@1", [first[7], names[0]])
        check(store)
    assert found_in(store, "f@1", [first[8]]) == [None]
    assert len(store) > 900, "rows that were moved leave no room unused"


async def test_values_are_not_part_of_a_larger_array():
    large = pa.array(np.arange(1_000_000))

    @udf.scalar(vectorized=True, cache_ttl="1 h")
    def f(a: pa.Int64Array) -> pa.Int64Array:
        return large.slice(10, len(a))

    cache = OutcomeCache(store := MemoryStore(64 << 20), ServerMetrics())
    async with FunctionEnvironment(cache=cache) as environment:
        assert (await environment.run(f, [1, 2])).to_pylist() == [10, 11]
    assert 0 < sum(block.rows.values.get_total_buffer_size() for block in store._blocks) < 1_000
    await cache.close()


async def test_a_function_may_reuse_the_memory_of_its_values():
    memory = np.zeros(10, np.int64)

    @udf.scalar(vectorized=True, cache_ttl="1 h")
    def f(a: pa.Int64Array) -> pa.Int64Array:
        memory[: len(a)] = a.to_numpy() * 2
        return pa.array(memory[: len(a)])

    cache = OutcomeCache(MemoryStore(64 << 20), ServerMetrics())
    async with FunctionEnvironment(cache=cache) as environment:
        for first in (0, 100, 0, 100):
            rows = range(first, first + 10)
            assert (await environment.run(f, rows)).to_pylist() == [2 * row for row in rows]
    await cache.close()


async def test_rows_may_be_cleared_while_they_are_read():
    store = MemoryStore(1 << 20)
    for _ in kept(store, 100, size=10):
        pass
    found = store.recall("f@1", [b"000003", b"000004"])
    await store.clear("f@1")
    store.used(found)
    assert (len(store), store.held_bytes) == (0, 0)
    check(store)


def test_values_of_another_type_and_too_old_ones_are_misses():
    now = [100.0]
    store, entries = MemoryStore(1 << 20), EntryCodec(pa.int64(), lambda: now[0])
    store.keep_values("f@1", [b"a"], pa.array([1]), 1e6, 90.0)
    store.keep_values("f@1", [b"b"], pa.array(["1"]), 1e6, 90.0)
    store.keep("f@1", [(b"c", packed(pa.array([3]), [90.0], [b"c"])[0]), (b"d", b"damaged")], 1e6)
    keys = [b"a", b"b", b"c", b"d"]
    for age, values in ((11.0, {0: 1, 2: 3}), (9.0, {})):
        damaged = []
        found = entries.of_recalled(store.recall("f@1", keys), keys, (age, 0.0), damaged)
        assert dict(zip(found.rows.tolist(), found.values.to_pylist(), strict=True)) == values
        assert damaged == [3]


@pytest.mark.parametrize("row", [b'["FUNCTION_ERROR", "m", Infinity]', b"[" * 200_000])
def test_an_error_that_no_server_has_written_is_damaged(row):
    entries, damaged = EntryCodec(pa.int64(), lambda: 100.0), []
    [entry] = entries._sealed([_HEADER.pack(_MARK, _ERROR, zlib.crc32(b"key" + row), 100.0) + row], [b"key"])
    assert entries.read([entry], [b"key"], (60.0, 60.0), damaged).errors == {}
    assert damaged == [0]


@pytest.mark.parametrize("size", [LARGEST_ENTRY // 2, LARGEST_ENTRY + 1])
async def test_a_value_that_is_too_large_is_not_kept_and_the_others_are(size):
    called, metrics = [], ServerMetrics()

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> str:
        called.append(a)
        return "x" * (size if a < 3 else 1)

    cache = OutcomeCache(MemoryStore(64 << 20), metrics)
    async with FunctionEnvironment(cache=cache) as environment:
        for _ in range(2):
            assert [len(each) for each in (await environment.run(f, range(5))).to_pylist()] == [size] * 3 + [1] * 2
    assert len(called) == (5 if size < LARGEST_ENTRY else 5 + 3)
    errors = metrics.registry.get_sample_value("udf_cache_errors_total", {"reason": "large"})
    assert errors == (0 if size < LARGEST_ENTRY else 2 * 3)
    await cache.close()
