"""Cases of changelogs: process functions and aggregates over random changes, compared with the remaining rows."""

import dataclasses
from typing import Any

from tests.differential.cases import Case, draw_settings
from tests.differential.choices import Choices
from tests.differential.tables import Column, Settings, Table, written

__all__ = ["draw_changelog"]

OPERATIONS = {"+I": "INSERT", "-U": "UPDATE_BEFORE", "+U": "UPDATE_AFTER", "-D": "DELETE"}


@dataclasses.dataclass(frozen=True)
class _Changes:
    """Changes of rows with the key `id`, the group `k` and the value `v`, and the remaining rows."""

    table: Table
    left: list[tuple[int, int | None, int | None]]

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """The changes in order."""
        return [row for part in self.table.parts for row in part]


def draw_changelog(draw: Choices) -> Case:
    """A call of a function that accepts changes."""
    settings = draw_settings(draw)
    return draw.of((_to_changelog, _from_changelog, _grouped, _changes_of_groups))(draw, settings)


def _changes(draw: Choices) -> _Changes:
    nullable = draw.chance(50)
    known: dict[int, tuple[int, int | None, int | None]] = {}
    rows: list[tuple[Any, ...]] = []

    def change() -> None:
        key = draw.below(4)
        k, v = draw.below(2), draw.between(0, 5)
        new = (key, None if nullable and draw.chance(10) else k, None if nullable and draw.chance(20) else v)
        before = known.pop(key, None)
        if before is None:
            rows.append((len(rows), *new, "+I"))
        elif draw.chance(30):
            rows.append((len(rows), *before, "-D"))
            return
        else:
            # A row stays in its group: a process function partitioned by it sees updates of its own key.
            new = (key, before[1], new[2])
            rows.append((len(rows), *before, "-U"))
            rows.append((len(rows), *new, "+U"))
        known[key] = new

    draw.several(change, 0, 12)
    types = ("bigint", "int", "int", "bigint", "string")
    names = ("n", "id", "k", "v", "row_kind")
    columns = tuple(Column(name, type_, nullable) for name, type_ in zip(names, types, strict=True))
    return _Changes(Table("c", columns, (tuple(rows),)), list(known.values()))


def _to_changelog(draw: Choices, settings: Settings) -> Case:
    changes = _changes(draw)
    key = ", partition_by='id'" if draw.chance(50) else ""
    ours = f"remote.process('to_changelog', spark.table('c').drop('n'){key})"
    expected = [
        (id_, OPERATIONS[kind], k, v) if key else (OPERATIONS[kind], id_, k, v) for _, id_, k, v, kind in changes.rows
    ]
    return Case(settings, (changes.table,), ours, written(expected), {"process", "changelog", "to_changelog"})


def _from_changelog(draw: Choices, settings: Settings) -> Case:
    """The input is the output of `to_changelog`; the result must be the changes again."""
    changes = _changes(draw)
    ours = "remote.process('to_changelog', spark.table('c').drop('n'), partition_by='id')"
    ours = f"remote.process('from_changelog', {ours}, partition_by='id')"
    expected = [row[1:] for row in changes.rows]
    return Case(settings, (changes.table,), ours, written(expected), {"process", "changelog", "from_changelog"})


def _grouped(draw: Choices, settings: Settings) -> Case:
    """Aggregates of the changes: the values of the remaining rows."""
    changes = _changes(draw)
    total = draw.of(("sum_bigint", "rsum_bigint", "vsum_bigint"))
    if draw.chance(50):
        items = f"{total}(v) AS s, count_bigint(v) AS n, sort_array(list_bigint(v)) AS l, count(*) AS c"
        query = f"SELECT k, {items} FROM c GROUP BY k"
        ours = f"remote.sql({query!r})"
    else:
        calls = f"remote.function({total!r})('v').alias('s'), remote.function('count_bigint')('v').alias('n')"
        calls += ", remote.function('list_bigint')('v').alias('l'), F.count('*').alias('c')"
        ours = f"remote.group_by(spark.table('c'), 'k', order_by='n').agg({calls})"
        ours += ".withColumn('l', F.sort_array('l'))"
    expected = [(k, total, len(values), sorted(values), n) for k, total, values, n in _left(changes)]
    return Case(settings, (changes.table,), ours, written(expected), {"changelog", "changelog grouped"})


def _left(changes: _Changes) -> list[tuple[int | None, int | None, list[int], int]]:
    """For each group: the sum of the remaining values, these values, and the number of rows."""
    groups: dict[int | None, list[int | None]] = {}
    for _, k, v in changes.left:
        groups.setdefault(k, []).append(v)
    found = []
    for k, values in groups.items():
        known = [v for v in values if v is not None]
        found.append((k, sum(known) if known else None, known, len(values)))
    return found


def _changes_of_groups(draw: Choices, settings: Settings) -> Case:
    """The changes of the values of groups: applied, they give the values of the remaining rows."""
    changes = _changes(draw)
    total = draw.of(("sum_bigint", "rsum_bigint", "vsum_bigint"))
    calls = f"remote.function({total!r})('v').alias('s'), remote.function('list_bigint')('v').alias('l')"
    per = draw.of(("", ", per='bundle'"))
    ours = f"remote.group_by(spark.table('c'), 'k', order_by='n').changelog({calls}{per})"
    ours += ".groupBy('k', 's', F.sort_array('l')).agg(F.expr(\"sum(if(row_kind IN ('+I', '+U'), 1, -1))\").alias('c'))"
    expected = [(k, total, sorted(values), 1) for k, total, values, _ in _left(changes)]
    tags = {"changelog", "changes of groups"}
    return Case(settings, (changes.table,), f"{ours}.where('c <> 0')", written(expected), tags)
