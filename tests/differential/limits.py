"""LIMIT with calls in the SELECT: the calls of a table's first rows, alone or in a larger query."""

import dataclasses

from tests.differential.both import Both, both, joined
from tests.differential.choices import Choices
from tests.differential.clauses import select
from tests.differential.expressions import Field, Scope, condition, expression, scope_of
from tests.differential.naming import Select, named
from tests.differential.tables import Settings, Table, quoted
from tests.differential.values import total_order

__all__ = ["limited"]

DIRECTIONS = ("", " DESC", " NULLS LAST", " DESC NULLS FIRST")


def limited(draw: Choices, table: Table, settings: Settings, tags: set[str]) -> Select:
    """The first rows of a table, in an order without equal rows; without an order they are counted."""
    # An item may have the name of a column, so the columns are qualified.
    source = draw.of(("t", "x"))
    scope = scope_of(draw, table, settings, f"{source}.")
    scope.tags = tags
    if source == "x":
        source = f"{draw.of((table.name, f'(SELECT * FROM {table.name})'))} AS x"
    where = both(" WHERE {}", condition(draw, scope.without_remote(), 0)) if draw.chance(30) else both("")
    types = ("bigint", *sorted({field.type for field in scope.fields}))
    items = [(expression(draw, scope, type_, 2), type_) for type_ in draw.several(lambda: draw.of(types), 1, 3)]
    nested = draw.chance(40)
    texts, names = named(draw, scope, items, nested, None)
    text = both("SELECT {} FROM {}{}", joined(", ", texts), source, where)
    rows = f" LIMIT {draw.between(0, 6)}{f' OFFSET {draw.between(0, 3)}' if draw.chance(25) else ''}"
    if draw.chance(10):
        return Select(both("SELECT count(*) FROM ({}{})", text, rows), [], [None], False)
    text = both("{} ORDER BY {}", text, _order(draw, scope, items, names))
    fields = [Field(both("{}", quoted(name)), type_) for name, (_, type_) in zip(names, items, strict=True) if name]
    first = Select(both("{}{}", text, rows), fields, names, True)
    if not nested:
        return first
    tags.add("limited below")
    if draw.chance(30):
        return Select(both("SELECT * FROM ({}) AS w", first.text), fields, names, False)
    outer = dataclasses.replace(scope, fields=fields, unique=[], others=(), made={})
    return select(draw, outer, both("({}) AS w", first.text))


def _order(draw: Choices, scope: Scope, items: list[tuple[Both, str]], names: list[str | None]) -> Both:
    """An order that ends with the unique column of the table."""
    known = [field.text for field in scope.fields if total_order(field.type)]
    known += [text for text, type_ in items if total_order(type_)]
    shown = [name for name, (_, type_) in zip(names, items, strict=True) if name is not None and total_order(type_)]
    known += [both("{}", quoted(name)) for name in shown]
    keys = [both("{}{}", key, draw.of(DIRECTIONS)) for key in draw.some(known, 0, 2)]
    return joined(", ", [*keys, scope.unique[0]])
