"""TUMBLE, HOP, CUMULATE and SESSION, and their equivalents with Spark's own windows and arithmetic."""

import dataclasses

from tests.differential.aggregate_items import aggregate_call
from tests.differential.both import Both, both, joined
from tests.differential.choices import Choices
from tests.differential.expressions import Field, Scope
from tests.differential.naming import Select
from tests.differential.tables import Column, Table, quoted

__all__ = ["Windows", "draw_windows", "grouped_by_windows", "window_source"]


@dataclasses.dataclass(frozen=True)
class Windows:
    """A window function and its lengths in minutes."""

    kind: str
    size: int
    step: int
    """The slide of HOP, or the step of CUMULATE."""
    offset: int = 0

    def call(self, table: str, time: str) -> str:
        """The call in SQL."""
        lengths = [self.size] if self.kind == "TUMBLE" else [self.step, self.size]
        texts = [f"INTERVAL '{minutes}' MINUTES" for minutes in (*lengths, *([self.offset] if self.offset else []))]
        return f"{self.kind}(TABLE {table}, DESCRIPTOR({time}), {', '.join(texts)})"

    def rows_of_spark(self, table: str, time: str) -> str:
        """A query for the rows of the table with their windows, by the clock of the session's time zone."""
        slide = self.step if self.kind == "HOP" else self.size
        window = (
            f"window(CAST({time} AS timestamp_ntz), '{self.size} minutes', '{slide} minutes', '{self.offset} minutes')"
        )
        inner = f"(SELECT *, {window} AS w FROM {table})"
        if self.kind != "CUMULATE":
            return f"(SELECT *, w.start AS window_start, w.end AS window_end FROM {inner})"
        steps = f"sequence(1, {self.size // self.step})"
        ends = f"transform({steps}, i -> w.start + i * INTERVAL '{self.step}' MINUTE)"
        ends = f"filter({ends}, e -> e > CAST({time} AS timestamp_ntz))"
        return f"(SELECT *, w.start AS window_start FROM {inner} LATERAL VIEW explode({ends}) x AS window_end)"


def draw_windows(draw: Choices) -> Windows:
    """One of the window functions except SESSION."""
    kind = draw.of(("TUMBLE", "HOP", "CUMULATE"))
    step = draw.of((10, 30, 60, 120))
    size = step * draw.between(1, 4) if kind != "HOP" else step + draw.of((0, 10, 30, 60, 90))
    if draw.chance(10):
        size, step = 1440, draw.of((360, 720))
    return Windows(kind, size, step, draw.of((5, -10, 20)) if draw.chance(15) and size > 20 else 0)


def window_source(draw: Choices, scope: Scope, table: Table, time: Column) -> tuple[Both, list[Field]]:
    """The rows of the table in their windows, and the bounds as fields."""
    if draw.chance(12):
        return _rows_source(draw, scope, table, time)
    windows = draw_windows(draw)
    scope.tags.add(windows.kind)
    call = windows.call(table.name, quoted(time.name))
    ours = f"TABLE({call})" if draw.chance(30) else call
    source = Both(ours, windows.rows_of_spark(table.name, quoted(time.name)))
    return source, [Field(both(name), "timestamp_ntz") for name in ("window_start", "window_end")]


def _rows_source(draw: Choices, scope: Scope, table: Table, time: Column) -> tuple[Both, list[Field]]:
    """Windows of rows in which no two rows of a key have the same time."""
    scope.tags.add("TUMBLE_ROW")
    name, keys = quoted(time.name), [quoted("k")] if draw.chance(60) else []
    same = f"PARTITION BY {', '.join([*keys, name])} ORDER BY {scope.unique[0].sparks}"
    rows = f"(SELECT * FROM {table.name} QUALIFY row_number() OVER ({same}) = 1)"
    count = draw.between(1, 3)
    partition = f" PARTITION BY {keys[0]}" if keys else ""
    ours = f"TUMBLE_ROW(TABLE {rows}{partition}, DESCRIPTOR({name}), {count})"
    number = f"(row_number() OVER ({partition} ORDER BY {name}) - 1) div {count} + 1 AS window_number"
    window = f"(PARTITION BY {', '.join([*keys, 'window_number'])})"
    end = f"max({name}) OVER {window}"
    later = f"{end} + INTERVAL '0.001' SECOND"
    sparks = (
        f"(SELECT *, CAST(min({name}) OVER {window} AS timestamp_ntz) AS window_start, "
        f"CAST({later} AS timestamp_ntz) AS window_end "
        f"FROM (SELECT *, {number} FROM {rows} WHERE {name} IS NOT NULL))"
    )
    bounds = [Field(both(f"window_{end}"), "timestamp_ntz") for end in ("start", "end")]
    return Both(ours, sparks), [*bounds, Field(both("window_number"), "bigint")]


def grouped_by_windows(draw: Choices, scope: Scope, table: Table, time: Column) -> Select:
    """Aggregates by sessions: Spark allows `session_window` in GROUP BY only."""
    scope.tags.add("SESSION")
    gap = draw.of((10, 20, 30, 60, 1440))
    keyed = draw.chance(60)
    partition = f" PARTITION BY {quoted('k')}" if keyed else ""
    time_, key = quoted(time.name), ["k"] if keyed else []
    ours = f"SESSION(TABLE {table.name}{partition}, DESCRIPTOR({time_}), INTERVAL '{gap}' MINUTES)"
    calls = draw.several(lambda: aggregate_call(draw, scope), 1, 2)
    items: list[tuple[Both, str]] = [
        (Both(f"window_{end}", f"CAST(session_window.{end} AS timestamp_ntz)"), "timestamp_ntz")
        for end in ("start", "end")
    ]
    items += [(both(name), table.columns[1].type) for name in key] + calls
    select = joined(", ", [item for item, _ in items])
    session = f"session_window({time_}, '{gap} minutes')"
    grouped = Both(
        f"SELECT {select.ours} FROM {ours} GROUP BY {', '.join(['window_start', 'window_end', *key])}",
        f"SELECT {select.sparks} FROM {table.name} GROUP BY {', '.join([session, *key])}",
    )
    return Select(grouped, [], [None] * len(items), False)
