"""Cases of streaming queries with process functions and changelogs, over files added one by one, with restarts."""

import datetime as dt
import math
from collections.abc import Callable
from typing import Any

from tests.differential.both import Both, both
from tests.differential.cases import Case
from tests.differential.choices import Choices
from tests.differential.model import emitted, emitted_by_stream
from tests.differential.process import STEPS, TIMED
from tests.differential.tables import Column, Settings, Table, written

__all__ = ["DDL", "DELAYS", "draw_stream_of_process", "started_stream"]

DDL = "id bigint, k string, v bigint, at timestamp"
DELAYS = ("0 seconds", "10 minutes", "60 minutes")
ORDERED: tuple[tuple[str, Callable[[int | None], Any]], ...] = (
    ("0", lambda _: 0),
    ("if(v > 1, double('NaN'), double(v))", lambda v: math.nan if v is not None and v > 1 else v),
    ("struct(if(v > 1, null, v) AS a)", lambda v: (None if v is not None and v > 1 else v,)),
    ("if(v > 1, array(v, 0), array(v))", lambda v: (v, 0) if v is not None and v > 1 else (v,)),
)
"""Columns that order rows of one time, in SQL and in Python."""


def started_stream(
    draw: Choices, files: list[Any], delay: str, query: Both | str, ddl: str = DDL,
    restarted: dict[str, str] | None = None,
) -> Both:  # fmt: skip
    """The rows of a query over `s`, to which the files are added, with restarts in between, with these settings."""
    stops = sorted(draw.some(range(1, len(files)), 0, 2))
    more = f", {restarted!r}" if restarted else ""
    texts = repr(ddl), written(files), repr(delay), repr(stops)
    return both("streamed({}, {}, {}, {}, lambda: {}{})", *texts, query, more)


def draw_stream_of_process(draw: Choices, settings: Settings, files: list[Any], *, late: bool) -> Case:
    """A process function or a changelog over the files, whose rows are in order of time unless `late`."""
    tags = {"stream"}
    kinds = (_timers, _merged) if late else (_ordered, _timers, _merged, _changelog)
    return draw.of(kinds)(draw, settings, files, tags)


def _collected(rows: list[tuple[Any, ...]]) -> str:
    """The rows in the form in which they are collected: times in UTC, without a time zone."""
    return written([
        tuple(each.replace(tzinfo=None) if isinstance(each, dt.datetime) else each for each in row) for row in rows
    ])  # fmt: skip


def _ordered(draw: Choices, settings: Settings, files: list[Any], tags: set[str]) -> Case:
    """State without timers, in an order that holds rows until the watermark has passed them."""
    tags.add("stream of a process function")
    program = ";".join(draw.several(lambda: draw.of(STEPS), 1, 5))
    text, value_of = draw.of(ORDERED)
    descending, nulls_last = draw.of((False, True)), draw.of((False, True))
    direction = f"w {'DESC' if descending else 'ASC'} NULLS {'LAST' if nulls_last else 'FIRST'}"
    rows = f"spark.table('s').selectExpr('*', {f'{text} AS w'!r})"
    order = f"partition_by='k', order_by=['at', {direction!r}, 'id']"
    query = f"remote.process('machine', {rows}, {order}, uid='m', program={program!r})"
    given = sorted((row for file in files for row in file), key=lambda row: row[0])
    given.sort(key=lambda row: _rank(value_of(row[2])), reverse=descending)
    given.sort(key=lambda row: (value_of(row[2]) is None) is nulls_last)
    keys: dict[str, list[Any]] = {}
    for row in sorted(given, key=lambda row: row[3]):
        keys.setdefault(row[1], []).append((None, row[2]))
    expected = [(key, *row) for key, values in keys.items() for row in emitted(values, program, "")]
    return Case(settings, (), started_stream(draw, files, "0 seconds", query).ours, _collected(expected), tags)


