"""The process table function of the benchmarks: the number of rows of a key before a minute without rows."""

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
