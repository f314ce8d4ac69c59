"""An author's key function runs on a thread of the function, and large arguments are read beside the event loop."""

import asyncio
import threading
from types import SimpleNamespace

import pyarrow as pa
import pytest

import udf_server as udf
from tests.udf_server.talk import eventually
from udf_server.base.errors import FunctionBlocked
from udf_server.cache.keying import Keying
from udf_server.cache.keys import RowKeys


class World:
    """One stream whose jobs the test runs."""

    def __init__(self):
        self.jobs, self.written_off, self.blocked = [], 0, False
        executor = SimpleNamespace(submit=lambda party, job: self.jobs.append(job), write_off=self._write_off)
        self.setup = SimpleNamespace(
            function=SimpleNamespace(cache_key=lambda a: a), hosted=SimpleNamespace(thread_executor=executor),
            arguments=SimpleNamespace(columns=lambda batch: [batch.column]), party=None,
            options=SimpleNamespace(cache_timeout=0.05), post=asyncio.get_running_loop().call_soon_threadsafe,
        )  # fmt: skip
        self.keyed = []
        self.during = lambda: None

    def _write_off(self):
        self.written_off += 1
        if self.blocked:
            raise FunctionBlocked("too many calls have not returned")

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


async def test_the_wait_for_a_thread_does_not_count():
    world = World()
    reading = asyncio.ensure_future(world.read())
    await asyncio.sleep(3 * world.setup.options.cache_timeout)
    assert await asyncio.to_thread(world.jobs[0]) is True
    assert await reading == [b"k"] * 3


async def test_a_thread_that_hangs_is_written_off_although_its_stream_has_ended():
    world, entered, released = World(), threading.Event(), threading.Event()
    world.during = lambda: (entered.set(), released.wait(20))
    reading = asyncio.ensure_future(world.read())
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(asyncio.to_thread(world.jobs[0]))
    await asyncio.to_thread(entered.wait, 20)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    try:
        await eventually(lambda: world.written_off == 1)
    finally:
        released.set()
    assert await ending is False


async def test_rows_have_no_keys_if_too_many_threads_hang():
    world, entered, released = World(), threading.Event(), threading.Event()
    world.blocked, world.during = True, lambda: (entered.set(), released.wait(20))
    reading = asyncio.ensure_future(world.read())
    await asyncio.sleep(0)
    ending = asyncio.ensure_future(asyncio.to_thread(world.jobs[0]))
    try:
        assert await reading == [None] * 3
    finally:
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


@pytest.mark.slow
async def test_large_arguments_are_read_beside_the_event_loop():
    world, threads = World(), []
    world.setup.arguments.columns = lambda batch: threads.append(threading.current_thread()) or [batch.column]
    await world.read(3)
    await world.read(10_000)
    assert [thread is threading.main_thread() for thread in threads] == [True, False]


def test_a_part_of_a_column_with_maps_of_nulls_has_keys():
    """Arrow ended the process if a map had structs with a field of type void."""

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        return a

    type_ = pa.map_(pa.int64(), pa.struct([("x", pa.float64()), ("nothing", pa.null())]))
    rows = [[(key, {"x": float(key), "nothing": None})] * (key % 2) for key in range(30)]
    keys = RowKeys(f, [type_], None, "")
    column = pa.array(rows, type_)
    expected = keys.of([column], len(rows))
    assert None not in expected
    for start in range(len(rows)):
        assert keys.of([column.slice(start)], len(rows) - start) == expected[start:]
