"""ThreadExecutor is the bounded set of threads of one function.

Python cannot stop a thread. If a call does not return, its thread is written off and replaced, up to a limit.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator

from remote_udf.threads import THREADS, Threads
from udf_server.base.call_scope import runs
from udf_server.base.errors import FunctionBlocked
from udf_server.base.fairness import FairQueue, Party
from udf_server.hosting.load import Load, ThreadTime

__all__ = ["Job", "ThreadExecutor"]

NOMINAL = 0.005
"""Seconds of thread time that a job is charged before it has run."""

COMPUTING = 0.3
"""A function computes if its threads use more than this part of the CPU time of the process. So do threads, of their
own time."""
FREE, FREE_OF_COMPUTING = 0.75, 0.4
"""A function that computes gets more threads while threads want the interpreter's lock for less than this part of the
time; the second if its threads compute, and not only wait."""
LONG_SECONDS = 0.1
"""A job that runs for longer holds up other calls of its function. Jobs of short calls end before."""

Job = Callable[[], bool]
"""Work for a thread. It returns False to end the thread, because the thread was written off meanwhile."""


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
        times_of: Callable[[int], ThreadTime] = ThreadTime.of,
    ) -> None:
        """`times_of` returns the times of a thread with this identifier."""
        self.limit = limit
        self._threads = threads
        self._clock = clock
        self._times_of = times_of
        self.allowed = limit
        """Number of threads that may run now."""
        self._times: dict[int, ThreadTime] = {}
        """Those of each thread at the last `adjust`."""
        self._began: dict[int, float] = {}
        """When the job of each thread began; infinity if it runs none."""
        self._name = name
        self._losable = losable
        self.lost = 0
        """Number of threads that were written off and whose jobs have not returned."""
        self.alive = 0
        self._idle = 0
        self._jobs: FairQueue[Job] = FairQueue()
        self._changed = threads.condition()
        self._stopped = False

    @property
    def crowded(self) -> bool:
        """Whether jobs wait for a thread. If so, a job that can be interrupted submits itself again and returns."""
        return (len(self._jobs) > 0 and not self._idle) or self.alive > self.allowed

    @property
    def waiting(self) -> int:
        """Number of jobs that wait for a thread."""
        return len(self._jobs)

    def adjust(self, load: Load) -> None:
        """Adapt the number of allowed threads to the load. Call about ten times a second.

        If a function computes, threads beyond the number of cores, or beyond what the interpreter's lock allows, only
        take turns with each other and with those of other functions, which get the lock less often. One thread is
        enough where the lock is what is short, unless a long call holds up others. Functions that wait get all threads.
        """
        with self._changed:
            times = {thread: self._times_of(thread) for thread in self._times}
            used = sum(now.computed - self._times[thread].computed for thread, now in times.items())
            queued = sum(now.queued - self._times[thread].queued for thread, now in times.items())
            self._times = times
            busy = used > COMPUTING * load.cores * load.seconds
            if busy and load.saturated:
                now = self._clock()
                held_up = any(now - began > LONG_SECONDS for began in self._began.values())
                useful = max(load.useful_threads, 2 if held_up else 1)
                self.allowed = max(min(self.allowed, self.alive) * 7 // 8, min(useful, self.limit))
                return
            most = FREE_OF_COMPUTING if used > COMPUTING * (load.seconds * len(times) - queued) else FREE
            if self.crowded and (not busy or (load.lock < most and not load.late)):
                self.allowed = min(self.allowed + self.allowed // 2 + 1, self.limit)
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
            self.lost += 1
            self.alive -= 1
            self._staff()
            if self.lost > self._losable:
                raise FunctionBlocked(
                    f"{self.lost} calls of {self._name} have not returned, and each holds a thread; "
                    "further calls are rejected until the server is restarted"
                )

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Allow one more thread while the calling thread, which runs a job, waits for a client within the block.

        So a client that does not read takes no thread from other streams, and one thread per stream of its own.
        """
        with self._changed:
            self.alive -= 1
            self._staff()
        try:
            yield
        finally:
            with self._changed:
                self.alive += 1

    def stop(self) -> None:
        """End idle threads and drop queued jobs. Running jobs finish, or remain if they hang."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def _staff(self) -> None:
        # Lost threads beyond the limit keep their places: there are never more threads than `limit` and `losable`.
        kept = max(self.lost - self._losable, 0)
        if self._idle < len(self._jobs) and self.alive + kept < self.allowed:
            self.alive += 1
            self._threads.start(f"udf-{self._name}", self._work)
        self._changed.notify()

    def _work(self) -> None:
        runs(self._name)
        ident = self._threads.ident()
        with self._changed:
            self._times[ident], self._began[ident] = ThreadTime(0.0, 0.0), math.inf
        try:
            self._work_on(ident)
        finally:
            with self._changed:
                del self._times[ident], self._began[ident]

    def _work_on(self, ident: int) -> None:
        while True:
            with self._changed:
                self._idle += 1
                found = None
                while not self._stopped and self.alive <= self.allowed and (found := self._jobs.pop(NOMINAL)) is None:
                    self._changed.wait()
                self._idle -= 1
                if found is None:
                    self.alive -= 1
                    return
            party, job = found
            began = self._began[ident] = self._clock()
            came_back = job()
            self._began[ident] = math.inf
            del job, found  # otherwise a thread that waits for its next job would keep an ended stream in memory
            if not came_back:
                with self._changed:
                    self.lost -= 1
                    self._staff()
                return
            self._jobs.charge(party, self._clock() - began - NOMINAL)
            del party
