"""An author's key function runs on a thread of the function, and large arguments are read beside the event loop."""

import asyncio
import threading
from types import SimpleNamespace

import pyarrow as pa

from udf_server.cache.keying import Keying


class World:
    """One stream whose jobs the test runs."""

    def __init__(self):
        self.jobs, self.written_off = [], 0
        executor = SimpleNamespace(submit=lambda party, job: self.jobs.append(job), write_off=self._write_off)
        self.setup = SimpleNamespace(
            function=SimpleNamespace(cache_key=lambda a: a), hosted=SimpleNamespace(thread_executor=executor),
            arguments=SimpleNamespace(columns=lambda batch: [batch.column]), party=None,
            options=SimpleNamespace(cache_timeout=0.05), post=lambda callback, *arguments: callback(*arguments),
        )  # fmt: skip
        self.keyed = []
        self.during = lambda: None

    def _write_off(self):
        self.written_off += 1

    def of(self, columns, rows):
        self.keyed.append(rows)
        self.during()
        return [b"k"] * rows

    async def read(self, rows=3):
        keys = SimpleNamespace(of=self.of, skipped=lambda columns: None)
        batch = SimpleNamespace(rows=rows, data=b"x" * rows * 8, column=pa.array(range(rows)))
        return (await Keying(self.setup, keys).read(batch))[1]


async def test_a_job_that_has_not_begun_at_its_timeout_never_begins():
    world = World()
    assert await world.read() == [None] * 3
    assert world.jobs[0]() is True
    assert (world.keyed, world.written_off) == ([], 0)


async def test_a_thread_that_hangs_is_written_off_once_and_ends_when_its_job_returns():
    world, entered, released = World(), threading.Event(), threading.Event()
    world.during = lambda: (entered.set(), released.wait(20))
    reading = asyncio.ensure_future(world.read())
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(asyncio.to_thread(world.jobs[0]))
    assert await reading == [None] * 3
    assert world.written_off == 1
    released.set()
    assert await ending is False


async def test_a_thread_that_has_ended_is_not_written_off_although_its_keys_are_late():
    world = World()
    world.setup.post = lambda callback, *arguments: None  # the event loop is busy until the timeout
    reading = asyncio.ensure_future(world.read())
    await asyncio.sleep(0)
    assert world.jobs[0]() is True
    assert await reading == [None] * 3
    assert world.written_off == 0


async def test_large_arguments_are_read_beside_the_event_loop():
    world, threads = World(), []
    world.setup.arguments.columns = lambda batch: threads.append(threading.current_thread()) or [batch.column]
    await world.read(3)
    await world.read(10_000)
    assert [thread is threading.main_thread() for thread in threads] == [True, False]
