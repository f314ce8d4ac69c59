"""The timers of the loop on which coroutines of functions run."""

import asyncio
import contextvars
import gc
import math
import random
import weakref

import pytest

from udf_server.hosting.loop_executor import FunctionLoop

ROUNDED = 0.0015
"""Times are rounded to milliseconds, and a clock of milliseconds is read twice."""


@pytest.fixture
def loop():
    loop = FunctionLoop()
    yield loop
    loop.close()


def run(loop, seconds=0.03):
    loop.call_later(seconds, loop.stop)
    loop.run_forever()


@pytest.mark.parametrize("seed", range(4))
def test_each_callback_is_called_once_and_not_early_unless_it_is_cancelled(loop, seed):
    print("seed", seed)
    chosen = random.Random(seed)
    called, timers, times = [], [], []

    def call(number):
        called.append((number, loop.time()))
        if chosen.random() < 0.2:
            begin()
        if chosen.random() < 0.3:
            cancel(chosen.randrange(len(timers)))

    def begin():
        delay = chosen.choice([-1, 0, 0.0001, 0.001, 0.002, chosen.uniform(0, 0.03)])
        times.append(loop.time() + max(delay, 0))
        if chosen.random() < 0.5:
            timers.append(loop.call_later(delay, call, len(timers)))
        else:
            timers.append(loop.call_at(loop.time() + delay, call, len(timers)))

    def cancel(number):
        timers[number].cancel()
        if number not in [known for known, _ in called]:
            cancelled.add(number)

    cancelled = set()
    for _ in range(300):
        begin()
    for number in chosen.sample(range(300), 30):
        cancel(number)
    run(loop, 0.3)
    numbers = [number for number, _ in called]
    assert sorted(numbers) == [number for number in range(len(timers)) if number not in cancelled]
    assert all(now >= times[number] - ROUNDED for number, now in called)
    assert not loop._due


class InAMillisecond(FunctionLoop):
    """A loop whose clock does not advance, so that times that are equal are in the same millisecond."""

    def time(self):
        return 1000.0


def test_callbacks_of_a_millisecond_are_called_in_the_order_in_which_they_were_scheduled():
    called, chosen, loop = [], random.Random(1), InAMillisecond()
    order = [chosen.randrange(1, 6) for _ in range(500)]
    for number, place in enumerate(order):
        loop.call_later(place * 0.01, called.append, (place, number))
    run(loop, 0.1)
    loop.close()
    assert called == sorted((place, number) for number, place in enumerate(order))


def test_a_callback_of_the_same_millisecond_can_cancel_the_next_one():
    called, loop = [], InAMillisecond()
    timers = []

    def cancel():
        timers[0].cancel()

    loop.call_later(0.005, cancel)
    timers.append(loop.call_later(0.005, called.append, "cancelled"))
    third = loop.call_later(0.005, called.append, "third")
    run(loop)
    loop.close()
    assert called == ["third"]
    assert timers[0].cancelled()
    assert not third.cancelled()


def test_callbacks_of_a_millisecond_share_a_timer_of_uvloop(loop):
    timers = [loop.call_later(10, print) for _ in range(1000)]
    assert len(loop._due) < 100
    for timer in timers:
        timer.cancel()
        timer.cancel()
    assert not loop._due


def test_an_error_of_a_callback_is_reported_and_the_others_are_called(loop):
    called, reported = [], []
    loop.set_exception_handler(lambda _, context: reported.append(context))
    when = loop.time() + 0.005
    failing = loop.call_at(when, int, "no number")
    loop.call_at(when, called.append, 1)
    run(loop)
    assert called == [1]
    (context,) = reported
    assert "Exception in callback <class 'int'>" in context["message"]
    assert isinstance(context["exception"], ValueError)
    assert context["handle"] is failing


def test_the_others_are_called_although_a_callback_ends_the_loop(loop):
    def leave():
        raise SystemExit(3)

    called = []
    when = loop.time() + 0.005
    loop.call_at(when, called.append, 1)
    loop.call_at(when, leave)
    loop.call_at(when, called.append, 2)
    with pytest.raises(SystemExit):
        loop.run_forever()
    run(loop)
    assert called == [1, 2]


def test_a_callback_has_the_context_of_its_call_or_the_one_that_is_given(loop):
    variable = contextvars.ContextVar("variable", default="none")
    found = []
    other = contextvars.copy_context()
    other.run(variable.set, "given")
    own = contextvars.copy_context()
    own.run(variable.set, "own")
    own.run(loop.call_later, 0.005, lambda: found.append(variable.get()))
    loop.call_later(0.01, lambda: found.append(variable.get()), context=other)
    empty = contextvars.Context()
    own.run(lambda: loop.call_later(0.015, lambda: found.append(variable.get()), context=empty))
    run(loop)
    assert found == ["own", "given", "none"]


class Thing:
    def method(self, argument):
        pass


def test_a_cancelled_timer_and_a_closed_loop_keep_nothing():
    loop = FunctionLoop()
    things = [Thing() for _ in range(4)]
    kept = [weakref.ref(thing) for thing in things]
    timers = [loop.call_later(60, things[0].method, things[1]), loop.call_later(60, things[2].method, things[3])]
    timers[0].cancel()
    things.clear()
    gc.collect()
    assert [thing() is None for thing in kept] == [True, True, False, False]
    loop.close()
    timers.clear()
    gc.collect()
    assert [thing() for thing in kept] == [None] * 4
    for delay in (0, 0.01):
        with pytest.raises(RuntimeError, match="closed"):
            loop.call_later(delay, print)


class Expiring:
    """Keeps the timer of its own method, as clients of services do."""

    def __init__(self, loop):
        self.expired = 0
        self.timer = loop.call_later(0.005, self.expire, self)

    def expire(self, _):
        self.expired += 1


def test_a_timer_that_was_called_keeps_nothing(loop):
    """The garbage collector rarely runs a full collection in a server."""
    gc.disable()
    try:
        expiring = Expiring(loop)
        run(loop)
        kept, timer = weakref.ref(expiring), weakref.ref(expiring.timer)
        assert (expiring.expired, expiring.timer.cancelled()) == (1, False)
        expiring.timer.cancel()
        assert expiring.timer.cancelled()
        del expiring
        assert (kept(), timer()) == (None, None)
    finally:
        gc.enable()


@pytest.mark.parametrize("delay", [math.inf, 1e9])
def test_a_timer_that_is_never_due_is_cancelled(loop, delay):
    loop.call_later(delay, print).cancel()
    run(loop, 0.002)


def test_sleeps_and_timeouts_are_those_of_asyncio(loop):
    async def main():
        began = loop.time()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await asyncio.sleep(10)
        async with asyncio.timeout(10):
            await asyncio.gather(*(asyncio.sleep(0.01) for _ in range(100)))
        return loop.time() - began

    assert 0.03 - 2 * ROUNDED <= loop.run_until_complete(main()) < 5
    assert not loop._due
