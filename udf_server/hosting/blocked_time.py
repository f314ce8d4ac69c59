"""BlockedTime tells a blocked loop from one whose process or thread gets no CPU time."""

import os
from typing import NamedTuple

__all__ = ["LATE_SECONDS", "LOOK_SECONDS", "BlockedTime", "ThreadReading", "read_thread"]

LOOK_SECONDS = 0.1
LATE_SECONDS = 0.05
"""If the thread that looks wakes later than this, the process was short of CPU time, or suspended."""
_TICKS = os.sysconf("SC_CLK_TCK")


class ThreadReading(NamedTuple):
    """What the kernel says about a thread."""

    runnable: bool
    """Whether it runs or waits for a core, and does not sleep."""
    cpu: float
    """Seconds that it has run."""


def read_thread(native_id: int) -> ThreadReading | None:
    """Read the state of a thread of this process; None if there is none, or if the system does not tell."""
    try:
        with open(f"/proc/self/task/{native_id}/stat", "rb") as file:  # noqa: PTH123 - ten times a second
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return ThreadReading(fields[0] == b"R", (int(fields[11]) + int(fields[12])) / _TICKS)


class BlockedTime:
    """The time for which a callback of a loop has blocked it, as far as that is its own doing.

    Time counts in which the thread of the loop computes, and in which it sleeps although the process gets CPU time.
    Time in which it waits for a core or for the interpreter's lock does not: another callback would wait as long.
    """

    def __init__(self, thread: ThreadReading | None) -> None:
        """`thread` is a reading from when the callback was requested."""
        self._first = self._last = thread.cpu if thread else 0.0
        self._slept = 0.0
        self.seconds = 0.0

    def look(self, late: float, thread: ThreadReading | None) -> None:
        """Count the time since the last look.

        Args:
            late: How many seconds later than requested the thread that looks has woken.
            thread: The thread of the loop; None if nothing is known about it.
        """
        sleeps = True
        if thread is not None:
            sleeps = not thread.runnable and thread.cpu == self._last
            self._last = thread.cpu
        if sleeps and late <= LATE_SECONDS:
            self._slept += LOOK_SECONDS
        self.seconds = self._slept + self._last - self._first
