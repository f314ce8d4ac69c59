"""Executors are the threads that run the authors' code, separate from the server's own event loop.

Each `async` function gets a thread with its own event loop: if it blocks, health checks and
other functions continue. Everything else runs on a bounded set of threads per function.
Python cannot stop a thread. If a call does not return, its thread is written off and replaced, up to a
limit.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import uvloop

from remote_udf.threads import THREADS, Threads
from udf_server.base.errors import FunctionBlocked
from udf_server.base.fairness import FairQueue, Party
from udf_server.base.running import runs
from udf_server.hosting.load import Load
from udf_server.hosting.turns import DEFAULT_CALLS, Turns

__all__ = ["Executors", "Job", "LoopExecutor", "ThreadExecutor"]

log = logging.getLogger(__name__)

T = TypeVar("T")

CANCEL_SECONDS = 1.0
"""How long tasks left on an executor may take to clean up when the executor stops."""
STOP_SECONDS = 3.0
"""How long to wait for the thread of a stopped executor. A blocked loop never ends; other loops need little more than
CANCEL_SECONDS."""


class LoopExecutor:
    """A daemon thread that runs an event loop."""

    def __init__(
        self,
        name: str,
        calls: int = DEFAULT_CALLS,
        *,
        threads: Threads = THREADS,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop,
        new_turns: Callable[[int], Turns] = Turns,
    ) -> None:
        """`calls` is the maximum number of rows, or of batches of vectorized functions, in flight."""
        self.turns = new_turns(calls)
        """Use it only in code that runs on the loop."""
        self._function = name
        self._loop = new_loop()
        self._stopped = False
        self._ended: Future[None] = Future()
        self._thread = threads.start(f"loop-{name}", self._run)

    def _run(self) -> None:
        runs(self._function)
        asyncio.set_event_loop(self._loop)
        try:
            while not self._stopped:
                try:
                    self._loop.run_forever()
                except BaseException:
                    # A task of the author's raised SystemExit or a similar exception, which asyncio does not catch.
                    log.exception("event loop continues after an exception", extra={"function": self._function})
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_SECONDS))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            self._ended.set_result(None)

    @property
    def thread_id(self) -> int:
        """Identifier of the thread that runs the loop; 0 before the thread runs."""
        return self._thread.ident or 0

    def post(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Schedule the callback on the loop. Safe to call from any thread. Ignored after the executor has stopped."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Run the coroutine on the loop. Call it from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """End the thread after the callbacks that are ready have run. If the loop is blocked, its thread remains."""
        self._stopped = True
        self.post(self._loop.stop)

    async def ended(self) -> None:
        """Wait on another loop until the thread of a stopped executor has ended, at most STOP_SECONDS.

        If the process exits while the thread still runs, the interpreter ends the thread wherever it is. If that is in
        C++ code, such as Arrow's, the process aborts.
        """
        await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=STOP_SECONDS)


NOMINAL = 0.005
"""Seconds of thread time that a job is charged before it has run."""

COMPUTING = 0.3
"""If the threads of a function use more cores than this, the function is treated as one that computes."""

Job = Callable[[], bool]
"""Work for a thread. It returns False to end the thread, because the thread was written off meanwhile."""


def _cpu_seconds(ident: int) -> float:
    """CPU time of a living thread; 0.0 if the system does not measure it."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    return time.clock_gettime(time.pthread_getcpuclockid(ident))


class ThreadExecutor:
    """At most `limit` daemon threads that run jobs. The party that has used the least thread time comes first.

    Threads start on demand. While they keep the machine busy, fewer are allowed: see `adjust`.

    `write_off()` gives up a thread whose job does not return, so that another can replace it. At
    most `losable` of them are replaced at a time.
    """

    def __init__(
        self,
        name: str,
        limit: int,
        losable: int,
        *,
        threads: Threads = THREADS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self._threads = threads
        self._clock = clock
        self._allowed = limit
        """Number of threads that may run now."""
        self._seconds: dict[int, float] = {}
        """The CPU time of each thread at the last `adjust`."""
        self._name = name
        self._losable = losable
        self._lost = 0
        self._alive = 0
        self._idle = 0
        self._jobs: FairQueue[Job] = FairQueue()
        self._changed = threads.condition()
        self._stopped = False

    @property
    def lost(self) -> int:
        """Number of threads that were written off and whose jobs have not returned."""
        return self._lost

    @property
    def crowded(self) -> bool:
        """Whether jobs wait for a thread. If so, a job that can be interrupted submits itself again and returns."""
        return (len(self._jobs) > 0 and not self._idle) or self._alive > self._allowed

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for a thread."""
        return len(self._jobs)

    @property
    def allowed(self) -> int:
        """Number of threads that may run now."""
        return self._allowed

    def adjust(self, load: Load) -> None:
        """Adapt the number of allowed threads to the load. Call about ten times a second.

        If a function computes, threads beyond the number of cores, or beyond what the interpreter's lock allows, only
        take turns with each other and with those of other functions. Functions that wait keep all their threads.
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
        """Queue a job, which must not raise. Callers must bound the queue: submit only a few jobs per stream."""
        with self._changed:
            self._jobs.push(party, job)
            self._staff()

    def write_off(self) -> None:
        """Give up a thread that hangs. Its job must return False.

        Raises FunctionBlocked if there are too many of them. Then the thread is given up, but not replaced.
        """
        with self._changed:
            self._lost += 1
            self._alive -= 1
            self._staff()
            if self._lost > self._losable:
                raise FunctionBlocked(
                    f"{self._lost} calls of {self._name} have not returned, and each holds a thread; "
                    "further calls are rejected until the server is restarted"
                )

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Allow one more thread while the calling thread, which runs a job, waits for a client within the block.

        So a client that does not read takes no thread from other streams, and one thread per stream of its own.
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
        """End idle threads and drop queued jobs. Running jobs finish, or remain if they hang."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _staff(self) -> None:
        # Lost threads beyond the limit keep their places: there are never more threads than `limit` and `losable`.
        kept = max(self._lost - self._losable, 0)
        if self._idle < len(self._jobs) and self._alive + kept < self._allowed:
            self._alive += 1
            self._threads.start(f"udf-{self._name}", self._work)
        self._changed.notify()

    def _work(self) -> None:
        runs(self._name)
        ident = self._threads.ident()
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
            began = self._clock()
            came_back = job()
            del job, found  # otherwise a thread that waits for its next job would keep an ended stream in memory
            if not came_back:
                with self._changed:
                    self._lost -= 1
                    self._staff()
                return
            self._jobs.charge(party, self._clock() - began - NOMINAL)
            del party


@dataclass(frozen=True)
class Executors:
    """Makes the executors of a server's functions. A test can replace what they run on."""

    threads: Threads = THREADS
    clock: Callable[[], float] = time.monotonic
    new_loop: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    new_turns: Callable[[int], Turns] = Turns
    later: Callable[[float, Callable[[], object]], Any] = lambda seconds, callback: (
        asyncio.get_running_loop().call_later(seconds, callback)
    )
    """Calls back on the running loop after this time. Returns an object with `cancel`."""

    def loop_executor(self, name: str, calls: int) -> LoopExecutor:
        return LoopExecutor(name, calls, threads=self.threads, new_loop=self.new_loop, new_turns=self.new_turns)

    def thread_executor(self, name: str, limit: int, losable: int) -> ThreadExecutor:
        return ThreadExecutor(name, limit, losable, threads=self.threads, clock=self.clock)
