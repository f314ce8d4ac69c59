"""What becomes of calls that run when their stream is lost: they end by themselves, and their values are kept."""

import asyncio
import contextlib
import threading

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2 as pb
from tests.udf_server.file_stores import two_file_stores
from tests.udf_server.talk import Talk, batch, eventually
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.cache.running_calls import Orphans
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.stores.memory import MemoryStore
from udf_server.streams.services import Admission

OPTIONS = {"cache-ttl": "1 h", "buffer-capacity": "4"}


class World:
    """A server with one function, whose calls wait until they are let go."""

    def __init__(self, execution="async", most=10_000, fails=False, store=None, **options):
        self.calls, self.cancelled, self.gate = [], [], threading.Event()
        self.metrics = ServerMetrics()
        self.cache = OutcomeCache(store or MemoryStore(1 << 20), self.metrics)
        self.cache.orphans = Orphans(most)
        self.admission = Admission()

        def wait(a):
            self.calls.append(a)
            assert self.gate.wait(20)
            return -a

        if execution == "async":

            @udf.scalar(**options)
            async def f(a: int) -> int:
                self.calls.append(a)
                try:
                    while not self.gate.is_set():  # noqa: ASYNC110 - another thread sets it
                        await asyncio.sleep(0.002)
                except asyncio.CancelledError:
                    self.cancelled.append(a)
                    raise
                if fails:
                    raise ValueError(f"no {a}")
                return -a

        elif execution == "def":

            @udf.scalar(**options)
            def f(a: int) -> int:
                return wait(a)

        else:
            if execution == "merged":
                options = {"max_queue_delay": "1 ms", **options}

            @udf.scalar(vectorized=True, batch_rows=4, **options)
            def f(a: pa.Int64Array) -> pa.Int64Array:
                self.calls.extend(a.to_pylist())
                assert self.gate.wait(20)
                return pa.array([-each for each in a.to_pylist()], pa.int64())

        self.host = FunctionHost(Registry([("test", f)]))

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        self.gate.set()
        await self.cache.close()
        await self.host.close()

    def talk(self):
        return Talk(host=self.host, cache=self.cache, admission=self.admission)

    async def lose(self, rows, by_cancel=False, **options):
        """Send rows in batches of 10, and end the stream when four are called."""
        before = len(self.calls)
        async with self.talk() as talk:
            await talk.open(options={**OPTIONS, **options})
            for number, first in enumerate(range(0, len(rows), 10)):
                talk.send(batch(number, first, rows[first : first + 10]))
            await eventually(lambda: len(self.calls) >= before + 4)
            if by_cancel:
                talk.send(encode(pb.ExecuteRequest(cancel=pb.Cancel())))
                assert (await talk.receive()).WhichOneof("response") == "cancelled"
                await talk.ended()

    async def run(self, rows, **options):
        """The outcomes of a stream: hits, misses, calls, and the errors."""
        async with self.talk() as talk:
            await talk.open(options={**OPTIONS, **options})
            talk.send(batch(0, 0, rows), encode(pb.ExecuteRequest(finish=pb.Finish())))
            hits = calls = 0
            while (answer := await talk.receive()).WhichOneof("response") == "result":
                hits, calls = hits + answer.result.cache_hits, calls + answer.result.calls
            assert answer.finished.counts.rows_in == len(rows)
            await talk.ended()
            return hits, calls

    async def settled(self):
        """All that ran for no stream has ended, and nothing is held."""
        await eventually(lambda: not self.cache.orphans.rows)
        assert self.admission.bytes == 0 and self.admission.rows("f@1") == 0
        assert not len(self.cache.flights)


@pytest.mark.parametrize("by_cancel", [False, True])
@pytest.mark.parametrize("execution", ["async", "def", "vectorized", "merged"])
async def test_calls_that_ran_are_kept_and_rows_that_had_not_begun_are_not_called(execution, by_cancel):
    async with World(execution) as world:
        await world.lose(range(30), by_cancel)
        begun = world.cache.orphans.rows
        # Of common calls of four rows one runs, and the next one is ready: its thread waits for the only instance.
        assert begun == (8 if execution == "merged" else 4)
        assert world.admission.rows("f@1") == begun and world.admission.bytes > 0, "they count until they have ended"
        world.gate.set()
        await world.settled()
        assert sorted(world.calls) == list(range(begun)) and not world.cancelled
        hits, _ = await world.run(range(30))
        assert hits == begun
        assert sorted(world.calls) == list(range(30)), "each row was called once"