def _rank(value: Any) -> tuple[Any, ...]:
    """A key that Python orders as Spark orders the value: nulls first, NaN last, structs and arrays part by part."""
    if value is None:
        return (0,)
    if isinstance(value, tuple):
        return (1, *map(_rank, value))
    return (1, math.isnan(value), 0 if math.isnan(value) else value)


def _timers(draw: Choices, settings: Settings, files: list[Any], tags: set[str]) -> Case:
    """Timers that fire as the watermark advances, and rows in the order of the files."""
    tags.add("stream of timers")
    program = ";".join(draw.several(lambda: draw.of((*TIMED, *STEPS)), 1, 6))
    on_timer = ";".join(["emit", *draw.several(lambda: draw.of(STEPS), 0, 3)])
    delay = draw.of(DELAYS)
    call = f"'machine', spark.table('s'), partition_by='k', on_time='at', uid='m', program={program!r}"
    if draw.chance(40):
        text = f"machine(TABLE s PARTITION BY k, '{program}', '{on_timer}', DESCRIPTOR(at), 'm')"
        query = f"remote.sql({f'SELECT * FROM {text}'!r})"
    else:
        query = f"remote.process({call}, on_timer={on_timer!r})"
    given = [[(row[1], row[3], row[2]) for row in file] for file in files]
    expected = emitted_by_stream(given, dt.timedelta(minutes=int(delay.split()[0])), program, on_timer)
    return Case(settings, (), started_stream(draw, files, delay, query).ours, _collected(expected), tags)


def _merged(draw: Choices, settings: Settings, files: list[Any], tags: set[str]) -> Case:
    """Two tables of one stream: in a micro-batch the rows of one precede those of the other."""
    tags.add("stream of several tables")
    query = (
        "remote.process('merged', {'one': spark.table('s').where('v > 1'), 'other': spark.table('s').where('v <= 1')}, "
        "partition_by='k', on_time=['at', 'at'], uid='m').select('k', 'n', 'rowtime')"
    )
    seen: dict[Any, int] = {}
    expected = []
    for file in files:
        known = [row for row in file if row[2] is not None]
        for row in [*(row for row in known if row[2] > 1), *(row for row in known if row[2] <= 1)]:
            seen[row[1]] = seen.get(row[1], 0) + 1
            expected.append((row[1], seen[row[1]], row[3]))
    return Case(settings, (), started_stream(draw, files, draw.of(DELAYS), query).ours, _collected(expected), tags)


def _changelog(draw: Choices, settings: Settings, files: list[Any], tags: set[str]) -> Case:
    """Windows that fire in every micro-batch: their changes, applied, must give the result of the batch query."""
    tags.add("stream of changes")
    name = draw.of(("sum_bigint", "rsum_bigint", "vsum_bigint", "bsum_bigint"))
    keys = "'window_start', 'window_end'" + draw.of(("", ", 'k'"))
    windows = f"w.tumble(spark.table('s'), 'at', '{draw.of((10, 30, 60))} minutes')"
    calls = f"remote.function({name!r})('v').alias('a'), remote.function('count_bigint')('v').alias('n')"
    query = f"remote.group_by({windows}, {keys}).emit(early_fire_delay='0 s').agg({calls})"
    sign = "sum(CASE WHEN row_kind IN ('+I', '+U') THEN 1 ELSE -1 END) AS c"
    left = f".groupBy({keys}, 'a', 'n').agg(F.expr({sign!r})).where('c <> 0')"
    table = Table(
        "b", tuple(Column(*column.split(" ", 1)) for column in DDL.split(", ")), (tuple(r for f in files for r in f),)
    )
    batch = windows.replace("table('s')", "table('b')")
    sparks = f"{batch}.groupBy({keys}).agg(F.sum('v').alias('a'), F.count('v').alias('n'), F.lit(1).alias('c'))"
    sparks += ".withColumn('c', F.col('c').cast('bigint'))"
    return Case(settings, (table,), started_stream(draw, files, draw.of(DELAYS), query).ours + left, sparks, tags)
