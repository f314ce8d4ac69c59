"""Cases of streaming queries: windows and process functions over files that come one by one, with restarts.

Rows in order must give what the batch query gives, across changes of the clock. Rows out of order, some of them too
late, must give what Spark's own windows give for the same files in UTC, where both count the same hours.
"""

import datetime as dt
from typing import Any

from tests.differential.both import Both, joined
from tests.differential.cases import Case
from tests.differential.choices import Choices
from tests.differential.imitations import AGGREGATES
from tests.differential.model import emitted
from tests.differential.process import STEPS
from tests.differential.tables import Column, Settings, Table, written
from tests.differential.values import ZONES, clock_change, value
from tests.differential.windows import Windows, draw_windows

__all__ = ["draw_stream"]

DDL = "id bigint, k string, v bigint, at timestamp"
FAR = dt.timedelta(days=20)
"""After all other rows by so much comes one that closes their windows."""
MERGING = ("sum_bigint", "vsum_bigint", "rsum_bigint", "count_bigint", "max_bigint", "median_bigint", "bsum_bigint")


def draw_stream(draw: Choices) -> Case:
    """A streaming query, stopped and started again."""
    late = draw.chance(40)
    zone = "UTC" if late else draw.of(ZONES)
    settings = Settings(zone, clock_change(draw, zone), True, False)
    files = draw.several(lambda: _rows(draw, settings), 2, 5)
    rows = [row for file in files for row in file]
    if not late:
        times = sorted(row[3] for row in rows)
        for file in files:
            for row in file:
                row[3] = times.pop(0)
    numbered = [
        [(number, *row[1:]) for number, row in enumerate(file, 100 * index)] for index, file in enumerate(files)
    ]
    if draw.chance(25) and not late:
        return _machine(draw, settings, numbered)
    last = max((row[3] for row in rows), default=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)) + FAR
    numbered.append([(-1, "far", 0, last)])
    end = (last - FAR / 2).replace(tzinfo=None).isoformat(" ")
    return (_late if late else _in_order)(draw, settings, numbered, f"window_end < TIMESTAMP_NTZ '{end}'")


def _rows(draw: Choices, settings: Settings) -> list[list[Any]]:
    near = (settings.near, settings.zone)

    def row() -> list[Any]:
        time = value(draw, "timestamp", near, nulls=False).replace(second=0, microsecond=0)
        return [0, draw.of(("a", "b", None)), value(draw, "bigint", near, nulls=True), time]

    return draw.several(row, 1, 4)


def _started(draw: Choices, files: list[Any], delay: str, query: str) -> str:
    stops = draw.some(range(1, len(files)), 0, 2)
    return f"streamed({DDL!r}, {written(files)}, {delay!r}, {sorted(stops)}, lambda: {query})"


def _calls(draw: Choices) -> Both:
    found = [each for each in AGGREGATES if each.name in MERGING]
    chosen = draw.several(lambda: draw.of(found), 1, 2)
    calls = [Both(f"{each.name}(v) AS a{i}", f"{each.sparks.format('v')} AS a{i}") for i, each in enumerate(chosen)]
    return joined(", ", calls)


def _in_order(draw: Choices, settings: Settings, files: list[Any], closed: str) -> Case:
    windows, calls = draw_windows(draw), _calls(draw)
    delay = draw.of(("0 seconds", "10 minutes", "1 hour"))
    table = Table(
        "b", tuple(Column(*column.split(" ", 1)) for column in DDL.split(", ")), (tuple(r for f in files for r in f),)
    )
    keys = "window_start, window_end" + draw.of(("", ", k"))
    ours = f"SELECT {keys}, {calls.ours} FROM {windows.call('s', 'at')} GROUP BY {keys}"
    batch = f"SELECT {keys}, {calls.sparks} FROM {windows.rows_of_spark('b', 'at')} GROUP BY {keys}"
    started = _started(draw, files, delay, f"remote.sql({ours!r})")
    tags = {"stream", "stream in order", windows.kind}
    return Case(settings, (table,), f"{started}.where({closed!r})", f"spark.sql({batch!r}).where({closed!r})", tags)


def _late(draw: Choices, settings: Settings, files: list[Any], closed: str) -> Case:
    calls = _calls(draw)
    if session := draw.chance(35):
        gap = draw.of((10, 20, 60))
        source = f"SESSION(TABLE s PARTITION BY k, DESCRIPTOR(at), INTERVAL '{gap}' MINUTES)"
        window = f"session_window(at, '{gap} minutes')"
    else:
        kind, step = draw.of(("TUMBLE", "HOP")), draw.of((10, 30, 60))
        windows = Windows(kind, step * draw.between(1, 3), step)
        source = windows.call("s", "at")
        window = f"window(at, '{windows.size} minutes', '{(windows.step if kind == 'HOP' else windows.size)} minutes')"
    ours = f"SELECT window_start, window_end, k, {calls.ours} FROM {source} GROUP BY window_start, window_end, k"
    name = "session_window" if session else "window"
    bounds = ", ".join(f"CAST({name}.{end} AS timestamp_ntz) AS window_{end}" for end in ("start", "end"))
    sparks = f"SELECT {bounds}, k, {calls.sparks} FROM s GROUP BY {window}, k"
    stops = sorted(draw.some(range(1, len(files)), 0, 2))
    delay = draw.of(("0 seconds", "10 minutes", "1 hour"))
    texts = [
        f"streamed({DDL!r}, {written(files)}, {delay!r}, {stops}, lambda: {query}).where({closed!r})"
        for query in (f"remote.sql({ours!r})", f"spark.sql({sparks!r})")
    ]
    return Case(
        settings, (), texts[0], texts[1], {"stream", "stream with late rows", "SESSION" if session else windows.kind}
    )


def _machine(draw: Choices, settings: Settings, files: list[Any]) -> Case:
    """State without timers, which fire at the end of a batch only, as rows come in order."""
    program = ";".join(draw.several(lambda: draw.of(STEPS), 1, 5))
    order = "partition_by='k', order_by=['at', 'id']"
    query = f"remote.process('machine', spark.table('s'), {order}, uid='m', program={program!r})"
    keys: dict[str, list[Any]] = {}
    for row in sorted((row for file in files for row in file), key=lambda row: (row[3], row[0])):
        keys.setdefault(row[1], []).append((None, row[2]))
    expected = [(key, *row) for key, given in keys.items() for row in emitted(given, program, "")]
    started = _started(draw, files, "0 seconds", query)
    return Case(settings, (), started, written(expected), {"stream", "stream of a process function"})
