"""What the servers of a fleet compute: each is a machine with some cores, which its rows share."""

import asyncio
import heapq
from typing import Any

import udf_server as udf
from tests.simulation.scheduler import Process

__all__ = ["Machine", "machines", "work"]

CORES = 4
ROW_SECONDS = 1.0
"""Core time of a row on a machine that is not slow."""


class Machine:
    """The cores of a server. A row waits for the first core that is free."""

    def __init__(self, slow: float = 1.0) -> None:
        self.slow = slow
        """Factor by which rows take longer."""
        self.rows = 0
        """Number of rows so far."""
        self._free_at = [0.0] * CORES

    def take(self, now: float) -> float:
        """The seconds until a row that arrives now is done."""
        self.rows += 1
        done = max(now, self._free_at[0]) + ROW_SECONDS * self.slow
        heapq.heapreplace(self._free_at, done)
        return done - now


machines: dict[Process, Machine] = {}
"""The machines of the server processes of the fleet that runs."""


@udf.scalar(timeout="180 s")
async def work(x: int) -> int:
    loop: Any = asyncio.get_running_loop()
    await asyncio.sleep(machines[loop.process].take(loop.time()))
    return x
