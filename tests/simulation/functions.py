"""The functions that simulated servers offer, and what they do with each row: wait, fail, hang, end their server."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import greenlet
import pyarrow as pa

import udf_server as udf
from tests.simulation.threads import SimulatedThreads
from udf_server.base.call_scope import current_scope
from udf_server.base.fairness import Party

__all__ = [
    "MANY_ROWS",
    "SCALAR_FUNCTIONS",
    "TOKENS",
    "Behaviour",
    "Rows",
    "active",
    "drawn_behaviour",
    "later",
    "value_of",
]

FOREVER = 1e7
TOKENS = "tokens"


@dataclass(frozen=True)
class Behaviour:
    """What a call with a row does."""

    kind: str = "value"
    """`value`; `error`; `flaky` for errors that a retry overcomes; `hang`; `slow-once` if only the first call hangs;
    `crash` for the end of its server."""
    seconds: float = 0.0
    times: int = 0
    """Number of calls that are flaky, or that end the server."""
    tokens: float = 0.0
    """What a call is expected to spend."""
    spends: tuple[float, ...] = ()
    """The tokens that a call reports, each after an equal part of its time."""


def drawn_behaviour(random: Random, odd: float, shortest: float, longest: float) -> Behaviour:
    """A call that takes some time in seconds. With probability `odd` it does something else than return a value."""
    seconds = random.uniform(shortest, longest)
    if random.random() >= odd:
        return Behaviour("value", seconds)
    kind = random.choice(("error", "error", "flaky", "flaky", "hang", "crash"))
    return Behaviour(kind, seconds, random.choice((1, 1, 2, 5)))


class Rows:
    """The behaviours of the rows of one world, and how often each was called."""

    def __init__(
        self, crash: Callable[[Any], object], began: Callable[[int, Any, Party], object],
        ended: Callable[[int, Any, Party, float, bool | None], object], spent: Callable[[Any, float], object],
    ) -> None:  # fmt: skip
        """`crash` ends the server of a process.

        `began` gets the row, the event loop and the stream of each call of `slow`. When the call ends, `ended` gets the
        same, when it began, and whether it went well: None if it was cancelled because its client is gone, or because
        another call has answered. `spent` gets the loop and the tokens of each report.
        """
        self.behaviours: dict[int, Behaviour] = {}
        self.calls: Counter[int] = Counter()
        self.first_called: dict[int, float] = {}
        self.began, self.ended, self.spent = began, ended, spent
        self._crash = crash

    def called(self, x: int, process: Any) -> tuple[float, Exception | None]:
        """How long the call takes, and what it raises."""
        self.calls[x] += 1
        behaviour = self.behaviours[x]
        if behaviour.kind == "hang" or (behaviour.kind == "slow-once" and self.calls[x] == 1):
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


def _cost(x: int) -> dict[str, float]:
    return {TOKENS: active[-1].behaviours[x].tokens}


@udf.scalar(idempotent=True, cost=_cost)
async def slow(x: int, context: udf.CallContext) -> int:
    loop: Any = asyncio.get_running_loop()
    scope, rows, began = current_scope.get(), active[-1], loop.time()
    party = scope.party
    seconds, error = rows.called(x, loop.process)
    rows.first_called.setdefault(x, began)
    rows.began(x, loop, party)
    went_well: bool | None = not isinstance(error, udf.RetryableError)
    spends = rows.behaviours[x].spends or (0.0,)
    try:
        for tokens in spends:
            await asyncio.sleep(seconds / len(spends))
            if tokens:
                rows.spent(loop, tokens)
                context.spend(tokens=tokens)
    except asyncio.CancelledError:
        went_well = None if party.closed or (scope.race is not None and scope.race.decided) else False
        raise
    finally:
        rows.ended(x, loop, party, began, went_well)
    if error is not None:
        raise error
    return value_of(x)


@udf.scalar(name="slow", version="2")
async def later(x: int) -> int:
    return -x


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


@udf.scalar(vectorized=True, max_queue_delay="20 ms", batch_rows=40, instances=2)
def merged(x: pa.Int64Array) -> pa.Int64Array:
    """Some tasks share its calls."""
    return vectorized(x)


@udf.scalar(batched=True, max_queue_delay="20 ms", batch_rows=40)
async def listed(x: list[int]) -> list[int | udf.Failure]:
    """Some tasks share its calls, which name the rows that fail."""
    loop: Any = asyncio.get_running_loop()
    found = [active[-1].called(each, loop.process) for each in x]
    await asyncio.sleep(sum(seconds for seconds, _ in found))
    return [
        value_of(each) if error is None
        else udf.Failure(str(error), retryable=isinstance(error, udf.RetryableError))
        for each, (_, error) in zip(x, found, strict=True)
    ]  # fmt: skip


SCALAR_FUNCTIONS = (slow, threaded, vectorized, merged, listed)
MANY_ROWS = ("vectorized", "merged", "listed")
"""Those that are called for many rows."""
