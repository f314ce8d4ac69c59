"""What stands in FROM: tables, joins, subqueries and common table expressions."""

import dataclasses

from tests.differential.both import both
from tests.differential.choices import Choices
from tests.differential.clauses import Select, select
from tests.differential.expressions import Scope, condition, expression, scope_of
from tests.differential.tables import Settings, Table
from tests.differential.values import ORDERABLE
from tests.differential.windows import grouped_by_windows, window_source

__all__ = ["statement"]


def statement(draw: Choices, tables: tuple[Table, ...], settings: Settings, tags: set[str]) -> Select:
    """A whole query over the tables."""
    kind = draw.weighted([(40, "table"), (15, "join"), (15, "subquery"), (10, "CTE"), (20, "windows")])
    tags.add(kind)
    if kind == "windows" and any(table.of_type("timestamp", "timestamp_ntz") for table in tables):
        return _windows(draw, tables, settings, tags)
    if kind == "join" and len(tables) > 1:
        return _join(draw, tables, settings, tags)
    scope = scope_of(draw, tables[0], settings, others=tables if draw.chance(30) else ())
    scope.tags = tags
    if kind in ("subquery", "CTE"):
        return _nested(draw, scope, tables, kind)
    return select(draw, scope, both("{}", tables[0].name))


def _nested(draw: Choices, scope: Scope, tables: tuple[Table, ...], kind: str) -> Select:
    inner = select(draw, scope, both("{}", tables[0].name), nested=True)
    outer = dataclasses.replace(scope, fields=inner.fields, unique=[], others=())
    if kind == "CTE":
        query = select(draw, outer, both("w"))
        return dataclasses.replace(query, text=both("WITH w AS ({}) {}", inner.text, query.text))
    return select(draw, outer, both("({}) AS w", inner.text))


def _join(draw: Choices, tables: tuple[Table, ...], settings: Settings, tags: set[str]) -> Select:
    left, right = (
        scope_of(draw, table, settings, f"{name}.") for table, name in zip(tables[:2], ("l", "r"), strict=True)
    )
    left.tags = right.tags = tags
    kind = draw.of(("JOIN", "LEFT JOIN", "FULL JOIN", "RIGHT JOIN"))
    fields = [*left.fields, *right.fields]
    scope = Scope(fields, settings, [*left.unique, *right.unique], tags=tags)
    shared = sorted({f.type for f in left.fields} & {f.type for f in right.fields} & set(ORDERABLE))
    type_ = draw.of(shared)
    # Joins by equal keys keep the number of rows small. Spark refuses remote functions in conditions of outer joins.
    sides = [expression(draw, side if kind == "JOIN" else side.without_remote(), type_, 1) for side in (left, right)]
    on = both("{} = {}", *sides)
    if draw.chance(30):
        on = both("{} AND {}", on, condition(draw, scope if kind == "JOIN" else scope.without_remote(), 0))
    # With two tables there is no one unique column, and an aggregate by another one is not determined.
    scope.unique = []
    source = both("{} AS l {} {} AS r ON {}", tables[0].name, kind, tables[1].name, on)
    return select(draw, scope, source)


def _windows(draw: Choices, tables: tuple[Table, ...], settings: Settings, tags: set[str]) -> Select:
    table = next(table for table in tables if table.of_type("timestamp", "timestamp_ntz"))
    scope = scope_of(draw, table, settings)
    scope.tags = tags
    time = draw.of(table.of_type("timestamp", "timestamp_ntz"))
    if draw.chance(30):
        return grouped_by_windows(draw, scope, table, time)
    source, bounds = window_source(draw, scope, table, time)
    scope.fields += bounds
    scope.unique = []
    return select(draw, scope, source, keys=bounds if draw.chance(70) else None)
