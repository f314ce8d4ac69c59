"""Cases of streaming queries: windows over files added one by one, with restarts.

Rows in order must give the result of the batch query, also if the clock changes. Rows out of order, some of which are
late, must give the result of Spark's own windows for the same files in UTC, where both count the same hours.
"""

import datetime as dt
from typing import Any
from zoneinfo import ZoneInfo

from tests.differential.both import Both, both, joined
from tests.differential.cases import Case
from tests.differential.choices import Choices
from tests.differential.imitations import AGGREGATES
from tests.differential.stream_chains import draw_stream_of_chain
from tests.differential.stream_emits import draw_stream_of_changes, draw_stream_of_emits
from tests.differential.stream_processes import DDL, DELAYS, draw_stream_of_process, started_stream
from tests.differential.tables import Column, Settings, Table
from tests.differential.values import ZONES, clock_change, value
from tests.differential.windows import Windows, draw_windows

__all__ = ["draw_stream"]

FAR = dt.timedelta(days=20)
"""How long after all other rows a last row follows, which closes their windows."""
LOOKED_UP = "(SELECT l.* FROM s AS l {} looked_up FOR SYSTEM_TIME AS OF PROCTIME() AS r ON r.n = l.v)"
"""The rows for which there is an entry, or all rows with LEFT JOIN."""
OPAQUE = "if(length(uuid()) > 0, v, 0)"
"""`v`, in a condition that Spark does not move below the watermark, where it would not count the other rows."""
MERGING = ("sum_bigint", "vsum_bigint", "rsum_bigint", "count_bigint", "max_bigint", "median_bigint", "bsum_bigint")


def draw_stream(draw: Choices) -> Case:
    """A streaming query that is stopped and started again."""
    late = draw.chance(40)
    zone = "UTC" if late else draw.of(ZONES[1:])
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
    if draw.chance(35):
        return draw_stream_of_process(draw, settings, numbered, late=late)
    if draw.chance(40):
        return draw_stream_of_chain(draw, settings, numbered, DDL)
    if late and draw.chance(50):
        return draw.of((draw_stream_of_emits, draw_stream_of_changes))(draw, settings, numbered, DDL)
    last = max((row[3] for row in rows), default=dt.datetime(2026, 1, 1, tzinfo=dt.UTC)) + FAR
    numbered.append([(-1, "far", 0, last)])
    end = (last - FAR / 2).replace(tzinfo=None).isoformat(" ")
    return (_late if late else _in_order)(draw, settings, numbered, f"window_end < TIMESTAMP_NTZ '{end}'")


def _rows(draw: Choices, settings: Settings) -> list[list[Any]]:
    near = (settings.near, settings.zone)
    around = settings.near.replace(tzinfo=ZoneInfo(settings.zone)).astimezone(dt.UTC)

    def row() -> list[Any]:
        time = value(draw, "timestamp", near, nulls=False).replace(second=0, microsecond=0)
        if draw.chance(70):
            # Near a change of the clock, where an hour occurs twice or not at all.
            time = around + dt.timedelta(minutes=10 * (draw.between(0, 18) - 9))
        return [0, draw.of(("a", "b", None)), value(draw, "bigint", near, nulls=True), time]

    return draw.several(row, 1, 4)


def _calls(draw: Choices) -> Both:
    found = [each for each in AGGREGATES if each.name in MERGING]
    chosen = draw.several(lambda: draw.of(found), 1, 2)
    calls = [Both(f"{each.name}(v) AS a{i}", f"{each.sparks.format('v')} AS a{i}") for i, each in enumerate(chosen)]
    return joined(", ", calls)


def _in_order(draw: Choices, settings: Settings, files: list[Any], closed: str) -> Case:
    windows = draw_windows(draw)
    table = Table(
        "b", tuple(Column(*column.split(" ", 1)) for column in DDL.split(", ")), (tuple(r for f in files for r in f),)
    )
    tags = {"stream", "stream in order", windows.kind}
    shape = draw.weighted([(60, _grouped), (20, _first_of), (20, _joined)])
    tags.add(f"stream {shape.__name__.strip('_')}")
    text = shape(draw, Both(windows.call("s", "at"), windows.rows_of_spark("b", "at")))
    started = started_stream(draw, files, draw.of(DELAYS), f"remote.sql({text.ours!r})")
    sparks = f"spark.sql({text.sparks!r}).where({closed!r})"
    return Case(settings, (table,), f"{started.ours}.where({closed!r})", sparks, tags)


def _grouped(draw: Choices, source: Both) -> Both:
    keys = "window_start, window_end" + draw.of(("", ", k"))
    return both("SELECT {}, {} FROM {} GROUP BY {}", keys, _calls(draw), source, keys)


