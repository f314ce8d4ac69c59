"""`open` and `close`: when they run, where, and what happens when they fail."""

import asyncio
import threading
import time

import pyarrow as pa
import pytest

import udf_server as udf
from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from udf_server.hosting.executors import HostLimits
from udf_server.testing import FunctionEnvironment


async def test_open_runs_once_before_the_first_call_and_close_after_the_last():
    events = []

    @udf.scalar
    class Client:
        async def open(self):
            events.append("open")

        async def close(self):
            events.append("close")

        async def eval(self, a: int) -> int:
            events.append("call")
            return a

    async with FunctionEnvironment() as environment:
        await environment.run(Client, [1])
        await environment.run(Client, [2])
        assert events == ["open", "call", "call"]
    assert events == ["open", "call", "call", "close"]


@pytest.mark.parametrize("vectorized", [False, True])
async def test_a_plain_function_is_closed_though_it_has_nothing_to_open(vectorized):
    events = []
    types = {"parameters": "a int", "returns": "int"}
    same = udf.scalar(name="same", vectorized=vectorized, **types)(lambda a: a)
    same.on_close(lambda: events.append("close"))
    async with FunctionEnvironment() as environment:
        await environment.run(same, [1])
        assert events == []
    assert events == ["close"]


async def test_nothing_is_opened_or_closed_that_is_not_called():
    events = []

    @udf.scalar
    class Client:
        def open(self):
            events.append("open")

        def close(self):
            events.append("close")

        def eval(self, a: int) -> int:
            return a

    async with FunctionEnvironment():
        pass
    assert events == []


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_hooks_may_be_plain_or_async_and_be_added_by_decorators(asynchronous):
    events = []

    @udf.scalar
    async def f(a: int) -> int:
        return a

    for name in ("one", "two"):
        if asynchronous:

            async def hook(name=name):
                events.append(name)
        else:

            def hook(name=name):
                events.append(name)

        f.on_open(hook)
        f.on_close(hook)

    async with FunctionEnvironment() as environment:
        await environment.run(f, [1])
    assert events == ["one", "two", "two", "one"]


async def test_open_and_calls_of_an_async_function_share_one_loop(environment):
    loops = []

    @udf.scalar
    class Client:
        async def open(self):
            loops.append(asyncio.get_running_loop())

        async def eval(self, a: int) -> int:
            loops.append(asyncio.get_running_loop())
            return a

    await environment.run(Client, [1])
    assert loops[0] is loops[1]


async def test_streams_that_come_together_open_once(environment):
    opened = []

    @udf.scalar
    class Client:
        async def open(self):
            opened.append(1)
            await asyncio.sleep(0.05)

        async def eval(self, a: int) -> int:
            assert opened == [1]
            return a

    results = await asyncio.gather(*(environment.run(Client, [n]) for n in range(5)))
    assert [result.to_pylist() for result in results] == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize(
    "raised", [RuntimeError("no key"), SystemExit("no key"), asyncio.CancelledError("no key")], ids=repr
)
@pytest.mark.parametrize("asynchronous", [True, False])
async def test_a_stream_whose_open_hook_fails_says_so_and_the_next_tries_again(environment, raised, asynchronous):
    attempts = []

    @udf.scalar
    async def f(a: int) -> int:
        return a

    def fail():
        attempts.append(1)
        if len(attempts) == 1:
            raise raised

    async def fail_async():
        fail()

    f.on_open(fail_async if asynchronous else fail)
    with pytest.raises(StreamError, match=f"function f@1: open failed: {type(raised).__name__}: no key") as error:
        await asyncio.wait_for(environment.run(f, [1]), 10)
    assert (error.value.kind, error.value.code) == (ErrorKind.USER, ErrorCode.OPEN_FAILED)
    assert error.value.retryable
    assert "in fail" in error.value.traceback
    assert (await asyncio.wait_for(environment.run(f, [1]), 10)).to_pylist() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("blocking", [True, False])
