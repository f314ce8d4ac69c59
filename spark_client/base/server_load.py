"""ServerLoad is what a server has to do, and the rule by which a stream is better off on another server."""

import math
from dataclasses import dataclass

from remote_udf.v1 import message_pb2 as pb

__all__ = ["ServerLoad"]

LOAD_MARGIN = 0.4
"""A smaller difference of loads may be chance, since they are means over seconds. It is also a share of the load."""
STREAMS_MARGIN = 0.1
"""A smaller difference of streams, as a share, is not worth a reconnect."""
QUIET_LOAD, QUIET_STREAMS = 0.25, 2.0
"""With less load and fewer streams per core, a server is not compared with others."""


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """The load of a server at one moment."""

    load: float
    """Its busy share plus the seconds for which messages wait. Above 1 work waits."""
    streams: float
    """Open streams."""
    cores: float

    @classmethod
    def read(cls, load: pb.Load) -> "ServerLoad | None":
        """The load that a server has sent; None if it makes no sense, so that a broken server costs no job."""
        sensible = 0 <= load.load < math.inf and 0 < load.cores < math.inf and load.streams >= 0
        return cls(load.load, load.streams, load.cores) if sensible else None

    @property
    def quiet(self) -> bool:
        """Whether the server has so little to do that a better one would not help."""
        return self.load < QUIET_LOAD and self.streams < QUIET_STREAMS * self.cores

    def exceeds(self, other: "ServerLoad") -> bool:
        """Whether a stream of this server is better off on the other one, by more than its own move changes.

        What counts first is the load, if the difference is more than chance. If it is not, the number of streams per
        core counts, which is exact. So streams of equal weight are spread evenly, and a slow server has fewer.
        """
        margin = LOAD_MARGIN * max(other.load, 1.0)
        if self.load - other.load > margin:
            return True
        if other.load - self.load > margin / 2:
            return False
        here, there = self.streams / self.cores, (other.streams + 1) / other.cores
        return here - there > STREAMS_MARGIN * here