def _first_of(draw: Choices, source: Both) -> Both:
    keys = "window_start, window_end" + draw.of(("", ", k"))
    order = draw.of(("v", "v DESC", "at", "at DESC"))
    nth = f"row_number() OVER (PARTITION BY {keys} ORDER BY {order}, id) AS nth"
    columns = "id, k, v, window_start, window_end"
    return both("SELECT {} FROM (SELECT *, {} FROM {}) WHERE nth <= {}", columns, nth, source, str(draw.between(1, 2)))


def _joined(draw: Choices, source: Both) -> Both:
    on = "l.window_start = r.window_start AND l.window_end = r.window_end AND l.k = r.k"
    how = draw.of(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
    bounds = ", ".join(f"coalesce(l.window_{end}, r.window_{end}) AS window_{end}" for end in ("start", "end"))
    right = both("(SELECT * FROM {} WHERE v > {})", source, str(draw.below(3)))
    return both("SELECT l.id, r.id AS other, l.k, {} FROM {} AS l {} {} AS r ON {}", bounds, source, how, right, on)


def _late(draw: Choices, settings: Settings, files: list[Any], closed: str) -> Case:
    tags = {"stream", "stream with late rows"}
    rows = both("s")
    if draw.chance(30):
        kind = draw.of(("LEFT JOIN", "JOIN"))
        tags.add("stream of a lookup join")
        rows = Both(
            LOOKED_UP.format(kind), "s" if kind == "LEFT JOIN" else f"(SELECT * FROM s WHERE {OPAQUE} IN (0, 1, 2))"
        )
    shape = draw.weighted([(70, _late_grouped), (30, _late_joined)])
    if shape is _late_joined:
        # Spark takes nulls for equal in a full join of streams, and counts no rows with nulls in an inner one.
        files = [[(id_, k or "c", v, at) for id_, k, v, at in file] for file in files]
    queries = shape(draw, rows, tags)
    started = started_stream(draw, files, draw.of(DELAYS), queries)
    texts = both("{}.where({})", started, repr(closed))
    return Case(settings, (), texts.ours, texts.sparks, tags)


def _windows(draw: Choices, tags: set[str]) -> tuple[Windows, str]:
    """Windows, and Spark's own."""
    kind, step = draw.of(("TUMBLE", "HOP")), draw.of((10, 30, 60))
    tags.add(kind)
    windows = Windows(kind, step * draw.between(1, 3), step)
    slide = windows.step if kind == "HOP" else windows.size
    return windows, f"window(at, '{windows.size} minutes', '{slide} minutes')"


def _late_joined(draw: Choices, rows: Both, tags: set[str]) -> Both:
    """A join within windows, compared with Spark's own join of two streams by their windows."""
    tags.add("stream joined with late rows")
    windows, window = _windows(draw, tags)
    least, how = draw.below(3), draw.of(("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
    source = Both(windows.call(rows.ours, "at"), f"(SELECT *, {window} AS w FROM {rows.sparks})")
    bounds = Both(
        ", ".join(f"coalesce(l.window_{end}, r.window_{end}) AS window_{end}" for end in ("start", "end")),
        ", ".join(f"CAST(coalesce(l.w, r.w).{end} AS timestamp_ntz) AS window_{end}" for end in ("start", "end")),
    )
    on = Both("l.window_start = r.window_start AND l.window_end = r.window_end", "l.w = r.w")
    right = both("(SELECT * FROM {} WHERE {} > {})", source, Both("v", OPAQUE), str(least))
    text = both("SELECT {}, l.id, r.id AS other FROM {} AS l {} {} AS r ON {} AND l.k = r.k",
                bounds, source, how, right, on)  # fmt: skip
    return Both(f"remote.sql({text.ours!r})", f"spark.sql({text.sparks!r})")


def _late_grouped(draw: Choices, rows: Both, tags: set[str]) -> Both:
    calls = _calls(draw)
    if session := draw.chance(35):
        gap = draw.of((10, 20, 60))
        tags.add("SESSION")
        source = f"SESSION(TABLE {rows.ours} PARTITION BY k, DESCRIPTOR(at), INTERVAL '{gap}' MINUTES)"
        window = f"session_window(at, '{gap} minutes')"
    else:
        windows, window = _windows(draw, tags)
        source = windows.call(rows.ours, "at")
    ours = f"SELECT window_start, window_end, k, {calls.ours} FROM {source} GROUP BY window_start, window_end, k"
    name = "session_window" if session else "window"
    bounds = ", ".join(f"CAST({name}.{end} AS timestamp_ntz) AS window_{end}" for end in ("start", "end"))
    sparks = f"SELECT {bounds}, k, {calls.sparks} FROM {rows.sparks} GROUP BY {window}, k"
    return Both(f"remote.sql({ours!r})", f"spark.sql({sparks!r})")
