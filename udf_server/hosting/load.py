"""Load: whether this process has all the CPU time it can get."""

import math
import os
import time
from dataclasses import dataclass

__all__ = ["Load", "LoadMeter"]

LATE_SECONDS = 0.004
"""A thread that wakes later than this waits for the interpreter's lock, which is passed on every 5 ms."""
LOCKED_CORES = 0.7
"""Cores in use, from which on waiting for the lock means that Python code computes."""
FULL = 0.9
"""Part of the cores in use, from which on more threads get nothing."""


@dataclass(frozen=True)
class Load:
    """One look."""

    seconds: float
    """Since the last one."""
    cores: float
    """In use meanwhile."""
    saturated: bool
    """More threads that compute would not compute more."""

    @property
    def useful_threads(self) -> int:
        """Threads that compute at the same time, and one that may take its turn with them."""
        return max(math.ceil(self.cores), 2)


class LoadMeter:
    """Looks at this process. For one thread."""

    def __init__(self) -> None:
        self._machine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self._looked, self._used = time.monotonic(), time.process_time()

    def look(self, waited: float) -> Load:
        """`waited` is how long the caller wanted to sleep since the last look, and did nothing else."""
        now, used = time.monotonic(), time.process_time()
        seconds, cores = now - self._looked, (used - self._used) / max(now - self._looked, 1e-9)
        self._looked, self._used = now, used
        locked = seconds - waited > LATE_SECONDS and cores > LOCKED_CORES
        return Load(seconds, cores, locked or cores > FULL * self._machine)
