"""What the servers of a fleet compute: each is a machine with some cores, which its rows share."""

import asyncio
import heapq
from typing import Any

import udf_server as udf
from tests.simulation.scheduler import Process

__all__ = ["CORES", "Machine", "machines", "work"]

CORES = 4
ROW_SECONDS = 1.0
"""Core time of a row on a machine that is not slow."""


class Machine:
    """The cores of a server. The server begins a row when a core is free."""

    def __init__(self, slow: float = 1.0, cores: int = CORES) -> None:
        self.slow, self.cores = slow, cores
        """Factor by which rows take longer; number of cores."""
        self.rows = 0
        """Number of rows so far."""
        self._spent = 0.0
        self._running: list[tuple[float, float]] = []
        """When each row ends that runs, and when it began."""

    def take(self, now: float) -> float:
        """The seconds that a row takes which begins now."""
        self.rows += 1
        seconds = ROW_SECONDS * self.slow
        heapq.heappush(self._running, (now + seconds, now))
        return seconds

    def spent(self, now: float) -> float:
        """The core seconds until now."""
        while self._running and self._running[0][0] <= now:
            end, began = heapq.heappop(self._running)
            self._spent += end - began
        return self._spent + sum(now - began for _, began in self._running)


machines: dict[Process, Machine] = {}
"""The machines of the server processes of the fleet that runs."""


@udf.scalar(timeout="180 s")
async def work(x: int) -> int:
    loop: Any = asyncio.get_running_loop()
    await asyncio.sleep(machines[loop.process].take(loop.time()))
    return x
