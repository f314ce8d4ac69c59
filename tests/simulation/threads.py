"""Simulated threads: greenlets that take turns. A thread runs until it waits; then the scheduler goes on.

So the synchronous code of the client, and plain functions on the server, run unchanged on virtual time. A
thread is never interrupted between two places where it waits: a race inside such a stretch is not found.
"""

import queue
from collections import deque
from collections.abc import Callable
from typing import Any

import greenlet

from remote_udf.threads import Threads
from tests.simulation.scheduler import Process

__all__ = ["SimulatedThread", "SimulatedThreads"]


class SimulatedThread(greenlet.greenlet):
    """A thread of a process."""

    def __init__(self, process: Process, name: str, number: int, run: Callable[[], object]) -> None:
        super().__init__(run, process.scheduler.hub)
        self.process, self.name, self.ident = process, name, number

    def start(self) -> None:
        self.process.threads[self] = None
        self.process.after(self.process.switch_seconds(), self.switch)


class _Waiter:
    """A thread that waits. It continues once: when it is woken, or after its timeout."""

    __slots__ = ("over", "thread")

    def __init__(self, thread: SimulatedThread) -> None:
        self.thread = thread
        self.over = False

    def wake(self, seconds: float) -> bool:
        """Continue the thread after this time. Returns False if it was continued before."""
        if self.over:
            return False
        self.over = True
        self.thread.process.after(seconds, self.thread.switch, True)
        return True

    def give_up(self) -> None:
        """Continue the thread now, unless it was woken."""
        if not self.over:
            self.over = True
            self.thread.switch(False)


class SimulatedThreads(Threads):
    """The threads of one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._started = 0

    def start(self, name: str, target: Callable[..., object], *arguments: Any) -> Any:
        self._started += 1

        def run() -> None:
            try:
                target(*arguments)
            except greenlet.GreenletExit:
                raise
            except BaseException as error:
                error.add_note(f"in thread {name} of {self.process.name}")
                self.process.scheduler.fail(error)
            finally:
                self.process.threads.pop(thread, None)

        thread = SimulatedThread(self.process, name, self._started, run)
        thread.start()
        return thread

    def ident(self) -> int:
        thread = greenlet.getcurrent()
        assert isinstance(thread, SimulatedThread)
        return thread.ident

    def sleep(self, seconds: float) -> None:
        self.wait(deque(), seconds)

    def event(self) -> Any:
        return _Event(self)

    def condition(self) -> Any:
        return _Condition(self)

    def lock(self) -> Any:
        return _Lock(self)

    def queue(self) -> Any:
        return _Queue(self)

    def wait(self, waiters: "deque[_Waiter]", timeout: float | None = None) -> bool:
        """Wait until `wake` resumes this thread: then True; False after the timeout."""
        thread = greenlet.getcurrent()
        if not isinstance(thread, SimulatedThread):
            raise AssertionError("something waits that runs on no thread: it blocks the event loop")
        if not thread.process.alive:
            raise greenlet.GreenletExit
        waiter = _Waiter(thread)
        waiters.append(waiter)
        if timeout is not None:
            thread.process.after(max(timeout, 0.0), waiter.give_up)
        return bool(thread.process.scheduler.hub.switch())

    def wake(self, waiters: "deque[_Waiter]") -> bool:
        """Resume the thread that waits longest. Returns whether there was one."""
        while waiters:
            if waiters.popleft().wake(self.process.switch_seconds()):
                return True
        return False


class _Event:
    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads, self._set = threads, False
        self._waiters: deque[_Waiter] = deque()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._threads.wake(self._waiters):
            pass

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._set or self._threads.wait(self._waiters, timeout) or self._set


class _Condition:
    """Threads switch only where they wait, so its lock has nothing to do."""

    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._waiters: deque[_Waiter] = deque()

    def __enter__(self) -> "_Condition":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        return self._threads.wait(self._waiters, timeout)

    def notify(self) -> None:
        self._threads.wake(self._waiters)

    def notify_all(self) -> None:
        while self._threads.wake(self._waiters):
            pass


class _Lock:
    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._owner: Any = None
        self._depth = 0
        self._waiters: deque[_Waiter] = deque()

    def __enter__(self) -> None:
        me = greenlet.getcurrent()
        while self._owner is not None and self._owner is not me:
            self._threads.wait(self._waiters)
        self._owner = me
        self._depth += 1

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._threads.wake(self._waiters)


class _Queue:
    def __init__(self, threads: SimulatedThreads) -> None:
        self._threads = threads
        self._items: deque[Any] = deque()
        self._waiters: deque[_Waiter] = deque()
        self.largest = 0

    def put(self, item: Any) -> None:
        self._items.append(item)
        self.largest = max(self.largest, len(self._items))
        self._threads.wake(self._waiters)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        while not self._items:
            if not self._threads.wait(self._waiters, timeout):
                raise queue.Empty
        return self._items.popleft()

    def empty(self) -> bool:
        return not self._items
