"""Sessions: consecutive rows of a key, reported after a gap without rows."""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import udf_server as udf
from udf_server import ArgumentTrait, StateHint

__all__ = ["Session", "SessionAlerts"]


@dataclass
class Session:
    """The state of the session of a key."""

    session_start: datetime.datetime | None = None
    session_end: datetime.datetime | None = None
    events: int = 0


class SessionAlerts(udf.ProcessTableFunction):
    """An alert if a key has had no row for `gap`: the begin of its session, its last row, the number of rows.

    Rows are taken in the order of their times, on a stream as in batch.
    """

    name = "session_alerts"
    returns = "session_start timestamp, session_end timestamp, events bigint"

    def eval(
        self,
        ctx: udf.ProcessContext,
        session: Annotated[Session, StateHint()],
        input: Annotated[
            udf.Row, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.REQUIRE_ON_TIME, ArgumentTrait.ORDERED_BY_TIME
        ],
        gap: datetime.timedelta = datetime.timedelta(minutes=30),
    ) -> Iterator[tuple[datetime.datetime | None, datetime.datetime | None, int]]:
        now = ctx.time
        if now is None:
            return
        if session.session_end is not None and now - session.session_end > gap:
            # If the watermark advances only at the end, as in batch, no timer has fired so far.
            yield session.session_start, session.session_end, session.events
            session.session_start, session.session_end, session.events = None, None, 0
        session.session_start = min(session.session_start or now, now)
        session.session_end = max(session.session_end or now, now)
        session.events += 1
        ctx.register_on_time("timeout", session.session_end + gap)

    def on_timer(
        self, ctx: udf.ProcessContext, session: Session
    ) -> Iterator[tuple[datetime.datetime | None, datetime.datetime | None, int]]:
        yield session.session_start, session.session_end, session.events
        ctx.clear_all()
