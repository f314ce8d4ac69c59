"""How many threads a function may use: by what its threads do, and by what the process has to give."""

import sys
import threading
import time

import pytest

from tests.waiting import wait_until
from udf_server.base.fairness import Party
from udf_server.hosting.load import Load, LoadMeter, ThreadTime
from udf_server.hosting.thread_executor import ThreadExecutor

LIMIT = 16
LOCKED = Load(0.1, 1.0, saturated=True, lock=1.0, late=True)
FULL = Load(0.1, 4.0, saturated=True)
CALM = Load(0.1, 0.2, saturated=False)


class World:
    """An executor whose places are all taken by jobs that run until the end of the test, while more jobs wait."""

    def __init__(self):
        self.now, self.computed, self.begun, self._ended = 0.0, 0.0, [], threading.Event()
        self.executor = ThreadExecutor(
            "f@1", LIMIT, 4, clock=lambda: self.now, times_of=lambda thread: ThreadTime(self.computed / LIMIT, 0.0)
        )
        for _ in range(4 * LIMIT):
            self.executor.submit(Party("job"), self._job)
        wait_until(lambda: len(self.begun) == LIMIT)

    def _job(self):
        self.begun.append(None)
        return self._ended.wait(60)

    def allowed(self, *loads, cores):
        """After looks with these loads, between which the threads have used this number of cores together."""
        for load in loads:
            self.computed += cores * load.seconds
            self.executor.adjust(load)
        return self.executor.allowed

    def end(self):
        self.executor.stop()
        self._ended.set()


@pytest.fixture
def world():
    made = World()
    yield made
    made.end()


def test_calls_that_want_the_lock_get_one_thread(world):
    assert world.allowed(*[LOCKED] * 40, cores=1.0) == 1


def test_calls_that_compute_without_the_lock_get_as_many_threads_as_cores_are_used(world):
    assert world.allowed(*[FULL] * 40, cores=4.0) == 4


def test_a_long_call_does_not_hold_up_the_others(world):
    assert world.allowed(*[LOCKED] * 40, cores=1.0) == 1
    world.now = 1.0
    assert world.allowed(LOCKED, cores=1.0) == 2


def test_calls_that_wait_keep_all_threads_though_another_function_takes_the_lock(world):
    assert world.allowed(*[LOCKED] * 40, cores=0.1) == LIMIT
    assert world.allowed(*[LOCKED] * 40, cores=1.0) == 1
    assert world.allowed(*[LOCKED] * 10, cores=0.1) == LIMIT


@pytest.mark.parametrize(
    ("load", "more"),
    [
        (CALM, True),
        (Load(0.1, 0.9, saturated=False, lock=0.7), True),
        (Load(0.1, 0.9, saturated=False, lock=0.7, late=True), False),
        (Load(0.1, 0.9, saturated=False, lock=0.8), False),
    ],
)
def test_threads_come_back_once_the_lock_is_free(world, load, more):
    assert world.allowed(*[LOCKED] * 40, cores=1.0) == 1
    assert world.allowed(*[load] * 10, cores=0.5) == (LIMIT if more else 1)


def test_a_thread_that_computes_all_the_time_gets_no_second_one_while_others_want_the_lock(world):
    world.allowed(*[LOCKED] * 40, cores=1.0)
    assert world.allowed(*[Load(0.1, 0.9, saturated=False, lock=0.7)] * 10, cores=0.9 * LIMIT) == 1


def test_no_thread_comes_back_for_nothing():
    idle = ThreadExecutor("f@1", LIMIT, 4)
    idle.allowed = 1
    for _ in range(10):
        idle.adjust(CALM)
    assert idle.allowed == 1


def test_a_thread_that_keeps_the_lock_is_noticed_and_the_interval_is_restored():
    before, stop = sys.getswitchinterval(), threading.Event()

    def computes():
        while not stop.is_set():
            sum(range(10_000))

    thread = threading.Thread(target=computes)
    thread.start()
    try:
        meter = LoadMeter()
        wait_until(lambda: meter.look(time.sleep).lock > 0.5)
    finally:
        stop.set()
        thread.join()
    wait_until(lambda: meter.look(time.sleep).lock < 0.1)
    assert sys.getswitchinterval() == before
