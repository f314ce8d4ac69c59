"""Alerts on work that was begun and not ended in time."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import udf_server as udf
from udf_server import ArgumentTrait, StateHint

__all__ = ["Open", "SlaAlerts"]

Alert = tuple[datetime.datetime | None, datetime.datetime | None]


@dataclass
class Open:
    """The time when a key was begun and the time when it is due; nulls while it is not open."""

    began: datetime.datetime | None = None
    due: datetime.datetime | None = None


class SlaAlerts(udf.ProcessTableFunction):
    """An alert for each key that was begun and not ended `within` this time: when it began, and when it was due.

    The column `status` of the table says which rows begin a key and which end it; others may come between. A second
    beginning while a key is open changes nothing. After its alert a key may begin again.
    """

    name = "sla_alerts"
    returns = "began timestamp, due timestamp"

    def eval(
        self,
        ctx: udf.ProcessContext,
        open: Annotated[Open, StateHint()],
        input: Annotated[
            udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.REQUIRE_ON_TIME, ArgumentTrait.ORDERED_BY_TIME
        ],
        begins: str,
        ends: str,
        within: datetime.timedelta = datetime.timedelta(hours=1),
        column: str = "status",
    ) -> Iterator[Alert]:
        now = ctx.time
        if now is None:
            return
        if open.due is not None and now > open.due:
            # If the watermark advances only at the end, as in batch, no timer has fired since the previous row.
            yield open.began, open.due
            open.began = open.due = None
            ctx.clear_timer("due")
        if input[column] == ends and open.due is not None:
            ctx.clear_all()
        elif input[column] == begins and open.due is None:
            open.began, open.due = now, now + within
            ctx.register_on_time("due", open.due)

    def on_timer(self, ctx: udf.ProcessContext, open: Open) -> Iterator[Alert]:
        yield open.began, open.due
        ctx.clear_all()
