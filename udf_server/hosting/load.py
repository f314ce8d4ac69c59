"""The load of this process: for the number of its threads, and as reported to clients that choose a server."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from remote_udf.v1 import message_pb2 as pb

__all__ = ["Load", "LoadMeter", "ReportedLoad", "ThreadTime"]

ALONE_SECONDS, SHARED_SECONDS = 0.005, 0.0001
"""The time after which the interpreter's lock changes threads: Python's own, and while several functions take turns."""
PROBE_SECONDS, LATE_SECONDS = 0.0005, 0.0004
"""That time while a thread is about to wake, and how late the thread is then if it has to wait for the lock."""
RISE, FALL = 4, 8
"""The number of looks over which the share of those that found the lock taken is a mean, while it rises and falls."""
LOCKED = 0.93
"""If threads want the lock for more than this part of the time, more threads do not help."""
FULL = 0.9
"""If more than this fraction of the cores is in use, more threads do not help."""


@dataclass(frozen=True)
class Load:
    """One measurement."""

    seconds: float
    """Seconds since the previous measurement."""
    cores: float
    """Mean number of cores in use in that time."""
    saturated: bool
    """Whether more computing threads would not compute more."""
    lock: float = 0.0
    """The part of the time for which threads want the interpreter's lock."""
    late: bool = False
    """Whether one had to wait for the lock just now."""

    @property
    def useful_threads(self) -> int:
        """Number of threads that can compute at the same time; at least two if they do not want the same lock."""
        return max(round(self.cores), 1) if self.lock > LOCKED else max(math.ceil(self.cores), 2)

    def turn_seconds(self, functions: int) -> float:
        """How long a thread may keep the interpreter's lock, while this number of functions are in use.

        A call of a function that does little needs the lock several times, and waits for the calls of others that
        compute each time. Shorter turns cost a function that is alone some of its speed.
        """
        return SHARED_SECONDS if functions > 1 else ALONE_SECONDS


class ThreadTime(NamedTuple):
    """What the kernel says about a thread, in seconds; 0.0 if the system does not tell."""

    computed: float
    queued: float
    """For this time the thread has waited for a core."""

    @classmethod
    def of(cls, native_id: int) -> "ThreadTime":
        """The times of a thread of this process; zeros if there is none."""
        try:
            with open(f"/proc/self/task/{native_id}/schedstat", "rb") as file:  # noqa: PTH123 - ten times a second
                computed, queued, _ = map(int, file.read().split())
        except OSError:
            return cls(0.0, 0.0)
        return cls(computed / 1e9, queued / 1e9)


class LoadMeter:
    """Measures the load of this process. Use it from one thread only."""

    def __init__(self) -> None:
        self._machine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._looked, self._used = time.monotonic(), time.process_time()
        self._lock = 0.0

    def look(self, wait: Callable[[float], object]) -> Load:
        """Measure the load since the last call. `wait` sleeps for some seconds.

        A thread that wakes needs the lock. If it wakes late, and has not waited for a core, the lock was taken. So the
        time after which the lock changes threads is long enough to be measured while this thread sleeps.
        """
        before = sys.getswitchinterval()
        sys.setswitchinterval(max(before, PROBE_SECONDS))
        began, queued = time.monotonic(), ThreadTime.of(threading.get_native_id()).queued
        wait(PROBE_SECONDS)
        now, used = time.monotonic(), time.process_time()
        queued = ThreadTime.of(threading.get_native_id()).queued - queued
        late = now - began - PROBE_SECONDS - queued > LATE_SECONDS
        sys.setswitchinterval(before)
        self._lock += (1 - self._lock) / RISE if late else -self._lock / FALL
        seconds, cores = now - self._looked, (used - self._used) / max(now - self._looked, 1e-9)
        self._looked, self._used = now, used
        return Load(seconds, cores, self._lock > LOCKED or cores > FULL * self._machine, self._lock, late)


MEAN_SECONDS = 15.0
"""Time constant of the means. A shorter one would report chance, a longer one a slow server too late."""
LOOK_SECONDS = 1.0
MOST_SCALED = 4.0
"""The mean load is scaled by at most this factor to the streams that there are now."""


class ReportedLoad:
    """Exponential means of what the process does, measured once a second, so that no row costs anything.

    Use it on the server's event loop only.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.process_time,
        cores: float = 1.0,
    ) -> None:  # fmt: skip
        """`cpu_clock` returns the CPU seconds of the process, `cores` is the number of cores that it may use."""
        self._clock, self._cpu_clock, self._cores = clock, cpu_clock, cores
        self._looked, self._cpu = clock(), cpu_clock()
        self._busy = self._crowded = self._waiting = self._streams = 0.0

    def look(self, streams: int, crowded: bool, waiting: Iterable[float]) -> None:
        """Measure, at most once a second.

        Args:
            streams: The number of open streams.
            crowded: Whether rows of a function wait because all that could serve them is busy.
            waiting: For each stream with unanswered rows, the seconds for which its oldest message has waited for the
                first call of the function; 0 if no message waits.
        """
        now = self._clock()
        if (seconds := now - self._looked) < LOOK_SECONDS:
            return
        cpu = self._cpu_clock()
        busy = (cpu - self._cpu) / seconds / self._cores
        self._looked, self._cpu = now, cpu
        waits = list(waiting)
        new = 1.0 - math.exp(-seconds / MEAN_SECONDS)
        self._busy += new * (busy - self._busy)
        self._crowded += new * (crowded - self._crowded)
        self._waiting += new * ((sum(waits) / len(waits) if waits else 0.0) - self._waiting)
        self._streams += new * (streams - self._streams)

    def load(self, streams: int) -> float:
        """The busy share plus the seconds for which messages wait, of the streams that there are now.

        The busy share is that of the cores, or the share of the time in which a function was crowded, if that is more:
        one thread that waits for a slow service may be all that a function has.

        The means lag behind: many clients would choose a server that is idle only in the mean. So the load of a stream
        is taken to be that of the past, and the number of streams to be that of now.
        """
        scale = min(streams / max(self._streams, 1.0), MOST_SCALED)
        return (max(self._busy, self._crowded) + self._waiting) * scale

    def message(self, streams: int) -> pb.Load:
        """The load as it is sent to clients."""
        return pb.Load(load=self.load(streams), streams=streams, cores=self._cores)
