"""The number of steps of a sequence that each key completed."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import udf_server as udf
from udf_server import ArgumentTrait, StateHint

__all__ = ["Funnel", "Progress"]


@dataclass
class Progress:
    """The time when a key began, and the number of its steps so far."""

    started: datetime.datetime | None = None
    made: int = 0


class Funnel(udf.ProcessTableFunction):
    """One row per attempt of a key: the number of `steps` it made, in their order, `within` this time of the first.

    The column `step` of the table says which step a row is; other rows may come between. The row of an attempt is
    emitted when the attempt is complete or its time is over.
    """

    name = "funnel"
    returns = "started timestamp, made int, completed boolean"

    def eval(
        self,
        ctx: udf.ProcessContext,
        progress: Annotated[Progress, StateHint()],
        input: Annotated[
            udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.REQUIRE_ON_TIME, ArgumentTrait.ORDERED_BY_TIME
        ],
        steps: list[str],
        within: datetime.timedelta = datetime.timedelta(hours=1),
        column: str = "step",
    ) -> Iterator[tuple[datetime.datetime | None, int, bool]]:
        now = ctx.time
        if now is None or not steps:
            return
        if progress.started is not None and now > progress.started + within:
            # If the watermark advances only at the end, as in batch, no timer has fired since the previous row.
            yield progress.started, progress.made, False
            progress.started, progress.made = None, 0
            ctx.clear_timer("over")
        if input[column] != steps[progress.made]:
            return
        if progress.started is None:
            progress.started = now
            ctx.register_on_time("over", now + within)
        progress.made += 1
        if progress.made == len(steps):
            yield progress.started, progress.made, True
            ctx.clear_all()

    def on_timer(
        self, ctx: udf.ProcessContext, progress: Progress
    ) -> Iterator[tuple[datetime.datetime | None, int, bool]]:
        yield progress.started, progress.made, False
        ctx.clear_all()
