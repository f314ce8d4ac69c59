"""What a stream with a cache holds is released when it ends, however it ends, though nothing is collected."""

import asyncio
import collections
import gc
import threading
import weakref

import pyarrow as pa
import pytest

import udf_server as udf
from tests.udf_server.talk import Talk, batch, eventually, finish
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.stores.memory import MemoryStore
from udf_server.streams.services import StreamLimits

OPTIONS = {"cache-ttl": "1 h", "max-attempts": "1"}
OF_STREAMS = ("udf_server.batching.", "udf_server.cache.", "udf_server.runners.", "udf_server.streams.")
ENDS = {"well": finish(), "for a lost client": None, "for a violation": batch(7, 0, [1])}


class World:
    """A server with one function, whose calls of rows from 100 on wait until they are let go."""

    def __init__(self, kind):
        self.calls, self.gate, self.limits = [], threading.Event(), StreamLimits()
        self.cache = OutcomeCache(MemoryStore(1 << 20), ServerMetrics())

        def of(values):
            self.calls += values
            assert max(values) < 100 or self.gate.wait(20)
            if -1 in values:
                raise ValueError("never")
            return values

        if kind == "async":

            @udf.scalar
            async def f(a: int) -> int:
                self.calls.append(a)
                while a >= 100 and not self.gate.is_set():  # noqa: ASYNC110 - another thread sets it
                    await asyncio.sleep(0.002)
                if a < 0:
                    raise ValueError("never")
                return a

        elif kind == "def":

            @udf.scalar
            def f(a: int) -> int:
                return of([a])[0]

        else:
            options = {"max_queue_delay": "1 ms"} if kind == "merged" else {}

            @udf.scalar(vectorized=True, batch_rows=4, **options)
            def f(a: pa.Int64Array) -> pa.Int64Array:
                return pa.array(of(a.to_pylist()), pa.int64())

        self.host = FunctionHost(Registry([("test", f)]))

    async def __aenter__(self):
        async with self.talk() as talk:
            await answered(talk, [99])  # what the first stream makes for all is made now
            runner = weakref.ref(talk.stream.call.runner)
        await eventually(lambda: (talk.running is None and runner() is None) or gc.collect() < 0)
        await self.cache.store.clear()
        gc.disable()
        self._before = alive()
        return self

    async def __aexit__(self, *exception):
        gc.enable()
        self.gate.set()
        await self.cache.close()
        await self.host.close()

    def talk(self):
        return Talk(host=self.host, cache=self.cache, limits=self.limits)

    async def forgotten(self):
        """Returns once no more objects are left than before, when the cache is empty again."""
        await self.cache.store.clear()
        try:
            await eventually(lambda: not alive() - self._before)
        except TimeoutError:
            raise AssertionError(f"left: {dict(alive() - self._before)}") from None


def alive():
    """How many objects of each type are in memory, of the types that streams have."""
    found = collections.Counter[str]()
    for kind, count in collections.Counter(map(type, gc.get_objects())).items():  # of which there are few
        if str(kind.__module__).startswith(OF_STREAMS) or kind is asyncio.TaskGroup:
            found[kind.__qualname__] += count
    return found


async def answered(talk, values):
    """Has the stream answer these rows. Returns the number of hits."""
    await talk.open(options=OPTIONS)
    talk.send(batch(0, 0, values))
    rows = hits = 0
    while rows < len(values):
        result = (await talk.receive()).result
        rows, hits = rows + result.rows, hits + result.cache_hits
    return hits


each_kind = pytest.mark.parametrize("kind", ["async", "def", "vectorized", "merged"])


@each_kind
@pytest.mark.parametrize("end", ENDS)
async def test_a_stream_with_hits_misses_and_errors_is_freed(kind, end):
    async with World(kind) as world:
        for hits in (0, 4):
            async with world.talk() as talk:
                assert await answered(talk, [1, 2, 2, 3, -1]) == hits
                talk.send(ENDS[end])
                await talk.ended()
        await world.forgotten()


@each_kind
async def test_streams_that_share_a_call_are_freed(kind):
    async with World(kind) as world:
        async with world.talk() as one, world.talk() as two:
            for talk in (one, two):
                await talk.open(options=OPTIONS)
                talk.send(batch(0, 0, [100]))
                await eventually(lambda: 100 in world.calls)
            world.gate.set()
            for talk in (one, two):
                assert (await talk.receive()).result.rows == 1
                talk.send(finish())
                await talk.ended()
        await world.forgotten()
        assert world.calls.count(100) == 1


@each_kind
@pytest.mark.parametrize("ends", ["by itself", "at its deadline", "with the server"])
async def test_an_orphaned_stream_is_freed_when_its_calls_have_ended(kind, ends):
    async with World(kind) as world:
        async with world.talk() as talk:
            await talk.open(options={**OPTIONS, "timeout": "300 ms" if ends == "at its deadline" else "20 s"})
            talk.send(batch(0, 0, range(100, 110)))
            await eventually(lambda: 100 in world.calls)
        assert world.cache.orphans.rows
        if ends == "with the server":
            await world.cache.orphans.close()
        if ends != "at its deadline":
            world.gate.set()
        await eventually(lambda: not world.cache.orphans.rows)
        world.gate.set()
        await world.forgotten()
