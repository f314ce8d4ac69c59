"""A join in which each row finds one partner at most."""

import bisect
import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import udf_server as udf
from udf_server import ArgumentTrait, ListView

__all__ = ["OneMatchJoin", "Side"]

Match = tuple[str | None, str | None]


@dataclass
class Side:
    """A row of either table: its key and the value to join, for example `to_json(struct(*))`."""

    key: str | None = None
    value: str | None = None
    time: datetime.datetime | None = None


@dataclass
class Waiting:
    """A row without a partner, and the time until which it waits for one."""

    value: str | None
    until: datetime.datetime


class OneMatchJoin(udf.ProcessTableFunction):
    """Joins each row of `left` with one of `right`; after `patience` a row is emitted alone.

    Of several rows that wait for a partner and are within `patience` of it, the one with the earliest time is taken,
    then the one that came first. Rows are joined in the order of their times, on a stream as in batch.
    Both tables are `key string, value string, time timestamp`, by position.
    """

    name = "one_match_join"
    returns = "left_value string, right_value string"

    def eval(
        self,
        ctx: udf.ProcessContext,
        lefts: ListView[Waiting],
        rights: ListView[Waiting],
        left: Annotated[
            Side, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.REQUIRE_ON_TIME, ArgumentTrait.ORDERED_BY_TIME
        ],
        right: Annotated[
            Side, ArgumentTrait.SET_SEMANTIC_TABLE, ArgumentTrait.REQUIRE_ON_TIME, ArgumentTrait.ORDERED_BY_TIME
        ],
        patience: datetime.timedelta = datetime.timedelta(hours=1),
    ) -> Iterator[Match]:
        row, own, others = (left, lefts, rights) if left is not None else (right, rights, lefts)
        now = ctx.time
        if now is None:
            return
        if all(ctx.table_semantics_for(table).order_by_columns for table in ("left", "right")):
            # In batch timers fire only at the end. Without an order an earlier row may still follow.
            yield from _given_up(lefts, rights, now)
        place = bisect.bisect_left(others, now, key=_until)
        if place < len(others) and others[place].until <= now + 2 * patience:
            partner = others.pop(place).value
            yield (row.value, partner) if left is not None else (partner, row.value)
        else:
            bisect.insort_right(own, Waiting(row.value, now + patience), key=_until)
            ctx.register_on_time(now + patience)

    def on_timer(self, ctx: udf.ProcessContext, lefts: ListView[Waiting], rights: ListView[Waiting]) -> Iterator[Match]:
        now = ctx.time
        assert now is not None
        yield from _given_up(lefts, rights, now + datetime.timedelta(microseconds=1))


def _until(row: Waiting) -> datetime.datetime:
    return row.until


def _given_up(lefts: ListView[Waiting], rights: ListView[Waiting], now: datetime.datetime) -> Iterator[Match]:
    """Yields the rows whose wait ended before `now`; they are in order of time."""
    while lefts and lefts[0].until < now:
        yield lefts.pop(0).value, None
    while rights and rights[0].until < now:
        yield None, rights.pop(0).value
