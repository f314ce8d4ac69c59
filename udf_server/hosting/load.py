"""Load shows whether this process already uses all the CPU time that it can get."""

import math
import os
import time
from dataclasses import dataclass

__all__ = ["Load", "LoadMeter"]

LATE_SECONDS = 0.004
"""If a thread wakes later than this, it waits for the interpreter's lock, which changes threads every 5 ms."""
LOCKED_CORES = 0.7
"""If more cores than this are in use, waiting for the lock means that Python code computes."""
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

    @property
    def useful_threads(self) -> int:
        """Number of threads that can compute at the same time, and at least two."""
        return max(math.ceil(self.cores), 2)


class LoadMeter:
    """Measures the load of this process. Use it from one thread only."""

    def __init__(self) -> None:
        self._machine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._looked, self._used = time.monotonic(), time.process_time()

    def look(self, waited: float) -> Load:
        """Measure the load. `waited` is the time for which the caller asked to sleep since the last call."""
        now, used = time.monotonic(), time.process_time()
        seconds, cores = now - self._looked, (used - self._used) / max(now - self._looked, 1e-9)
        self._looked, self._used = now, used
        locked = seconds - waited > LATE_SECONDS and cores > LOCKED_CORES
        return Load(seconds, cores, locked or cores > FULL * self._machine)