async def test_an_open_hook_that_takes_too_long_fails(blocking):
    release, attempts = threading.Event(), []

    @udf.scalar
    async def f(a: int) -> int:
        return a

    @f.on_open
    async def hang():
        attempts.append(1)
        if len(attempts) == 1:
            if blocking:
                release.wait(3600)
            else:
                await asyncio.sleep(3600)

    async with FunctionEnvironment(limits=HostLimits(open_seconds=1.0)) as environment:
        with pytest.raises(StreamError, match="function f@1: open failed: not done after 1 s"):
            await asyncio.wait_for(environment.run(f, [1]), 10)
        assert (await asyncio.wait_for(environment.run(f, [1]), 10)).to_pylist() == [1]
    release.set()


async def test_every_close_hook_runs_even_if_one_fails(caplog):
    events = []

    @udf.scalar
    async def f(a: int) -> int:
        return a

    f.on_close(lambda: events.append("last"))

    @f.on_close
    def fail():
        raise SystemExit("broken")

    f.on_close(lambda: events.append("first"))
    async with FunctionEnvironment() as environment:
        await environment.run(f, [1])
    assert events == ["first", "last"]
    [record] = [record for record in caplog.records if record.message == "close hook failed"]
    assert record.function == "f@1"


@pytest.mark.slow
@pytest.mark.parametrize("blocking", [True, False])
async def test_a_close_hook_that_hangs_does_not_keep_the_server_from_stopping(caplog, blocking):
    release = threading.Event()

    @udf.scalar
    async def f(a: int) -> int:
        return a

    @f.on_close
    async def hang():
        if blocking:
            release.wait(3600)
        else:
            await asyncio.sleep(3600)

    environment = FunctionEnvironment(limits=HostLimits(close_seconds=0.1))
    await environment.run(f, [1])
    await asyncio.wait_for(environment.__aexit__(), 10)
    assert "close hook timed out" in caplog.messages
    release.set()


async def test_a_stream_that_is_cancelled_just_as_its_function_is_open_is_cancelled(environment):
    """Otherwise it would continue without a client forever."""
    entered, done = threading.Event(), threading.Event()

    @udf.scalar
    async def f(a: int) -> int:
        return a

    @f.on_open
    async def wait():
        entered.set()
        assert await asyncio.to_thread(done.wait, 20)

    running = asyncio.create_task(environment.run(f, [1]))
    assert await asyncio.to_thread(entered.wait, 20)
    done.set()
    # This loop is blocked meanwhile, so that it gets both events at once.
    time.sleep(0.3)  # noqa: ASYNC251
    running.cancel()
    await asyncio.wait([running], timeout=10)
    assert running.cancelled()


@pytest.mark.slow
async def test_a_blocked_function_does_not_keep_the_server_from_stopping():
    release, entered = threading.Event(), threading.Event()

    @udf.scalar(timeout="1 min")
    async def f(a: int) -> int:
        entered.set()
        release.wait(3600)
        return a

    f.on_close(lambda: None)
    environment = FunctionEnvironment(limits=HostLimits(close_seconds=0.1))
    running = asyncio.create_task(environment.run(f, [1]))
    assert await asyncio.to_thread(entered.wait, 20)
    running.cancel()
    await asyncio.wait([running])
    await asyncio.wait_for(environment.__aexit__(), 10)
    release.set()


@pytest.mark.slow
async def test_what_open_made_belongs_to_its_loop_and_is_made_again_for_a_new_one(environment):
    release, loops = threading.Event(), []

    @udf.scalar(timeout="100 ms")
    class Client:
        async def open(self):
            self.loop = asyncio.get_running_loop()
            loops.append(self.loop)

        async def eval(self, a: int) -> int:
            assert asyncio.get_running_loop() is self.loop
            if a < 0:
                release.wait(3600)
            return a

    result = await environment.run(Client, [-1, 2], buffer_capacity=1)
    assert result.values.to_pylist() == [None, 2]
    assert len(loops) == 2
    release.set()


async def test_hooks_of_a_vectorized_function_run_too(environment):
    @udf.scalar(vectorized=True)
    class Model:
        def open(self):
            self.factor = 3

        def eval(self, a: pa.Int64Array) -> pa.Int64Array:
            return pa.compute.multiply(a, self.factor)

    assert (await environment.run(Model, [1, 2])).to_pylist() == [3, 6]
