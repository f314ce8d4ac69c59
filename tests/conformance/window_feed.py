"""The input of a stream from a table of a case, in order: rows, watermarks, the clock, a restart.

Tables with a driver script define it; for other tables the watermark follows the latest time with a delay after every
row that advances it. At the end of the input it advances to the end of time, as in the language of the cases.
"""

import dataclasses
import datetime
from collections.abc import Iterator, Sequence
from typing import Any

from tests.conformance.cases import Table
from tests.conformance.declared_watermarks import delay_of, watermarked
from tests.conformance.flink_tables import changelog_mode

__all__ = ["END", "Burst", "Event", "Stage", "aligned", "bursts_of", "events_of", "time_column"]

END = datetime.datetime(9999, 1, 1)
"""The watermark at the end of the input, without zone."""
_MILLISECOND = datetime.timedelta(milliseconds=1)


@dataclasses.dataclass(frozen=True)
class Event:
    """`op` is row, watermark, processing_time or restart; `at` a time without zone; rows have kind and values.

    `number` is the place in the script of the case, to which expectations refer.
    """

    op: str
    at: datetime.datetime | None = None
    kind: str = "+I"
    values: Sequence[Any] = ()
    number: int = -1


@dataclasses.dataclass(frozen=True)
class Burst:
    """Rows that are sent together, the watermark after them, and the one before that."""

    rows: Sequence[Event] = ()
    watermark: datetime.datetime | None = None
    before: datetime.datetime | None = None


Stage = list[Burst]
"""What is sent between two starts of a query."""


def bursts_of(table: Table) -> list[Stage]:
    """Groups a table's events into as few micro-batches as possible: a watermark waits for rows it might make late.

    A row with a time after the watermark is late for none of its windows and for no session, so it does not matter
    whether finished windows were closed before it arrives.
    """
    place = next((at for at, (name, _) in enumerate(table.columns) if name == time_column(table)), None)
    stages: list[Stage] = [[]]
    rows: list[Event] = []
    watermark = before = None
    for event in events_of(table):
        text = event.values[place] if place is not None and event.op == "row" else None
        touched = watermark is not None and text is not None and moment(text) <= watermark + _MILLISECOND
        if touched or (event.op == "restart" and (rows or watermark)):
            stages[-1].append(Burst(tuple(rows), watermark, before))
            rows, watermark, before = [], None, None
        if event.op == "row":
            rows.append(event)
        elif event.op == "watermark":
            watermark, before = event.at, watermark
        elif event.op == "restart":
            stages.append([])
    if rows or watermark:
        stages[-1].append(Burst(tuple(rows), watermark, before))
    return stages


def aligned(tables: Sequence[list[Stage]]) -> list[list[Stage]]:
    """Returns equally many stages and bursts for every table of a query, which has one watermark, the lowest.

    A table with fewer bursts is sent first and waits: the watermark at its end is sent with the last of the others.
    """
    stages = max(len(table) for table in tables)
    padded = [[*table, *[[] for _ in range(stages - len(table))]] for table in tables]
    for number in range(stages):
        most = max(len(table[number]) for table in padded)
        for table in padded:
            table[number] = _stretched(table[number], most)
    return padded


def _stretched(stage: Stage, length: int) -> Stage:
    missing = length - len(stage)
    if not missing or not stage or stage[-1].watermark != END:
        return [*stage, *[Burst()] * missing]
    last = stage[-1]
    return [*stage[:-1], Burst(last.rows, last.before), *[Burst()] * (missing - 1), Burst((), END)]


def time_column(table: Table) -> str:
    """Returns the time attribute; a processing time is recognised only by its name."""
    told = table.raw.get("time_column") or watermarked(table)
    times = [name for name, type_ in table.columns if type_.upper().startswith("TIMESTAMP")]
    return str(told).split()[0] if told else next(iter(times), "")


def events_of(table: Table) -> list[Event]:
    """Returns all events of a table. Changes of an upsert source first retract the previous row of their key."""
    if table.events:
        return [_scripted(event, number) for number, event in enumerate(table.events)]
    return list(_followed(table))


def _scripted(event: Any, number: int) -> Event:
    if event["op"] == "row":
        return Event("row", None, event.get("kind", "+I"), event.get("row", event.get("values")), number)
    if event["op"] in ("savepoint_restore", "restore", "restart"):
        return Event("restart", number=number)
    return Event(event["op"], moment(event.get("ts", event.get("to"))), number=number)


def _followed(table: Table) -> Iterator[Event]:
    place = [name for name, _ in table.columns].index(time_column(table))
    declared, delay = table.raw.get("watermark"), delay_of(table)
    latest: datetime.datetime | None = None
    for count, (kind, values) in enumerate(_retracting(table), start=1):
        yield Event("row", None, kind, values)
        at = None if values[place] is None else moment(values[place])
        if at is not None and (latest is None or at > latest):
            latest = at
            # Without a watermark no row is late, and no window closes before the end.
            if declared:
                yield Event("watermark", latest - delay)
        if count == table.raw.get("restart_after_row"):
            yield Event("restart")
    yield Event("watermark", END)


def _retracting(table: Table) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yields the changes; for a source with a key that emits only new rows, also retractions of the old ones."""
    mode = changelog_mode(str(table.raw.get("changelog_mode") or ""))
    if mode is None or not mode.is_upsert or not table.primary_key:
        yield from table.changes
        return
    keys = [[name for name, _ in table.columns].index(name) for name in table.primary_key]
    rows: dict[tuple[Any, ...], Sequence[Any]] = {}
    for kind, values in table.changes:
        key = tuple(values[place] for place in keys)
        old = rows.pop(key, None)
        if kind == "-D":
            if old is not None:
                yield "-D", old
            continue
        rows[key] = values
        if old is not None:
            yield "-U", old
        yield ("+I" if old is None else "+U"), values


def moment(text: str) -> datetime.datetime:
    """Parses a time of a case; an instant is converted to UTC without zone."""
    return datetime.datetime.fromisoformat(text.removesuffix("Z"))
