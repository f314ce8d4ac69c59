"""Waiters of a guard: when the first one tries again, and what is left of those that never begin."""

import asyncio

import pytest

import udf_server as udf
from tests.udf_server.streams import eventually
from udf_server.base.metrics import ServerMetrics
from udf_server.coordination.ledger import Ledger
from udf_server.guards.guard import Guard
from udf_server.guards.guard_metrics import GuardMetrics
from udf_server.guards.settings import GuardSettings
from udf_server.guards.waiting import TaskWaiter


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop whose clock the test moves; timers fire when the loop runs next."""

    def __init__(self):
        self.now = 100.0
        self.timers = []
        super().__init__()

    def time(self):
        return self.now

    def call_at(self, when, callback, *arguments, context=None):
        self.timers.append(super().call_at(when, callback, *arguments, context=context))
        return self.timers[-1]

    @property
    def pending(self):
        return [round(timer.when() - 100.0, 3) for timer in self.timers if not timer.cancelled()]


def on_a_manual_loop(check):
    loop = ManualLoop()
    try:
        loop.run_until_complete(check(loop))
    finally:
        loop.close()


def test_a_waiter_has_one_timer_however_often_it_is_told_to_try():
    async def check(loop):
        waiter = TaskWaiter((1.0,))
        for _ in range(50):
            waiter.try_after(0.5, lambda: None)
        assert loop.pending == [0.5]

    on_a_manual_loop(check)


def test_an_earlier_time_replaces_a_later_one_which_is_ignored_after_it():
    async def check(loop):
        waiter, tried = TaskWaiter((1.0,)), []
        for seconds in (0.5, 0.2, 0.7):
            waiter.try_after(seconds, lambda seconds=seconds: tried.append(seconds))
        assert loop.pending == [0.2]
        loop.now += 1.0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert tried == [0.2]

    on_a_manual_loop(check)


def test_a_waiter_that_has_tried_can_be_told_to_try_again():
    async def check(loop):
        waiter, tried = TaskWaiter((1.0,)), []

        def retry():
            tried.append(loop.now)
            if len(tried) < 3:
                waiter.try_after(0.5, retry)

        waiter.try_after(0.5, retry)
        for _ in range(3):
            loop.now += 0.6
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert len(tried) == 3

    on_a_manual_loop(check)


async def test_a_thread_sets_the_timer_on_the_loop_of_the_waiter():
    waiter, tried = TaskWaiter((1.0,)), []
    await asyncio.to_thread(waiter.try_after, 0.0, lambda: tried.append(asyncio.get_running_loop()))
    await eventually(lambda: tried)
    assert tried == [asyncio.get_running_loop()]


class Guarded:
    """A guarded function that returns its argument, or waits for ever for a negative one. The test moves the clock."""

    def __init__(self, *, shared=False, **settings):
        @udf.scalar(name="f")
        async def f(x: int) -> int:
            if x < 0:
                await asyncio.get_running_loop().create_future()
            return x

        self.now = 100.0
        self.guard = Guard(
            "f@1", GuardSettings.parse("f", settings), GuardMetrics(ServerMetrics(), "f", "1"), lambda: self.now,
            shared=shared,
        )  # fmt: skip
        self.call = self.guard.wrap(f).call


@pytest.mark.parametrize("ends", ["cancelled", "run", "never"])
def test_what_a_call_took_that_was_admitted_on_a_loop_that_was_replaced_is_returned(ends):
    """The call waits; its turn comes while its loop is blocked; then its function gets another loop."""
    guarded = Guarded(rate="1/second")
    blocked, other = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def one_waits():
        await guarded.call(1)
        waiting = asyncio.ensure_future(guarded.call(2))
        await asyncio.sleep(0)
        return waiting

    try:
        waiting = blocked.run_until_complete(one_waits())
        guarded.now += 1.0
        guarded.guard._retry()
        assert other.run_until_complete(asyncio.wait_for(guarded.call(3), 5)) == 3
        if ends == "cancelled":
            waiting.cancel()
        if ends != "never":
            blocked.run_until_complete(asyncio.wait([waiting]))
        guarded.now += 1.0
        assert other.run_until_complete(asyncio.wait_for(guarded.call(4), 5)) == 4
        assert guarded.guard._limits.take((1.0,)) > 0, "the last call counts"
        if ends == "never":
            waiting.cancel()
            blocked.run_until_complete(asyncio.wait([waiting]))
    finally:
        blocked.close()
        other.close()


@pytest.mark.parametrize("ends", ["begins", "cancelled"])
async def test_a_call_settles_with_the_limits_that_it_took_from_although_others_replaced_them(ends):
    """Its turn comes while the process is alone; before it begins the process is coordinated again."""
    guarded, ledger = Guarded(shared=True, rate="1/second", **{"without-coordination": "fail-open"}), Ledger()
    sharing = guarded.guard.sharing

    def exchange():
        claim = {**sharing.claim(), "member": "a", "fresh": "e1", "leave": False}
        sharing.granted(ledger.exchange(claim, guarded.now))
        return claim

    exchange()
    guarded.now += 5.0
    sharing.failed("no answer")
    await guarded.call(1)
    waiting = asyncio.ensure_future(guarded.call(2))
    await asyncio.sleep(0)
    guarded.now += 1.0
    guarded.guard._retry()
    exchange()
    if ends == "cancelled":
        waiting.cancel()
    await asyncio.wait([waiting])
    guarded.now += 0.1
    assert [exchange()["rates"][0][name] for name in ("settled", "back")] == [0.0, []], "the ledger has granted nothing"
    guarded.now += 5.0
    sharing.failed("no answer")
    assert await asyncio.wait_for(guarded.call(3), 5) == 3
