"""The breaker of a guard that processes share, and calls that are rarer than its delay."""

import asyncio

import pytest

import udf_server as udf
from tests.udf_server.talk import eventually
from udf_server.base.errors import CircuitOpen
from udf_server.base.metrics import ServerMetrics
from udf_server.coordination.ledger import Ledger
from udf_server.guards.guard import Guard
from udf_server.guards.guard_metrics import GuardMetrics
from udf_server.guards.settings import GuardSettings

DELAY = 5.0


class World:
    """Processes that share a ledger, each with a guarded function. A test moves the clock and sends the claims."""

    def __init__(self, blocking=False):
        self.now, self.ledger, self.healthy, self.calls = 1_000.0, Ledger(), False, 0
        self.settings = GuardSettings.parse("f", {"breaker-failures": 2, "breaker-delay": "5 s"})
        self.blocking = blocking

    def call(self):
        self.calls += 1
        if not self.healthy:
            raise udf.RetryableError("the service is down")
        return 1

    def process(self, name):
        return Process(name, self)


class Process:
    def __init__(self, name, world):
        self.name, self.world = name, world
        self.guard = Guard(
            "f@1", world.settings, GuardMetrics(ServerMetrics(), "f", "1"), lambda: world.now, shared=True
        )

        async def f(x: int) -> int:
            return world.call()

        def blocking(x: int) -> int:
            return world.call()

        self._function = self.guard.wrap(udf.scalar(name="f")(blocking if world.blocking else f))
        self.exchange()

    def call(self):
        call = self._function.call
        return asyncio.ensure_future(asyncio.to_thread(call, 1) if self.world.blocking else call(1))

    def exchange(self):
        sharing = self.guard.sharing
        claim = {**sharing.claim(), "member": self.name, "fresh": "e", "leave": False}
        sharing.granted(self.world.ledger.exchange(claim, self.world.now))

    async def answered(self):
        """The result of a call, for which this process sends claims as soon as they are wanted."""
        call = self.call()
        await eventually(lambda: call.done() or self.guard.sharing._wants_probe)
        self.exchange()
        return await call

    async def fail(self):
        for _ in range(2):
            with pytest.raises(udf.RetryableError, match="the service is down"):
                await self.call()
        self.exchange()


@pytest.fixture(params=[False, True], ids=["async", "def"])
def world(request):
    return World(request.param)


async def test_calls_that_are_rarer_than_the_delay_close_the_circuit(world):
    process = world.process("a")
    await process.fail()
    world.healthy = True
    for _ in range(5):
        for _ in range(60):
            world.now += 0.1
            process.exchange()
        assert await process.answered() == 1
        process.exchange()
    assert process.guard.sharing.closed


async def test_one_of_the_calls_of_all_processes_is_the_test_call_and_the_others_are_refused(world):
    processes = [world.process(name) for name in "abc"]
    await processes[0].fail()
    for process in processes:
        process.exchange()
    world.now += DELAY + 0.1
    before, calls = world.calls, [process.call() for process in processes for _ in range(3)]
    await eventually(lambda: all(process.guard.sharing._wants_probe for process in processes))
    await eventually(lambda: sum(call.done() for call in calls) == 6)
    for process in processes:
        process.exchange()
    errors = [type(error) for error in await asyncio.gather(*calls, return_exceptions=True)]
    assert (world.calls - before, errors.count(udf.RetryableError), errors.count(CircuitOpen)) == (1, 1, 8)


async def a_call_that_wants_to_test(world):
    """A process whose circuit has been open for long enough, and its call that waits for the claim."""
    process = world.process("a")
    await process.fail()
    world.healthy = True
    world.now += DELAY + 0.1
    call = process.call()
    await eventually(lambda: process.guard.sharing._wants_probe)
    return process, call


async def test_a_call_is_refused_if_its_claim_is_lost_and_the_next_call_asks_again(world):
    process, call = await a_call_that_wants_to_test(world)
    process.guard.sharing.claim()
    process.guard.sharing.failed("no answer")
    with pytest.raises(CircuitOpen):
        await call
    assert await process.answered() == 1


async def test_a_call_that_is_cancelled_meanwhile_leaves_its_place():
    process, call = await a_call_that_wants_to_test(World())
    call.cancel()
    await asyncio.wait([call])
    assert (call.cancelled(), process.guard.gate._in_use) == (True, 0)
    assert await process.answered() == 1
