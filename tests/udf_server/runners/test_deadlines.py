"""Deadlines: the time of a row is limited, whatever the function does."""

import asyncio
import threading
import time

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, StreamError
from tests.udf_server.talk import Talk, batch, eventually, finish
from udf_server.hosting.executors import HostLimits
from udf_server.testing import FunctionEnvironment

FOREVER = 3600.0


def sleepers(kind, released, **options):
    """A function that blocks for negative rows until it is released."""
    if kind == "async":

        @udf.scalar(**options)
        async def f(a: int) -> int:
            if a < 0:
                await asyncio.sleep(FOREVER)
            return a
    elif kind == "threads":

        @udf.scalar(**options)
        def f(a: int) -> int:
            if a < 0:
                released.wait(FOREVER)
            return a
    elif kind == "blocking async":

        @udf.scalar(**options)
        async def f(a: int) -> int:
            if a < 0:
                released.wait(FOREVER)
            return a
    elif kind == "vectorized":

        @udf.scalar(vectorized=True, **options)
        def f(a: pa.Int64Array) -> pa.Int64Array:
            if a[0].as_py() < 0:
                released.wait(FOREVER)
            return a
    else:

        @udf.scalar(vectorized=True, **options)
        async def f(a: pa.Int64Array) -> pa.Int64Array:
            if a[0].as_py() < 0:
                await asyncio.sleep(FOREVER)
            return a

    return f


