"""Threads whose jobs do not return: they are given up, replaced up to a limit, and counted until they end."""

import threading
from random import Random

import pytest

from remote_udf.threads import Threads
from tests.waiting import wait_until
from udf_server.base.errors import FunctionBlocked
from udf_server.base.fairness import Party
from udf_server.hosting.thread_executor import ThreadExecutor

LIMIT, LOSABLE = 4, 2


class Counted(Threads):
    """Counts the threads that run."""

    def __init__(self):
        self.running = 0
        self._lock = threading.Lock()

    def start(self, name, work):
        with self._lock:
            self.running += 1

        def counted():
            try:
                work()
            finally:
                with self._lock:
                    self.running -= 1

        return super().start(name, counted)


class Hanging:
    """A job that hangs until it is released."""

    def __init__(self):
        self.entered, self.released, self.given_up = threading.Event(), threading.Event(), False

    def __call__(self):
        self.entered.set()
        assert self.released.wait(20)
        return not self.given_up


@pytest.mark.parametrize("seed", range(20))
def test_threads_that_live_and_that_are_lost_are_all_threads(seed):
    random, threads, hanging, refused = Random(seed), Counted(), [], 0
    executor = ThreadExecutor("f@1", LIMIT, LOSABLE, threads=threads)
    for _ in range(30):
        kept = [job for job in hanging if not job.given_up]
        step = random.choice(["submit", "give up", "release"])
        if (
            step == "submit"
            and threads.running < LIMIT + LOSABLE
            and len(kept) < LIMIT - max(executor.lost - LOSABLE, 0)
        ):
            job = Hanging()
            executor.submit(Party(), job)
            assert job.entered.wait(20)
            hanging.append(job)
        elif step == "give up" and kept:
            kept[0].given_up = True
            try:
                executor.write_off()
            except FunctionBlocked:
                refused += 1
                assert sum(job.given_up for job in hanging) > LOSABLE
        elif step == "release" and hanging:
            job = hanging.pop(random.randrange(len(hanging)))
            job.released.set()
        wait_until(lambda: executor.lost == sum(job.given_up for job in hanging))
        wait_until(lambda: executor.alive + executor.lost == threads.running <= LIMIT + LOSABLE)
    for job in hanging:
        job.released.set()
    executor.stop()
    wait_until(lambda: executor.alive == executor.lost == threads.running == 0)


def test_lost_threads_beyond_the_limit_are_not_replaced_until_one_returns():
    threads, hanging, done = Counted(), [Hanging() for _ in range(3)], threading.Event()
    executor = ThreadExecutor("f@1", 3, 1, threads=threads)
    for job in hanging:
        executor.submit(Party(), job)
    for job in hanging:
        assert job.entered.wait(20)
        job.given_up = True
    executor.write_off()
    for found in (2, 3):
        with pytest.raises(FunctionBlocked, match=f"^{found} calls of f@1 have not returned"):
            executor.write_off()
    another = [Hanging(), lambda: done.set() or True]
    for job in another:
        executor.submit(Party(), job)
    assert another[0].entered.wait(20)
    assert (threads.running, executor.lost, done.is_set()) == (4, 3, False)
    hanging[0].released.set()
    assert done.wait(20)
    for job in (*hanging, another[0]):
        job.released.set()
    executor.stop()
    wait_until(lambda: threads.running == executor.lost == 0)
