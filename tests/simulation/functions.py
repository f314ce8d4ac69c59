"""The functions that simulated servers offer, and what they do with each row: wait, fail, hang, end their server."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import greenlet
import pyarrow as pa

import udf_server as udf
from tests.simulation.threads import SimulatedThreads

__all__ = ["FUNCTIONS", "Behaviour", "Rows", "active", "value_of"]

FOREVER = 1e7


@dataclass(frozen=True)
class Behaviour:
    """What a call with a row does."""

    kind: str = "value"
    """`value`; `error`; `flaky` for errors that a retry overcomes; `hang`; `crash` for the end of its server."""
    seconds: float = 0.0
    times: int = 0
    """Number of calls that are flaky, or that end the server."""


class Rows:
    """The behaviours of the rows of one world, and how often each was called."""

    def __init__(self, crash: Callable[[Any], object]) -> None:
        """`crash` ends the server of a process."""
        self.behaviours: dict[int, Behaviour] = {}
        self.calls: Counter[int] = Counter()
        self._crash = crash

    def called(self, x: int, process: Any) -> tuple[float, Exception | None]:
        """How long the call takes, and what it raises."""
        self.calls[x] += 1
        behaviour = self.behaviours[x]
        if behaviour.kind == "hang":
            return FOREVER, None
        if behaviour.kind == "error":
            return behaviour.seconds, ValueError(f"row {x}")
        if behaviour.kind == "flaky" and self.calls[x] <= behaviour.times:
            return behaviour.seconds, udf.RetryableError(f"row {x}")
        if behaviour.kind == "crash" and self.calls[x] <= behaviour.times:
            self._crash(process)
            return FOREVER, None
        return behaviour.seconds, None


active: list[Rows] = []
"""The rows of the world that runs, last."""


def value_of(x: int) -> int:
    """What every function returns for a row."""
    return 3 * x + 1


@udf.scalar
async def slow(x: int) -> int:
    loop: Any = asyncio.get_running_loop()
    seconds, error = active[-1].called(x, loop.process)
    await asyncio.sleep(seconds)
    if error is not None:
        raise error
    return value_of(x)


@udf.scalar
def threaded(x: int) -> int:
    thread: Any = greenlet.getcurrent()
    seconds, error = active[-1].called(x, thread.process)
    SimulatedThreads(thread.process).sleep(seconds)
    if error is not None:
        raise error
    return value_of(x)


@udf.scalar(vectorized=True)
def vectorized(x: pa.Int64Array) -> pa.Int64Array:
    thread: Any = greenlet.getcurrent()
    threads = SimulatedThreads(thread.process)
    values = []
    for each in x.to_pylist():
        seconds, error = active[-1].called(each, thread.process)
        threads.sleep(seconds)
        if error is not None:
            raise error
        values.append(value_of(each))
    return pa.array(values, pa.int64())


FUNCTIONS = (slow, threaded, vectorized)
