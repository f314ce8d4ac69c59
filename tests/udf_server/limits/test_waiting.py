"""Waiters of a guard: when the first one tries again, and what is left of those that never begin."""

import asyncio
import math
import threading
import time

import pytest

import udf_server as udf
from tests.udf_server.talk import eventually
from tests.waiting import wait_until
from udf_server.base.call_scope import CallScope, current_scope
from udf_server.base.extra_metrics import GuardMetrics
from udf_server.base.fairness import Party
from udf_server.base.metrics import ServerMetrics
from udf_server.limits.limited_calls import limited
from udf_server.limits.limiter import Limiter
from udf_server.limits.settings import GuardSettings
from udf_server.limits.sharing.ledger import Ledger
from udf_server.limits.waiters import TaskWaiter, ThreadWaiter


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
        self.guard = Limiter(
            "f@1", GuardSettings.parse("f", settings), GuardMetrics(ServerMetrics(), "f", "1"), lambda: self.now,
            shared=shared,
        )  # fmt: skip
        self.call = limited(f, self.guard).call


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
        guarded.now += 1.01
        guarded.guard.try_again()
        assert other.run_until_complete(asyncio.wait_for(guarded.call(3), 5)) == 3
        if ends == "cancelled":
            waiting.cancel()
        if ends != "never":
            blocked.run_until_complete(asyncio.wait([waiting]))
        guarded.now += 2.02 if ends == "run" else 1.01  # the call that has begun after all is owed, too
        assert other.run_until_complete(asyncio.wait_for(guarded.call(4), 5)) == 4
        assert guarded.guard.account.wait((1.0,), guarded.now) > 0, "the last call counts"
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
    guarded.now += 1.01
    guarded.guard.try_again()
    exchange()
    if ends == "cancelled":
        waiting.cancel()
    await asyncio.wait([waiting])
    guarded.now += 0.1
    assert [exchange()["rates"][0][name] for name in ("settled", "back")] == [[], []], "the ledger has granted nothing"
    guarded.now += 5.0
    sharing.failed("no answer")
    assert await asyncio.wait_for(guarded.call(3), 5) == 3


@pytest.mark.parametrize("settings", [{"max-concurrency": 1}, {"rate": "1/hour"}], ids=["place", "rate"])
async def test_nothing_is_claimed_for_calls_that_have_left(settings):
    guarded, ledger = Guarded(shared=True, **settings), Ledger()
    sharing = guarded.guard.sharing

    def exchange():
        claim = {**sharing.claim(), "member": "a", "fresh": "e1", "leave": False}
        sharing.granted(ledger.exchange(claim, guarded.now))
        return claim["wanted"] - guarded.guard.in_use

    waiting = [asyncio.ensure_future(guarded.call(-1)) for _ in range(4)]
    await asyncio.sleep(0)
    while guarded.guard.in_use == 0:
        exchange()
        guarded.now += 0.2
    running = waiting.pop(0)
    assert exchange() == 3
    for left, call in ((2, waiting[1]), (1, waiting[0]), (0, waiting[2])):  # the second one of them is the first
        call.cancel()
        await asyncio.wait([call])
        assert exchange() == left
    running.cancel()
    await asyncio.wait([running])


def test_nothing_is_claimed_for_a_thread_that_has_left():
    @udf.scalar(name="f")
    def f(x: int) -> int:
        return x

    guarded = Guarded(shared=True, **{"max-concurrency": 1})
    blocking = limited(f, guarded.guard).call
    scope = current_scope.set(CallScope(deadline=guarded.now))
    try:
        with pytest.raises(TimeoutError, match="did not allow the call before its deadline"):
            blocking(1)
    finally:
        current_scope.reset(scope)
    assert guarded.guard.sharing.claim()["wanted"] == 0


def on_a_thread(waiter, party, deadline=math.inf, clock=time.monotonic):
    """Waits on another thread. Returns the thread, and a list that gets what the wait has returned."""
    found = []

    def wait():
        current_scope.set(CallScope(party, deadline))
        found.append(waiter.wait(clock))

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, found