async def test_an_equal_row_waits_for_the_call_of_the_lost_stream():
    async with World() as world:
        await world.lose(range(4))
        again = asyncio.create_task(world.run(range(6), **{"buffer-capacity": "10"}))
        await eventually(lambda: len(world.calls) == 6)
        world.gate.set()
        assert await again == (0, 2)
        assert sorted(world.calls) == list(range(6))


async def test_an_orphaned_call_ends_at_its_deadline():
    async with World() as world:
        await world.lose(range(4), timeout="300 ms")
        await world.settled()
        assert sorted(world.cancelled) == [0, 1, 2, 3]


async def test_a_stream_with_more_calls_than_may_be_orphans_is_cancelled():
    async with World(most=7) as world:
        await world.lose(range(4))
        await eventually(lambda: len(world.cancelled) == 4)
        await world.settled()


async def test_a_caller_leaves_room_for_the_orphans_of_others():
    orphans, gate = Orphans(12), asyncio.Event()

    async def calls():
        await gate.wait()

    assert orphans.has_room(6, "one") and not orphans.has_room(7, "one")
    orphans.take(4, "one", calls(), contextlib.ExitStack())
    assert orphans.has_room(2, "one") and not orphans.has_room(3, "one")
    assert orphans.has_room(4, "two") and not orphans.has_room(5, "two")
    orphans.take(4, "two", calls(), contextlib.ExitStack())
    assert not orphans.has_room(1, "one") and orphans.has_room(2, "three"), "a third one has room, too"
    gate.set()
    await eventually(lambda: not orphans.rows)
    assert orphans.has_room(6, "two")


async def test_one_caller_with_many_lost_streams_does_not_use_up_the_room():
    async with World(most=12) as world:
        for first in range(0, 40, 10):
            await world.lose(range(first, first + 4))
        assert world.cache.orphans.rows == 4
        await eventually(lambda: len(world.cancelled) == 12)
        assert world.cache.orphans.has_room(4, "another")
        world.gate.set()
        await world.settled()


async def test_calls_of_a_stream_without_a_cache_are_cancelled():
    async with World() as world:
        await world.lose(range(4), **{"cache-ttl": "0 s"})
        await eventually(lambda: len(world.cancelled) == 4)
        await world.settled()


async def test_a_server_that_stops_cancels_its_orphans_and_takes_no_more():
    async with World() as world:
        await world.lose(range(4))
        await world.cache.orphans.close()
        await world.settled()
        await eventually(lambda: len(world.cancelled) == 4)
        await world.lose(range(10, 14))
        await eventually(lambda: len(world.cancelled) == 8)
        await world.settled()


async def test_a_server_that_drains_waits_for_orphans_whose_values_outlive_it(tmp_path):
    async with two_file_stores(tmp_path) as (one, two, _):
        async with World(store=one) as world:
            await world.lose(range(4))
            draining = asyncio.create_task(world.cache.wait_for_orphans())
            done, _ = await asyncio.wait([draining], timeout=0.05)
            assert not done
            world.gate.set()
            await draining
            assert not world.cancelled
        async with World(store=two) as later:
            assert await later.run(range(4)) == (4, 0)


async def test_a_server_that_drains_does_not_wait_for_orphans_whose_values_end_with_it():
    async with World() as world:
        await world.lose(range(4))
        async with asyncio.timeout(5):
            await world.cache.wait_for_orphans()
        assert world.cache.orphans.rows == 4


async def test_an_error_of_an_orphaned_call_is_not_kept_and_holds_nobody_up():
    async with World(fails=True, max_attempts=1) as world:
        await world.lose(range(4))
        world.gate.set()
        await world.settled()
        assert await world.run(range(4)) == (0, 4)


async def test_calls_of_orphans_are_counted():
    async with World() as world:
        await world.lose(range(4))
        world.cache.observe()
        assert world.metrics.registry.get_sample_value("udf_cache_orphaned_rows") == 4
