"""Cases of process table functions, compared with the model, or with Spark's own functions if there are any."""

import datetime as dt
from typing import Any

from tests.differential.cases import Case, draw_settings
from tests.differential.choices import Choices
from tests.differential.model import emitted
from tests.differential.tables import Column, Settings, Table, draw_table, quoted, written
from tests.differential.values import value

__all__ = ["draw_process"]

STEPS = (
    "emit", "sum", "push", "put", "note", "twice", "pop", "drop", "clear total", "clear items", "clear entries",
    "clear record", "clear",
)  # fmt: skip
KEYS = (
    "bigint", "int", "string", "double", "boolean", "timestamp", "timestamp_ntz", "date", "decimal(10,2)", "smallint",
    "binary", "interval day to second", "array<bigint>", "time(6)",
)  # fmt: skip
"""Types of keys that are shown as they are, but for the sign of zero."""
TIMED = ("timer a 30", "timer b 10", "timer a 0", "tick 20", "tick -10", "untimer a", "untimers")


def draw_process(draw: Choices) -> Case:
    """A call of a process table function, by `remote.process` or in SQL."""
    settings = draw_settings(draw)
    return draw.of((_machine, _numbered, _merged, _repeated))(draw, settings)


def _events(draw: Choices, settings: Settings, time: str, name: str = "e") -> Table:
    """A table of `id`, `k`, `v` and `at`, which is never null."""
    columns = (
        Column("id", "bigint", not draw.chance(50)), Column("k", draw.of(("string", "int")), not draw.chance(30)),
        Column("v", "bigint", not draw.chance(30)), Column("at", time, draw.chance(50)),
    )  # fmt: skip
    near = (settings.near, settings.zone)
    numbers = iter(range(1_000_000))

    def row() -> tuple[Any, ...]:
        k, v = (value(draw, column.type, near, column.nullable) for column in columns[1:3])
        return (next(numbers), k, v, value(draw, time, near, nulls=False))

    return Table(name, columns, tuple(tuple(draw.several(row, 0, 8)) for _ in range(draw.between(1, 2))))


def _machine(draw: Choices, settings: Settings) -> Case:
    time = draw.of(("timestamp", "timestamp_ntz"))
    table = _events(draw, settings, time)
    timed = draw.chance(60)
    steps = (*STEPS, *TIMED) if timed else STEPS
    program = ";".join(draw.several(lambda: draw.of(steps), 1, 6))
    on_timer = ";".join(draw.several(lambda: draw.of(STEPS), 0, 3))
    keys: dict[Any, list[tuple[Any, ...]]] = {}
    for part in table.parts:
        for row in part:
            keys.setdefault(row[1], []).append(row)
    expected = []
    for key, rows in keys.items():
        ordered = sorted(((_naive(row[3]), row[0], row[2]) for row in rows), key=lambda row: row[:2])
        given = [(at if timed else None, v) for at, _, v in ordered]
        expected += [(key, *row) for row in emitted(given, program, on_timer)]
    size = f", options={{'size': '{draw.of((1, 2, 3))}'}}" if draw.chance(30) else ""
    tags = {"process", "machine", *(["timers"] if timed else [])}
    if not timed and draw.chance(40):
        # A table function of Spark has no time, and returns no key.
        expected = [row[1:] for row in expected]
        tags.add("table function")
        programs = f"program => '{program}', on_timer => '{on_timer}'"
        call = f"machine(rows => TABLE(e) PARTITION BY k ORDER BY (at, id), {programs})"
        ours = f"(remote.register('machine'), spark.sql({'SELECT * FROM ' + call!r}))[1]"
    elif draw.chance(50):
        on_time = ", on_time='at'" if timed else ""
        order = f"partition_by='k', order_by=['at', 'id']{on_time}{size}"
        ours = f"remote.process('machine', spark.table('e'), {order}, program={program!r}, on_timer={on_timer!r})"
    else:
        on_time = ", on_time => DESCRIPTOR(at)" if timed else ""
        programs = f"program => '{program}', on_timer => '{on_timer}'"
        call = f"machine(rows => TABLE e PARTITION BY k ORDER BY (at, id), {programs}{on_time})"
        ours = f"remote.sql({'SELECT * FROM ' + call!r})"
    rows_written = ", ".join(written(row) for row in expected)
    return Case(settings, (table,), ours, f"[{rows_written}]", tags)


def _naive(time: dt.datetime) -> dt.datetime:
    return time.astimezone(dt.UTC).replace(tzinfo=None) if time.tzinfo else time


def _numbered(draw: Choices, settings: Settings) -> Case:
    time = draw.of(("timestamp", "timestamp_ntz"))
    table = draw_table(draw, "t", settings, needed=(time,))
    at = draw.of([column for column in table.columns if column.type == time])
    direction = draw.of(("", " DESC", " NULLS LAST", " DESC NULLS FIRST"))
    name = quoted(at.name)
    keys = draw.some([column.name for column in table.of_type(*KEYS)], 0, 3)
    listed = ", ".join(map(quoted, keys))
    if draw.chance(50):
        orders = [f"{at.name}{direction}", "id"]
        ours = f"remote.process('numbered', spark.table('t'), partition_by={keys}, order_by={orders})"
    else:
        partition = f" PARTITION BY {f'({listed})' if len(keys) > 1 else listed}" if keys else ""
        call = f"numbered(TABLE t{partition} ORDER BY ({name}{direction}, id))"
        ours = f"remote.sql({'SELECT * FROM ' + call!r})"
    over = f"{f'PARTITION BY {listed} ' if keys else ''}ORDER BY {name}{direction}, id"
    # Spark shows the key of the row, remote-udf shows 0.0 for -0.0, which is the same key.
    shown = [f"{quoted(each)} + 0.0D" if type_ == "double" else quoted(each) for each, type_ in _typed(table, keys)]
    select = ", ".join([*shown, f"row_number() OVER ({over})", "id"])
    sparks = f"spark.sql({f'SELECT {select} FROM t'!r})"
    return Case(settings, (table,), ours, sparks, {"process", "order_by", f"partition by {len(keys)} columns"})


def _typed(table: Table, names: list[str]) -> list[tuple[str, str]]:
    types = {column.name: column.type for column in table.columns}
    return [(name, types[name]) for name in names]


def _merged(draw: Choices, settings: Settings) -> Case:
    time = draw.of(("timestamp", "timestamp_ntz"))
    one, other = (_events(draw, settings, time, name) for name in ("e", "f"))
    if one.columns[1].type != other.columns[1].type:
        other = Table("f", (other.columns[0], one.columns[1], *other.columns[2:]), ((),))
    ours = (
        "remote.process('merged', {'one': spark.table('e'), 'other': spark.table('f')}, partition_by='k', "
        "on_time=['at', 'at']).select('k', 'n', 'rowtime')"
    )
    both_tables = "(SELECT k, at FROM e UNION ALL SELECT k, at FROM f)"
    query = f"SELECT k, row_number() OVER (PARTITION BY k ORDER BY at), at FROM {both_tables}"
    return Case(settings, (one, other), ours, f"spark.sql({query!r})", {"process", "several tables"})


def _repeated(draw: Choices, settings: Settings) -> Case:
    table = draw_table(draw, "t", settings)
    times = draw.between(0, 3)
    ours = f"remote.process('repeated', spark.table('t'), times={times})"
    query = f"SELECT t.*, x FROM t LATERAL VIEW explode(slice(array(0, 1, 2), 1, {times})) e AS x"
    return Case(settings, (table,), ours, f"spark.sql({query!r})", {"process", "columns passed through"})
