"""Equal rows in flight are called once, over streams; a stream that ends holds nobody up."""

import asyncio
import contextlib
import threading

import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode
from tests.udf_server.talk import eventually
from udf_server.cache import cached_runner
from udf_server.testing import FunctionEnvironment


class Gate:
    """A function whose calls wait until the test lets them go."""

    def __init__(self, **options):
        self.calls = []
        self.errors = []
        self.open = asyncio.Event()

        @udf.scalar(cache_ttl="1 h", max_attempts=1, **options)
        async def f(a: int) -> int:
            self.calls.append(a)
            await self.open.wait()
            if self.errors:
                raise self.errors.pop(0)
            return -a

        self.function = f

    async def called(self, times):
        await eventually(lambda: len(self.calls) >= times)


@pytest.fixture
async def environment():
    async with FunctionEnvironment() as environment:
        yield environment


async def started(environment, gate, rows, **options):
    return asyncio.create_task(environment.run(gate.function, rows, **options))


async def waiting(environment, rows):
    """Returns once this number of rows wait for calls of others."""
    waiting = environment._cache.flights._waiting
    await eventually(lambda: sum(map(len, waiting.values())) == rows)


def function_loop(environment, gate):
    host = environment._hosts[id(gate.function)]
    return next(iter(host.hosted())).running_executor


async def test_streams_share_one_call(environment):
    gate = Gate()
    streams = [
        await started(environment, gate, [1, 2], output_mode=mode) for mode in ("ordered", "unordered", "ordered")
    ]
    await gate.called(2)
    await waiting(environment, 4)
    function_loop(environment, gate).post(gate.open.set)
    results = await asyncio.gather(*streams)
    assert [result.to_pylist() for result in results] == [[-1, -2]] * 3
    assert sorted(gate.calls) == [1, 2]
    assert sum(result.counts.calls for result in results) == 2


async def test_rows_that_were_queued_when_their_stream_was_lost_are_called_for_those_that_wait_for_them(environment):
    gate = Gate()
    owner = await started(environment, gate, [1, 2], buffer_capacity=1)
    await gate.called(1)
    others = [await started(environment, gate, [2, 1]) for _ in range(2)]
    await waiting(environment, 4)
    owner.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await owner
    await gate.called(2)
    function_loop(environment, gate).post(gate.open.set)
    assert [(await other).to_pylist() for other in others] == [[-2, -1]] * 2
    assert sorted(gate.calls) == [1, 2], "the call of 1 went on without its stream"


async def test_a_row_that_waits_is_answered_while_the_batch_of_its_call_goes_on(environment, monkeypatch):
    monkeypatch.setattr(cached_runner, "COLLECT_SECONDS", 3_600.0)  # outcomes for which nobody waits
    calls, ends = [], {a: asyncio.Event() for a in (1, 2, 3)}

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        calls.append(a)
        await ends[a].wait()
        return -a

    owner = asyncio.create_task(environment.run(f, [1, 2, 3], timeout="1 h"))
    await eventually(lambda: len(calls) == 3)
    other = asyncio.create_task(environment.run(f, [2], timeout="1 h"))
    await waiting(environment, 1)
    loop = next(iter(environment._hosts[id(f)].hosted())).running_executor
    loop.post(ends[2].set)
    assert (await other).to_pylist() == [-2] and not owner.done()
    loop.post(ends[1].set)
    loop.post(ends[3].set)
    assert (await owner).to_pylist() == [-1, -2, -3] and sorted(calls) == [1, 2, 3]


async def test_a_row_that_waits_keeps_its_own_deadline(environment):
    gate = Gate()
    patient = await started(environment, gate, [1], timeout="20 s")
    await gate.called(1)
    hasty = await started(environment, gate, [1], timeout="100 ms")
    result = await hasty
    assert result.errors[0].code is ErrorCode.TIMEOUT and "100 ms" in result.errors[0].message
    labels = {"function": "f", "version": "1", "outcome": "late"}
    assert environment.metrics.registry.get_sample_value("udf_cache_rows_total", labels) == 1
    function_loop(environment, gate).post(gate.open.set)
    assert (await patient).to_pylist() == [-1] and gate.calls == [1]


async def test_a_row_goes_on_after_the_deadline_of_the_row_that_it_waits_for(environment):
    gate = Gate()
    hasty = await started(environment, gate, [1], timeout="200 ms")
    await gate.called(1)
    patient = await started(environment, gate, [1], timeout="20 s")
    assert (await hasty).errors[0].code is ErrorCode.TIMEOUT
    await gate.called(2)
    function_loop(environment, gate).post(gate.open.set)
    assert (await patient).to_pylist() == [-1]


async def test_an_error_is_not_shared_with_a_stream_that_would_retry_otherwise(environment):
    gate = Gate()
    gate.errors = [udf.RetryableError("busy")]
    once = await started(environment, gate, [1])
    await gate.called(1)
    same = await started(environment, gate, [1])
    other = await started(environment, gate, [1], max_attempts=2, fixed_delay="1 ms")
    await waiting(environment, 2)
    function_loop(environment, gate).post(gate.open.set)
    assert (await once).errors[0].retryable and (await same).errors[0].retryable
    assert (await other).to_pylist() == [-1]
    assert gate.calls == [1, 1]


@pytest.mark.slow
async def test_rows_wait_as_long_as_the_row_that_they_wait_for_is_queued(environment):
    """The deadline of a row begins with its call, or with the call that it waits for."""
    calls = []

    @udf.scalar(cache_ttl="1 h")
    async def slow(a: int) -> int:
        calls.append(a)
        await asyncio.sleep(0.05)
        return -a

    rows = [row % 20 for row in range(40)]
    result = await environment.run(slow, rows, timeout="250 ms", buffer_capacity=1)
    assert not result.errors and len(calls) == 20


async def test_nothing_is_held_for_streams_that_have_ended(environment):
    gate = Gate()
    streams = [await started(environment, gate, list(range(10))) for _ in range(3)]
    await gate.called(10)
    for stream in streams:
        stream.cancel()
    await asyncio.wait(streams)
    await environment._cache.orphans.close()
    flights = environment._cache.flights
    assert not len(flights) and not any(flights.waiting(bytes([key])) for key in range(10))


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("execution", ["async", "threaded"])
async def test_a_row_is_kept_while_another_row_of_its_batch_runs(environment, execution, mode):
    calls, gate = [], threading.Event()

    def called(a):
        calls.append(a)
        assert a == 1 or gate.wait(20)
        return -a

    @udf.scalar(cache_ttl="1 h")
    async def f(a: int) -> int:
        return await asyncio.to_thread(called, a)

    @udf.scalar(cache_ttl="1 h")
    def g(a: int) -> int:
        return called(a)

    function = f if execution == "async" else g
    first = asyncio.create_task(environment.run(function, [1, 2], output_mode=mode))
    await eventually(lambda: 2 in calls)
    assert (await environment.run(function, [1])).to_pylist() == [-1]
    assert not first.done()
    gate.set()
    assert (await first).to_pylist() == [-1, -2]
    assert sorted(calls) == [1, 2]