@pytest.fixture
def released():
    """Lets blocked threads go at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "threads", "vectorized", "async vectorized", "blocking async"])
@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
async def test_an_endless_row_times_out_and_the_others_do_not(environment, released, kind, output_mode):
    function = sleepers(kind, released, timeout="600 ms")
    result = await environment.run(function, [1, -1, 3, 4], batch_rows=1, output_mode=output_mode)
    assert result.values.to_pylist() == [1, None, 3, 4]
    error = result.errors[1]
    assert (error.code, error.attempts, error.retryable) == (ErrorCode.TIMEOUT, 1, True)
    assert error.message == "timed out: no result within 600 ms"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "threads", "blocking async"])
async def test_an_endless_row_costs_no_neighbour_in_its_own_batch(environment, released, kind):
    result = await environment.run(sleepers(kind, released, timeout="600 ms"), [*range(20), -1, *range(20)])
    assert result.values.to_pylist() == [*range(20), None, *range(20)]
    assert result.errors.keys() == {20}


async def test_a_timed_out_coroutine_is_cancelled(environment):
    ended = []

    @udf.scalar(timeout="50 ms")
    async def f(a: int) -> int:
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            ended.append(a)
            raise

    await environment.run(f, [1, 2])
    assert sorted(ended) == [1, 2]


async def test_a_coroutine_that_answers_its_cancellation_with_a_value_has_timed_out_all_the_same(environment):
    @udf.scalar(timeout="50 ms")
    async def f(a: int) -> int:
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            return a

    assert (await environment.run(f, [1])).errors[0].code is ErrorCode.TIMEOUT


@pytest.mark.slow
async def test_a_coroutine_that_ignores_its_cancellation_is_given_up(environment, released):
    @udf.scalar(timeout="50 ms", buffer_capacity=1)
    async def f(a: int) -> int:
        while a < 0 and not released.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue
        return a

    result = await asyncio.wait_for(environment.run(f, [-1, 2]), 20)
    assert result.values.to_pylist() == [None, 2]
    assert result.errors[0].code is ErrorCode.TIMEOUT


async def test_a_threads_late_result_is_discarded(environment, released):
    came_back = threading.Event()

    @udf.scalar(timeout="600 ms")
    def f(a: int) -> int:
        if a < 0:
            released.wait(FOREVER)
            came_back.set()
        return a

    result = await environment.run(f, [-1, 2])
    assert result.errors[0].code is ErrorCode.TIMEOUT
    released.set()
    assert came_back.wait(20)
    # The thread can be used again, and its late result was discarded.
    assert (await environment.run(f, [3, 4])).to_pylist() == [3, 4]
    assert result.values.to_pylist() == [None, 2]


async def test_a_vectorized_functions_late_result_is_discarded(released):
    async with Talk(sleepers("vectorized", released, name="f", timeout="50 ms")) as talk:
        await talk.open()
        talk.send(batch(0, 0, [-1]))
        assert (await talk.receive()).result.errors
        released.set()
        await eventually(lambda: not any(hosted.lost_calls for hosted in talk.host.hosted()))
        talk.send(batch(1, 1, [2]), finish())
        assert (await talk.receive()).WhichOneof("response") == "result"
        assert (await talk.receive()).WhichOneof("response") == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["async", "threads"])
async def test_the_deadline_counts_attempts_and_delays(environment, kind):
    calls = []
    # Also a machine that does nothing for half a second makes a second attempt.
    options = {"timeout": "1500 ms", "fixed_delay": "400 ms", "max_attempts": 1000}

    if kind == "async":

        @udf.scalar(**options)
        async def f(a: int) -> int:
            calls.append(a)
            raise udf.RetryableError("busy")
    else:

        @udf.scalar(**options)
        def f(a: int) -> int:
            calls.append(a)
            raise udf.RetryableError("busy")

    error = (await environment.run(f, [1])).errors[0]
    assert error.code is ErrorCode.TIMEOUT
    assert 2 <= error.attempts == len(calls) <= 5
    assert error.message.endswith(f"after {len(calls)} attempts; the last one failed with RetryableError: busy")


@pytest.mark.parametrize("kind", ["async", "threads", "vectorized", "async vectorized"])
async def test_a_retry_after_the_deadline_is_not_waited_for(environment, kind):
    calls = []

    def busy(a):
        calls.append(a)
        raise udf.RetryableError("busy", retry_after=FOREVER)

    if kind == "async":

        @udf.scalar(timeout="5 s")
        async def f(a: int) -> int:
            busy(a)
    elif kind == "threads":

        @udf.scalar(timeout="5 s")
        def f(a: int) -> int:
            busy(a)
    elif kind == "vectorized":

        @udf.scalar(timeout="5 s", vectorized=True)
        def f(a: pa.Int64Array) -> pa.Int64Array:
            busy(a)
    else:

        @udf.scalar(timeout="5 s", vectorized=True)
        async def f(a: pa.Int64Array) -> pa.Int64Array:
            busy(a)

    began = time.monotonic()
    result = await environment.run(f, [1])
    assert time.monotonic() - began < 4
    assert result.errors[0].code is ErrorCode.TIMEOUT
    assert "RetryableError: busy" in result.errors[0].message
    assert len(calls) == 1


async def test_a_vectorized_function_that_must_wait_too_long_for_one_row_answers_the_others(environment):
    @udf.scalar(timeout="5 s", vectorized=True)
    def f(a: pa.Int64Array) -> pa.Int64Array:
        if 2 in a.to_pylist():
            raise udf.RetryableError("busy", retry_after=FOREVER)
        return a

    result = await environment.run(f, range(4))
    assert result.values.to_pylist() == [0, 1, None, 3]
    assert result.errors[2].code is ErrorCode.TIMEOUT


@pytest.mark.slow
async def test_waiting_rows_have_not_begun_their_time(environment):
    @udf.scalar(timeout="1500 ms", buffer_capacity=1)
    async def f(a: int) -> int:
        await asyncio.sleep(0.2)
        return a

    assert (await environment.run(f, range(8))).to_pylist() == list(range(8))


async def test_a_function_that_blocks_its_loop_does_not_block_other_functions(environment, released):
    entered = threading.Event()

    @udf.scalar(timeout="10 s")
    async def block(a: int) -> int:
        entered.set()
        released.wait(FOREVER)
        return a

    @udf.scalar
    async def quick(a: int) -> int:
        return a

    blocked = asyncio.create_task(environment.run(block, [1]))
    assert await asyncio.to_thread(entered.wait, 20)
    assert (await asyncio.wait_for(environment.run(quick, [1, 2]), 8)).to_pylist() == [1, 2]
    released.set()
    assert (await blocked).to_pylist() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("vectorized", [False, True])
async def test_rows_of_other_streams_survive_a_call_that_blocks_their_loop(environment, released, vectorized):
    entered = threading.Event()

    if vectorized:

        @udf.scalar(vectorized=True)
        async def f(a: pa.Int64Array) -> pa.Int64Array:
            if a[0].as_py() < 0:
                entered.set()
                released.wait(FOREVER)
            return a
    else:

        @udf.scalar
        async def f(a: int) -> int:
            if a < 0:
                entered.set()
                released.wait(FOREVER)
            return a

    # Ready before the loop blocks, so that the second stream is open on the same loop.
    assert (await environment.run(f, [0])).to_pylist() == [0]
    blocked = asyncio.create_task(environment.run(f, [-1], timeout="30 s"))
    assert await asyncio.to_thread(entered.wait, 20)
    result = await asyncio.wait_for(environment.run(f, [1, 2, 3], batch_rows=1, timeout="200 ms"), 10)
    assert result.to_pylist() == [1, 2, 3]
    released.set()
    await blocked


async def test_a_function_that_loses_too_many_calls_is_refused(released):
    function = sleepers("threads", released, timeout="50 ms")
    async with FunctionEnvironment(limits=HostLimits(threads=8, lost_calls=2)) as environment:
        with pytest.raises(StreamError, match="have not returned") as raised:
            await environment.run(function, [-1] * 6, buffer_capacity=1)
    assert (raised.value.code, raised.value.retryable) == (ErrorCode.OVERLOADED, True)


async def test_a_task_that_exits_does_not_end_the_functions_loop(environment):
    async def leave():
        raise SystemExit(1)

    @udf.scalar(timeout="20 s")
    async def f(a: int) -> int:
        if a < 0:
            asyncio.get_running_loop().call_soon(asyncio.ensure_future, leave())
            await asyncio.sleep(0.05)
        return a

    assert (await asyncio.wait_for(environment.run(f, [-1, 2]), 10)).to_pylist() == [-1, 2]
    assert (await asyncio.wait_for(environment.run(f, [3]), 10)).to_pylist() == [3]
