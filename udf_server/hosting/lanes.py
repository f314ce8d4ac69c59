"""Lanes: the threads authors' code runs on, apart from the server's own event loop.

An `async` function gets a thread with an event loop of its own, so that one that blocks stops neither
health checks nor other functions. Everything else runs on a bounded set of threads per function.
Python cannot stop a thread, so one whose call never comes back is written off and replaced, up to a
limit.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from udf_server.base.errors import FunctionBlocked
from udf_server.base.fairness import FairQueue, Party
from udf_server.hosting.load import Load
from udf_server.hosting.turns import DEFAULT_CALLS, Turns

__all__ = ["Job", "LoopLane", "ThreadLane"]

log = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_SECONDS = 1.0
"""What tasks left on a lane get to clean up when it stops."""


class LoopLane:
    """A daemon thread that runs an event loop."""

    def __init__(self, name: str, calls: int = DEFAULT_CALLS) -> None:
        """At most this many rows, or batches of vectorized functions, are in flight."""
        self.turns = Turns(calls)
        """Only for what runs on the loop."""
        self._loop = uvloop.new_event_loop()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=f"loop-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._stopped:
                try:
                    self._loop.run_forever()
                except BaseException:
                    # A task of the author's raised SystemExit or the like, which asyncio lets through.
                    log.exception("loop went on", extra={"lane": self._thread.name})
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_SECONDS))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    @property
    def thread_id(self) -> int:
        """Of the thread that runs it; 0 before it does."""
        return self._thread.ident or 0

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Runs the callback on the loop, soon; from any thread. Ignored once the lane is stopped."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Runs the coroutine on the loop; from any other thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """Ends the thread after what is ready has run; a loop that blocks is left behind."""
        self._stopped = True
        self.post(self._loop.stop)


NOMINAL = 0.005
"""Seconds of a thread that a job is charged before it has run."""

COMPUTING = 0.3
"""Cores that the threads of a function use, from which on it is one that computes."""

Job = Callable[[], bool]
"""Work for a thread. Returns False to end the thread, because it had been written off meanwhile."""


def _cpu_seconds(ident: int) -> float:
    """CPU time of a thread that lives. 0.0 where the system does not tell."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


class ThreadLane:
    """At most `limit` daemon threads that run jobs, of the party first that had the least of their time.

    They start on demand. `limit` is lowered while they keep the machine busy: see `adjust`.

    `write_off()` gives up a thread that a job never gave back, and lets another take its place; at
    most `losable` times.
    """

    def __init__(self, name: str, limit: int, losable: int) -> None:
        self.limit = limit
        self._allowed = limit
        """Threads that may run now."""
        self._seconds: dict[int, float] = {}
        """The CPU time of each thread when it was last looked at."""
        self._name = name
        self._losable = losable
        self._lost = 0
        self._alive = 0
        self._idle = 0
        self._jobs: FairQueue[Job] = FairQueue()
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def lost(self) -> int:
        """Threads written off and not come back."""
        return self._lost

    @property
    def crowded(self) -> bool:
        """Whether jobs wait for a thread. A job that can be interrupted then submits itself again and returns."""
        return (len(self._jobs) > 0 and not self._idle) or self._alive > self._allowed

    @property
    def waiting(self) -> int:
        """Jobs that wait for a thread."""
        return len(self._jobs)

    @property
    def allowed(self) -> int:
        """Threads that may run now."""
        return self._allowed

    def adjust(self, load: Load) -> None:
        """Looks whether more threads than now are of any use; called ten times a second, say.

        Where a function computes, more threads than there are cores, or than the interpreter's lock lets run, only
        take turns with each other, and with those of whoever comes next. Functions that wait keep all their threads.
        """
        with self._changed:
            seconds = {ident: _cpu_seconds(ident) for ident in self._seconds}
            used = sum(now - self._seconds[ident] for ident, now in seconds.items())
            self._seconds = seconds
            if load.saturated and used > COMPUTING * load.seconds:
                self._allowed = max(min(self._allowed, self._alive) * 3 // 4, min(load.useful_threads, self.limit))
            elif self._allowed < self.limit:
                self._allowed = min(self._allowed + self._allowed // 8 + 1, self.limit)
                self._staff()

    def submit(self, party: Party, job: Job) -> None:
        """Queues a job, which must not raise. Those who submit bound the queue: a few jobs per stream."""
        with self._changed:
            self._jobs.push(party, job)
            self._staff()

    def write_off(self) -> None:
        """One thread is stuck. Raises FunctionBlocked if too many are already."""
        with self._changed:
            if self._lost >= self._losable:
                raise FunctionBlocked(
                    f"{self._lost} calls of {self._name} never came back and hold a thread each; "
                    "no more are risked until the server is restarted"
                )
            self._lost += 1
            self._alive -= 1
            self._staff()

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """The calling thread, which runs a job, waits for a client meanwhile: another one takes its place.

        A client that reads nothing then costs other streams no thread, and its own one each.
        """
        with self._changed:
            self._alive -= 1
            self._staff()
        try:
            yield
        finally:
            with self._changed:
                self._alive += 1

    def stop(self) -> None:
        """Lets idle threads end and drops queued jobs; running ones finish or are left behind."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _staff(self) -> None:
        if self._idle < len(self._jobs) and self._alive < self._allowed:
            self._alive += 1
            threading.Thread(target=self._work, name=f"udf-{self._name}", daemon=True).start()
        self._changed.notify()

    def _work(self) -> None:
        ident = threading.get_ident()
        with self._changed:
            self._seconds[ident] = 0.0
        try:
            self._work_on()
        finally:
            with self._changed:
                del self._seconds[ident]

    def _work_on(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                found = None
                while not self._stopped and self._alive <= self._allowed and (found := self._jobs.pop(NOMINAL)) is None:
                    self._changed.wait()
                self._idle -= 1
                if found is None:
                    self._alive -= 1
                    return
            party, job = found
            began = time.monotonic()
            came_back = job()
            del job, found  # a thread that waits for the next one would keep a stream that has ended
            if not came_back:
                with self._changed:
                    self._lost -= 1
                return
            self._jobs.charge(party, time.monotonic() - began - NOMINAL)
            del party
