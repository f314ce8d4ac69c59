"""The process table functions of the benchmarks: rows of a key before a minute without rows, and steps between rows."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import udf_server as udf
from udf_server import ArgumentTrait, StateHint

TIMEOUT_MS = 60_000


@dataclass
class Counted:
    """The number of rows so far."""

    rows: int = 0


class CountWithTimeout(udf.ProcessTableFunction):
    """Counts the rows of a key, and emits the count one minute after the last row."""

    returns = "rows bigint"

    def eval(
        self,
        ctx: udf.ProcessContext,
        counted: Annotated[Counted, StateHint()],
        input: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.REQUIRE_ON_TIME],
    ) -> Iterator[tuple[int]]:
        counted.rows += 1
        time = ctx.time_context(int)
        time.register_on_time("timeout", time.time() + TIMEOUT_MS)
        return iter(())

    def on_timer(self, ctx: udf.ProcessContext, counted: Counted) -> Iterator[tuple[int]]:
        yield (counted.rows,)
        ctx.clear_all()


@dataclass
class Last:
    """The value of the previous row."""

    v: float | None = None


class Steps(udf.ProcessTableFunction):
    """Emits each row's value, and its difference from the value of the row before."""

    returns = "v double, step double"

    def eval(
        self, last: Annotated[Last, StateHint()], rows: Annotated[udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE]
    ) -> Iterator[tuple[float, float | None]]:
        step = None if last.v is None else rows.v - last.v
        last.v = rows.v
        yield rows.v, step
