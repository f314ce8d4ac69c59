"""The contents of FROM: tables, joins, subqueries and common table expressions."""

import dataclasses

from tests.differential.both import Both, both, joined
from tests.differential.choices import Choices
from tests.differential.clauses import select
from tests.differential.expressions import Field, Scope, condition, expression, scope_of
from tests.differential.laterals import lateral_source, lookup_source
from tests.differential.limits import limited
from tests.differential.naming import Select
from tests.differential.tables import Column, Settings, Table, quoted
from tests.differential.values import ORDERABLE, total_order
from tests.differential.windows import grouped_by_windows, window_source

__all__ = ["statement"]


def statement(draw: Choices, tables: tuple[Table, ...], settings: Settings, tags: set[str]) -> Select:
    """A whole query over the tables."""
    kind = draw.weighted([(40, "table"), (15, "join"), (15, "subquery"), (10, "CTE"), (20, "windows"), (5, "top-N"),
                          (10, "lateral"), (6, "lookup"), (8, "limited")])  # fmt: skip
    tags.add(kind)
    if kind == "windows" and any(table.of_type("timestamp", "timestamp_ntz") for table in tables):
        return _windows(draw, tables, settings, tags)
    if kind == "join" and len(tables) > 1:
        return _join(draw, tables, settings, tags)
    if kind in ("lateral", "lookup"):
        left = scope_of(draw, tables[0], settings, "l.")
        left.tags = tags
        source = (lateral_source if kind == "lateral" else lookup_source)(draw, left, tables[0])
        return select(draw, left, source)
    if kind == "limited":
        return limited(draw, tables[0], settings, tags)
    scope = scope_of(draw, tables[0], settings, others=tables if draw.chance(30) else ())
    scope.tags = tags
    if kind == "top-N":
        groups = draw.some(scope.comparable(), 1, 2)
        return select(draw, scope, _first_of(draw, scope, both("{}", tables[0].name), groups))
    if kind in ("subquery", "CTE"):
        return _nested(draw, scope, tables, kind)
    return select(draw, scope, both("{}", tables[0].name))


def _nested(draw: Choices, scope: Scope, tables: tuple[Table, ...], kind: str) -> Select:
    inner = select(draw, scope, both("{}", tables[0].name), nested=True)
    outer = dataclasses.replace(scope, fields=inner.fields, unique=[], others=(), made={})
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
    # Joins by equal keys keep the number of rows small. Spark rejects remote functions in conditions of outer joins.
    sides = [expression(draw, side if kind == "JOIN" else side.without_remote(), type_, 1) for side in (left, right)]
    on = both("{} = {}", *sides)
    if draw.chance(30):
        on = both("{} AND {}", on, condition(draw, scope if kind == "JOIN" else scope.without_remote(), 0))
    # With two tables no single column is unique, so the result of an aggregate by another column is not determined.
    scope.unique = []
    source = both("{} AS l {} {} AS r ON {}", tables[0].name, kind, tables[1].name, on)
    return select(draw, scope, source)


def _first_of(draw: Choices, scope: Scope, source: Both, groups: list[Field]) -> Both:
    """The first rows of each group, in an order without equal rows."""
    rank = draw.of(("row_number", "rank", "dense_rank"))
    partition = joined(", ", [field.text for field in groups])
    type_ = draw.of(("bigint", *sorted({field.type for field in scope.fields if total_order(field.type)})))
    first = both("{}{}", expression(draw, scope, type_, 1), draw.of(("", " DESC", " NULLS LAST")))
    over = both("{}() OVER (PARTITION BY {} ORDER BY {}, {})", rank, partition, first, scope.unique[0])
    return both("(SELECT * FROM (SELECT *, {} AS nth FROM {}) WHERE nth <= {}) AS n", over, source,
                str(draw.between(1, 3)))  # fmt: skip


def _window_join(draw: Choices, scope: Scope, table: Table, time: Column) -> Select:
    """Pairs of rows of one table with the same window and key."""
    scope.tags.add("window join")
    (left, bounds), kind = window_source(draw, scope, table, time), draw.of(("JOIN", "LEFT JOIN", "FULL JOIN"))
    right = left if draw.chance(50) else both("(SELECT * FROM {} WHERE {} > 1)", left, scope.unique[0])
    fields = [*(both("{}", quoted(table.columns[1].name)) for _ in range(draw.below(2))), *(b.text for b in bounds)]
    on = joined(" AND ", [both("l.{} = r.{}", each, each) for each in fields])
    sides = [scope_of(draw, table, scope.settings, f"{name}.") for name in ("l", "r")]
    scope = Scope([field for side in sides for field in side.fields], scope.settings, tags=scope.tags)
    return select(draw, scope, both("{} AS l {} {} AS r ON {}", left, kind, right, on))


def _windows(draw: Choices, tables: tuple[Table, ...], settings: Settings, tags: set[str]) -> Select:
    table = next(table for table in tables if table.of_type("timestamp", "timestamp_ntz"))
    scope = scope_of(draw, table, settings)
    scope.tags = tags
    time = draw.of(table.of_type("timestamp", "timestamp_ntz"))
    if draw.chance(30):
        return grouped_by_windows(draw, scope, table, time)
    if draw.chance(20):
        return _window_join(draw, scope, table, time)
    source, bounds = window_source(draw, scope, table, time)
    scope.fields += bounds
    if draw.chance(20):
        tags.add("window top-N")
        source = _first_of(draw, scope, source, bounds)
    scope.unique = []
    return select(draw, scope, source, keys=bounds if draw.chance(70) else None)
