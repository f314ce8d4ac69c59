"""An aggregate function and a process table function of simulated servers, whose rows behave as the scenario says."""

from dataclasses import dataclass
from typing import Annotated, Any

import greenlet

import udf_server as udf
from tests.simulation.functions import active
from tests.simulation.threads import SimulatedThreads

__all__ = ["GAP_SECONDS", "Counted", "Totals"]

GAP_SECONDS = 10
"""`Counted` forgets a key this long after its last row."""


def _behave(x: int) -> None:
    """Take the time of row x, and fail as it does."""
    thread: Any = greenlet.getcurrent()
    seconds, error = active[-1].called(x, thread.process)
    if seconds:
        SimulatedThreads(thread.process).sleep(seconds)
    if error is not None:
        raise error


class Totals(udf.AggregateFunction):
    """The sum of a key's rows, and their number, so that a row that counts twice or not at all shows."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def accumulate(self, accumulator, x: int):  # type: ignore[no-untyped-def]
        _behave(x)
        accumulator[0] += x
        accumulator[1] += 1

    def merge(self, accumulator, others):  # type: ignore[no-untyped-def]
        for other in others:
            accumulator[0] += other[0]
            accumulator[1] += other[1]

    def get_value(self, accumulator) -> list[int]:  # type: ignore[no-untyped-def]
        return [*accumulator]


@dataclass
class Count:
    n: int = 0
    total: int = 0


class Counted(udf.ProcessTableFunction):
    """Numbers the rows of a key; a timer emits their number and minus their sum, and the key begins anew."""

    returns = "n bigint, v bigint"

    def eval(  # type: ignore[no-untyped-def]
        self, ctx, count: Annotated[Count, udf.StateHint()],
        rows: Annotated[udf.Row, udf.ArgumentTrait.SET_SEMANTIC_TABLE, udf.ArgumentTrait.REQUIRE_ON_TIME],
    ):  # fmt: skip
        _behave(rows["v"])
        count.n += 1
        count.total += rows["v"]
        times = ctx.time_context(int)
        times.register_on_time("silence", times.time() + GAP_SECONDS * 1000)
        yield (count.n, rows["v"])

    def on_timer(self, ctx, count):  # type: ignore[no-untyped-def]
        yield (count.n, -count.total)
        ctx.clear_all()
