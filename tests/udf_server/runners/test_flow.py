"""The number of rows in flight, and the order of their results."""

import asyncio
import threading
import time
from itertools import pairwise

import pyarrow as pa
import pytest

import udf_server as udf
from tests.udf_server.talk import Talk, batch, eventually, finish


class InFlight:
    """Counts concurrent calls from any thread or coroutine."""

    def __init__(self):
        self._lock = threading.Lock()
        self.now = self.most = 0

    def __enter__(self):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_):
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("capacity", [1, 2, 7, 64])
async def test_buffer_capacity_bounds_the_rows_in_flight_of_an_async_function(environment, capacity):
    inside = InFlight()

    @udf.scalar
    async def f(a: int) -> int:
        with inside:
            await asyncio.sleep(0.001 * capacity)  # so that all begin before the first one ends
        return a

    result = await environment.run(f, range(300), buffer_capacity=capacity, batch_rows=20)
    assert result.to_pylist() == list(range(300))
    # As many as allowed, across the borders of batches.
    assert inside.most == capacity


@pytest.mark.parametrize("capacity", [1, 2, 7])
async def test_buffer_capacity_bounds_the_rows_in_flight_of_a_plain_function(environment, capacity):
    inside = InFlight()
    meet = threading.Barrier(capacity, timeout=20)

    @udf.scalar
    def f(a: int) -> int:
        with inside:
            meet.wait()
        return a

    result = await environment.run(f, range(capacity * 6), buffer_capacity=capacity, batch_rows=5)
    assert result.to_pylist() == list(range(capacity * 6))
    assert inside.most == capacity


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_buffer_capacity_bounds_the_rows_in_flight_of_a_vectorized_function(environment, asynchronous):
    rows, most = 0, 0
    lock = threading.Lock()

    def enter(a):
        nonlocal rows, most
        with lock:
            rows += len(a)
            most = max(most, rows)

    def leave(a):
        nonlocal rows
        with lock:
            rows -= len(a)

    if asynchronous:

        @udf.scalar(vectorized=True)
        async def f(a: pa.Int64Array) -> pa.Int64Array:
            enter(a)
            await asyncio.sleep(0.002)
            leave(a)
            return a
    else:

        @udf.scalar(vectorized=True)
        def f(a: pa.Int64Array) -> pa.Int64Array:
            enter(a)
            threading.Event().wait(0.002)
            leave(a)
            return a

    result = await environment.run(f, range(200), buffer_capacity=12, batch_rows=5)
    assert result.to_pylist() == list(range(200))
    assert 5 < most <= 12


async def test_a_row_that_waits_for_a_retry_counts_as_in_flight(environment):
    inside, failed = InFlight(), set()

    @udf.scalar(fixed_delay="2 ms", buffer_capacity=3)
    async def f(a: int) -> int:
        with inside:
            await asyncio.sleep(0)
        if a not in failed:
            failed.add(a)
            raise udf.RetryableError
        return a

    assert (await environment.run(f, range(30))).to_pylist() == list(range(30))
    assert inside.most <= 3


async def test_by_default_a_hundred_rows_are_in_flight(environment):
    inside = InFlight()

    @udf.scalar
    async def f(a: int) -> int:
        with inside:
            await asyncio.sleep(0.002)
        return a

    await environment.run(f, range(500))
    assert inside.most == 100


@pytest.mark.parametrize("kind", ["async", "threads"])
async def test_unordered_one_slow_row_holds_back_no_other(kind):
    gate = threading.Event()

    if kind == "async":

        @udf.scalar(buffer_capacity=4)
        async def f(a: int) -> int:
            if a == 0:
                await asyncio.to_thread(gate.wait, 20)
            return a
    else:

        @udf.scalar(buffer_capacity=4)
        def f(a: int) -> int:
            if a == 0:
                gate.wait(20)
            return a

    async with Talk(f) as talk:
        await talk.open(options={"output-mode": "unordered"})
        talk.send(*(batch(number, number * 50, range(number * 50, number * 50 + 50)) for number in range(4)), finish())
        answered = 0
        while answered < 199:
            answered += (await talk.receive()).result.rows
        assert answered == 199
        gate.set()
        assert (await talk.receive()).result.rows == 1
        assert (await talk.receive()).finished.counts.rows_ok == 200


async def test_ordered_a_slow_row_holds_back_its_own_batch_only():
    gate = threading.Event()

    @udf.scalar(name="f", buffer_capacity=4)
    async def f(a: int) -> int:
        if a == 0:
            await asyncio.to_thread(gate.wait, 20)
        return a

    async with Talk(f) as talk:
        await talk.open()
        talk.send(*(batch(number, number * 5, range(number * 5, number * 5 + 5)) for number in range(4)), finish())
        # Of batches that are ready at the same time either may leave first: see message.proto.
        assert {(await talk.receive()).result.first_row for _ in range(3)} == {5, 10, 15}
        gate.set()
        assert (await talk.receive()).result.first_row == 0


async def test_streams_of_one_function_take_turns_on_its_threads():
    """One stream with enough rows to keep every thread busy does not shut out another."""
    from udf_server.hosting.executors import HostLimits
    from udf_server.testing import FunctionEnvironment

    order = []
    enough = threading.Event()

    @udf.scalar
    def f(a: int) -> int:
        order.append(a)
        if len(order) > 3:
            enough.set()
        threading.Event().wait(0.001)
        return a

    async with FunctionEnvironment(limits=HostLimits(threads=1)) as environment:
        first = asyncio.create_task(environment.run(f, [1] * 300, batch_rows=5))
        assert await asyncio.to_thread(enough.wait, 20)
        await environment.run(f, [2] * 5)
        await first
    assert order.index(2) < 200


async def test_rows_in_flight_show_in_the_metrics():
    gate = threading.Event()

    @udf.scalar(name="f")
    def f(a: int) -> int:
        gate.wait(20)
        return a

    async with Talk(f) as talk:
        await talk.open()
        talk.send(batch(0, 0, range(7)))
        await eventually(lambda: talk.metric("udf_rows_in_flight", function="f", version="1") == 7)
        gate.set()
        assert (await talk.receive()).result.rows == 7
        await eventually(lambda: talk.metric("udf_rows_in_flight", function="f", version="1") == 0)


@pytest.mark.slow
async def test_calls_that_never_wait_hand_the_loop_on_though_their_batches_are_small():
    rows, turns = 0, []

    def turn():
        turns.append(rows)
        asyncio.get_running_loop().call_soon(turn)

    @udf.scalar
    async def busy(a: int) -> int:
        nonlocal rows
        rows += 1
        if rows == 1:
            turn()
        until = time.perf_counter() + 20e-6
        while time.perf_counter() < until:
            pass
        return a

    count = 500
    async with Talk(busy) as talk:
        await talk.open("busy", options={"buffer-capacity": "1"})
        talk.send(*(batch(number, number * 10, range(10)) for number in range(count)), finish())
        for _ in range(count):
            assert (await talk.receive()).result.rows == 10
    # Every 5 ms, which are 250 rows here and fewer on a slower machine.
    assert max(later - earlier for earlier, later in pairwise(turns)) < 500
