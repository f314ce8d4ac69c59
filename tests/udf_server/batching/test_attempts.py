"""One attempt of a merged call on a thread: it leaves the gate once, whoever ends it."""

import threading
from types import SimpleNamespace

import pytest

from remote_udf.threads import Threads
from udf_server.base.fairness import Party
from udf_server.batching.attempt import Attempt, InstanceGate
from udf_server.runners.calling import Returned


class World:
    """A gate for one call at a time, and attempts whose jobs the test runs."""

    def __init__(self):
        self.gate = InstanceGate(1, Threads())
        self.jobs, self.done, self.written_off, self.freed = [], [], 0, 0

    def attempt(self, evaluate):
        executor = SimpleNamespace(submit=lambda party, job: self.jobs.append(job), write_off=self._write_off)
        hosted = SimpleNamespace(function=SimpleNamespace(is_async=False), thread_executor=executor)
        attempt = Attempt(
            hosted, evaluate, lambda *answer: self.done.append(answer), Party("", ""),
            lambda callback, *arguments: callback(*arguments), lambda coroutine: None, lambda: 1.0, self._free,
            self.gate,
        )  # fmt: skip
        attempt.start()
        return attempt

    def _write_off(self):
        self.written_off += 1

    def _free(self):
        self.freed += 1

    def passes(self):
        """The number of calls that the gate lets pass now, one at least of two; it is given back."""
        passed = threading.Semaphore(0)
        threads = [threading.Thread(target=lambda: (self.gate.enter(), passed.release()), daemon=True) for _ in "ab"]
        for thread in threads:
            thread.start()
        count = int(passed.acquire(timeout=20))
        while passed.acquire(timeout=0.2):
            count += 1
        for _ in range(2):
            self.gate.leave()
        for thread in threads:
            thread.join(10)
        return count


def test_a_call_that_is_cancelled_while_it_runs_leaves_the_gate_when_it_ends():
    world = World()
    attempt = world.attempt(lambda: attempt.cancel() or Returned(None))
    assert world.jobs[0]() is True
    assert (world.done, world.freed) == ([], 1)
    assert world.passes() == 1


def test_a_call_that_is_cancelled_before_it_begins_leaves_the_gate():
    world = World()
    world.attempt(lambda: pytest.fail("it is not called")).cancel()
    assert world.jobs[0]() is True
    assert world.passes() == 1


def test_a_call_that_is_given_up_leaves_the_gate_once_and_its_thread_ends():
    world = World()

    def hangs():
        attempt.check(100.0, 2.0, 1.0)
        attempt.check(101.0, 2.0, 1.0)
        assert world.passes() == 1, "the gate is free although the call still runs"
        return Returned(None)

    attempt = world.attempt(hangs)
    assert world.jobs[0]() is False
    assert world.written_off == 1
    assert [type(error) for _, _, error in world.done] == [TimeoutError]
    assert world.passes() == 1


def test_a_call_that_has_answered_is_not_overdue():
    world = World()
    attempt = world.attempt(lambda: Returned(None))
    assert world.jobs[0]() is True
    attempt.check(100.0, 2.0, 1.0)
    assert (attempt.overdue, world.written_off, len(world.done)) == (False, 0, 1)
    assert world.passes() == 1
