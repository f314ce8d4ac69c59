"""ReportedLoad is the load of this process as clients are told it, so that they choose among servers."""

import math
import time
from collections.abc import Callable, Iterable

from remote_udf.v1 import message_pb2 as pb

__all__ = ["ReportedLoad"]

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
