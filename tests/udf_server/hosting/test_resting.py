"""Functions that are not used hold neither threads nor descriptors, and running out of these is an answer."""

import asyncio
import errno
import json
import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request

import grpc
import pytest

import udf_server as udf
from remote_udf.messages import read_response
from tests.udf_server.talk import Talk, batch, eventually, finish, opening
from udf_server.base.metrics import ServerMetrics
from udf_server.base.open_files import open_files
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.executors import Executors
from udf_server.hosting.hosted_function import IDLE_SECONDS
from udf_server.hosting.loop_executor import FunctionLoop
from udf_server.hosting.registry import FunctionHost, Registry
from udf_server.stores.memory import MemoryStore


class World:
    """A host of the function `f`, with a clock of the test."""

    def __init__(self, function):
        self.now = 0.0
        self.host = FunctionHost(Registry([("test", function)]), executors=Executors(clock=lambda: self.now))
        self._cache = OutcomeCache(MemoryStore(1 << 20), ServerMetrics())

    async def __aenter__(self):
        return self

    async def __aexit__(self, *exception):
        await self.host.close()

    def talk(self):
        """A stream; its end does not close the host."""
        return Talk(host=self.host, cache=self._cache)

    async def call(self):
        async with self.talk() as talk:
            await talk.open()
            talk.send(batch(0, 0, [1, 2]), finish())
            assert (await talk.receive()).result.rows == 2
            await talk.ended()

    def rest(self, seconds):
        self.now += seconds
        self.host.rest(self.now)

    async def rested(self):
        """Returns once no thread is left. As a server does, it tries again while tasks of the stream end."""

        def done():
            self.rest(0)
            return not threads()

        await eventually(done)


def threads():
    return [thread.name for thread in threading.enumerate() if "f@1" in thread.name]


async def on_loop(x: int) -> int:
    return x


def on_thread(x: int) -> int:
    return x


@pytest.mark.parametrize("function", [on_loop, on_thread])
async def test_a_function_without_hooks_gives_back_what_it_holds_after_five_idle_minutes(function):
    async with World(udf.scalar(name="f")(function)) as world:
        world.host.find("f")
        assert threads() == []
        files = []
        for _ in range(8):
            await world.call()
            held = threads()
            assert held
            world.rest(IDLE_SECONDS - 1)
            assert threads() == held
            world.rest(1)
            await world.rested()
            files.append(open_files().open)
        # Connections of earlier tests may end meanwhile, so there may be fewer.
        assert files[-1] <= files[1]


async def test_a_function_keeps_its_thread_while_a_stream_is_open():
    async with World(udf.scalar(name="f")(on_loop)) as world:
        async with world.talk() as talk:
            await talk.open()
            world.rest(10 * IDLE_SECONDS)
            talk.send(batch(0, 0, [1]))
            assert (await talk.receive()).result.rows == 1
        world.rest(IDLE_SECONDS - 1)
        assert len(threads()) == 1
        world.rest(1)
        await world.rested()


async def test_what_hooks_have_opened_stays_open():
    opened, closed = [], []
    function = udf.scalar(name="f")(on_loop)
    function.on_open(lambda: opened.append(1))
    function.on_close(lambda: closed.append(1))
    async with World(function) as world:
        await world.call()
        world.rest(10 * IDLE_SECONDS)
        await world.call()
        assert (opened, closed, len(threads())) == ([1], [], 1)
    assert closed == [1]


async def test_a_task_of_the_author_keeps_the_loop():
    tasks, seen = [], []

    @udf.scalar
    async def f(x: int) -> int:
        if not tasks:
            tasks.append(asyncio.create_task(asyncio.Event().wait()))
        seen.append(asyncio.get_running_loop())
        return x

    async with World(f) as world:
        await world.call()
        world.rest(10 * IDLE_SECONDS)
        await world.call()
        assert len(set(map(id, seen))) == 1


SMALL = """
import udf_server as udf
""" + "".join(f"""
@udf.scalar
async def f{number}(x: int) -> int:
    return x
""" for number in range(80))  # fmt: skip


def first_answer(channel, function):
    stream = channel.stream_stream("/remote_udf.v1.UdfService/Execute")(iter([opening(function)]))
    return read_response(next(stream)).envelope


async def test_a_blocked_loop_for_which_there_was_no_other_is_replaced_when_there_is_one():
    made = []

    def new_loop():
        made.append(1)
        if len(made) == 2:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return FunctionLoop()

    registry = Registry([("test", udf.scalar(name="f")(on_loop))])
    host = FunctionHost(registry, executors=Executors(new_loop=new_loop))
    hosted = host.find("f")
    blocked = hosted.loop_executor
    with pytest.raises(OSError, match=os.strerror(errno.EMFILE)):
        hosted.replace_loop_executor(blocked)
    assert hosted.loop_executor is not blocked
    await hosted.open()
    await host.close()


@pytest.mark.slow
def test_a_server_that_runs_out_of_descriptors_refuses_functions_and_says_so(plugin, tmp_path):
    command = [
        "bash", "-c", 'ulimit -n 256; exec "$@"', "bash", sys.executable, "-m", "udf_server", "serve", "--plugin",
        plugin(SMALL), "--no-entry-points", "--port", "0", "--metrics-port", "0", "--stop-with-stdin",
        "--processes", "1", "--log-format", "json",
    ]  # fmt: skip
    with (
        (tmp_path / "log").open("w+") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=os.environ) as server,
    ):
        ready = json.loads(server.stdout.readline())
        log.seek(0)
        (warning,) = (line for line in map(json.loads, log) if "too low for all functions" in line["event"])
        assert (warning["limit"], warning["functions"]) == (256, 80)
        assert warning["enough_for"] < 80
        assert warning["needed"] > 256
        with grpc.insecure_channel(ready["target"]) as channel:
            answers = [first_answer(channel, f"f{number}") for number in range(80)]
            called = [answer.HasField("opened") for answer in answers]
            # What is called stays so, and the first refusal is not the last: there is no room for a further loop.
            assert called == sorted(called, reverse=True)
            assert abs(sum(called) - warning["enough_for"]) <= 2
            refusal = answers[-1].error
            assert (refusal.code, refusal.retryable) == ("OVERLOADED", True)
            assert " of 256 file descriptors are open" in refusal.message
            assert first_answer(channel, "f0").HasField("opened")
        with pytest.raises(urllib.error.HTTPError) as unready:
            urllib.request.urlopen(ready["metrics"] + "/readyz", timeout=20)
        with unready.value as answer:
            assert answer.code == 503
            assert b" of 256 file descriptors are open" in answer.read()
        with urllib.request.urlopen(ready["metrics"] + "/livez", timeout=20) as answer:
            assert answer.status == 200
        server.stdin.close()
        assert server.wait(30) == 0