@pytest.mark.parametrize("what", ["admitted", "closed", "closed before", "deadline"])
def test_a_thread_that_waits_is_woken_by_what_happens_and_looks_at_no_flag_meanwhile(what):
    readings, party, waiter = [], Party("etl"), ThreadWaiter()

    def clock():
        readings.append(1)
        return time.monotonic()

    if what == "closed before":
        party.close()
    deadline = time.monotonic() + (0.2 if what == "deadline" else 3600.0)
    thread, found = on_a_thread(waiter, party, deadline, clock)
    wait_until(lambda: readings)
    if what == "admitted":
        waiter.admit(1.0)
    if what == "closed":
        party.close()
    thread.join(20)
    assert found == [what == "admitted"]
    assert len(readings) <= 3


def test_a_thread_tries_again_at_the_earliest_time_that_it_is_told():
    waiter, tried = ThreadWaiter(), []

    def retry():
        tried.append(time.monotonic())
        waiter.admit(1.0)

    began = time.monotonic()
    thread, found = on_a_thread(waiter, Party("etl"))
    for seconds in (30.0, 0.2, 40.0):
        waiter.try_after(seconds, retry)
    thread.join(20)
    assert (found, len(tried)) == ([True], 1) and tried[0] >= began + 0.2


class Callers:
    """Calls of two callers that wait for the same guard. `begun` has the callers of those that have begun."""

    def __init__(self, guarded):
        self.begun, self.tasks = [], {"one": [], "other": []}
        self._parties = {name: Party(name) for name in self.tasks}

        @udf.scalar(name="g")
        async def g(x: int) -> int:
            self.begun.append(current_scope.get().party.caller)
            return x

        self._call = limited(g, guarded.guard).call

    async def wait(self, name, number):
        token = current_scope.set(CallScope(self._parties[name]))
        self.tasks[name] += [asyncio.ensure_future(self._call(1)) for _ in range(number)]
        current_scope.reset(token)
        await asyncio.sleep(0)


async def test_a_caller_whose_calls_are_cancelled_when_it_is_their_turn_gets_as_many_calls_as_others():
    guarded = Guarded(rate="1/second")
    callers, cancelled = Callers(guarded), 0
    await guarded.call(1)
    await callers.wait("one", 20)
    await callers.wait("other", 20)
    for _ in range(20):
        turn = guarded.guard.waiting.first().party.caller
        guarded.now += 1.01
        guarded.guard.try_again()
        task = callers.tasks[turn].pop(0)
        if turn == "one" and cancelled < 5:
            cancelled += 1
            task.cancel()
        await asyncio.wait([task])
    assert cancelled == 5
    assert abs(callers.begun.count("one") - callers.begun.count("other")) <= 1
    for task in (*callers.tasks["one"], *callers.tasks["other"]):
        task.cancel()
        await asyncio.wait([task])


async def test_nobody_is_charged_for_calls_that_are_refused_because_the_guard_is_not_coordinated():
    guarded, ledger = Guarded(shared=True, rate="1/second"), Ledger()
    sharing, callers = guarded.guard.sharing, Callers(guarded)

    def exchange():
        sharing.granted(ledger.exchange({**sharing.claim(), "member": "a", "fresh": "e1", "leave": False}, guarded.now))

    exchange()
    await callers.wait("one", 8)
    guarded.now += 5.0
    sharing.failed("no answer")
    for task in callers.tasks["one"]:
        with pytest.raises(udf.RetryableError, match="its guard is not coordinated"):
            await task
    exchange()
    callers.tasks["one"].clear()
    await callers.wait("one", 3)
    await callers.wait("other", 3)
    for _ in range(40):
        exchange()
        guarded.now += 0.5
        await asyncio.sleep(0)
    await asyncio.wait([*callers.tasks["one"], *callers.tasks["other"]], timeout=20)
    assert len(callers.begun) == 6
    assert callers.begun[0] == "one", "it came first, and both were served alike"
