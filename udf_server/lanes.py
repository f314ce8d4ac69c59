"""Lanes: the threads authors' code runs on, apart from the server's own event loop.

An `async` function gets a thread with an event loop of its own, so that one that blocks stops neither
health checks nor other functions. Everything else runs on a bounded set of threads per function.
Python cannot stop a thread, so one whose call never comes back is written off and replaced, up to a
limit.
"""

import asyncio
import collections
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import uvloop

from udf_server.errors import FunctionBlocked

__all__ = ["Job", "LoopLane", "ThreadLane"]

log = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_SECONDS = 1.0
"""What tasks left on a lane get to clean up when it stops."""


class LoopLane:
    """A daemon thread that runs an event loop."""

    def __init__(self, name: str) -> None:
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


Job = Callable[[], bool]
"""Work for a thread. Returns False to end the thread, because it had been written off meanwhile."""


class ThreadLane:
    """At most `limit` daemon threads that run jobs first come, first served; they start on demand.

    `write_off()` gives up a thread that a job never gave back, and lets another take its place; at
    most `losable` times.
    """

    def __init__(self, name: str, limit: int, losable: int) -> None:
        self.limit = limit
        self._name = name
        self._losable = losable
        self._lost = 0
        self._alive = 0
        self._idle = 0
        self._jobs: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def lost(self) -> int:
        """Threads written off and not come back."""
        return self._lost

    @property
    def crowded(self) -> bool:
        """Whether jobs wait for a thread. A job that can be interrupted then submits itself again and returns."""
        return bool(self._jobs) and not self._idle

    def submit(self, job: Job) -> None:
        """Queues a job, which must not raise. Those who submit bound the queue: a few jobs per stream."""
        with self._changed:
            self._jobs.append(job)
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

    def stop(self) -> None:
        """Lets idle threads end and drops queued jobs; running ones finish or are left behind."""
        with self._changed:
            self._stopped = True
            self._jobs.clear()
            self._changed.notify_all()

    def _staff(self) -> None:
        if self._idle < len(self._jobs) and self._alive < self.limit:
            self._alive += 1
            threading.Thread(target=self._work, name=f"udf-{self._name}", daemon=True).start()
        self._changed.notify()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                while not self._jobs and not self._stopped:
                    self._changed.wait()
                self._idle -= 1
                if self._stopped:
                    self._alive -= 1
                    return
                job = self._jobs.popleft()
            came_back = job()
            del job  # a thread that waits for the next one would keep a stream that has ended
            if not came_back:
                with self._changed:
                    self._lost -= 1
                return
