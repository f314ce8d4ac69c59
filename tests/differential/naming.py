"""Names of items and the columns that they hide: aliases, ORDER BY over them, items with the name of a column."""

import dataclasses

from tests.differential.both import Both, both
from tests.differential.choices import Choices
from tests.differential.expressions import Field, Scope
from tests.differential.imitations import identity
from tests.differential.tables import quoted
from tests.differential.values import NUMBERS, ORDERABLE, total_order

__all__ = ["Select", "Shadow", "draw_shadow", "named", "not_hidden", "ordered_by", "sorts"]

ALIASES = ("r", "s", "u", "k", "v", "x.y", "has space", "id", "é", "K", "q`q", "values", "for", "on")
CLASHING = ("k", "v", "id")
"""Aliases that are names of columns as well."""


@dataclasses.dataclass
class Shadow:
    """A column with the name of an item, and a call of it that several clauses contain."""

    field: Field
    item: Both
    """The meaning of the name in the result."""
    call: Both


@dataclasses.dataclass
class Select:
    """A statement, the columns of its result, and whether they are ordered."""

    text: Both
    fields: list[Field]
    names: list[str | None]
    """The names of the columns; None for columns without an alias."""
    ordered: bool


def draw_shadow(draw: Choices, scope: Scope) -> Shadow | None:
    """A column that an item will hide; preferably one with the name of a field of a struct."""
    numbers = [field for field in scope.of_type(*NUMBERS) if field.text.ours.isidentifier()]
    if not numbers or not scope.remote:
        return None
    scope.tags.add("shadow")
    alike = {
        f.text.ours: [g.text for g in scope.of_type(f.type) if g.text.ours.endswith(f".{f.text.ours}")] for f in numbers
    }
    field = draw.of([field for field in numbers if alike[field.text.ours]] or numbers)
    item = draw.of([*alike[field.text.ours], both("-({})", field.text)])
    return Shadow(field, item, identity(draw, field.type, field.text))


def named(
    draw: Choices, scope: Scope, items: list[tuple[Both, str]], nested: bool, shadow: Shadow | None
) -> tuple[list[Both], list[str | None]]:
    """The items with their aliases; the names of a subquery's columns differ. The first item is that of the shadow."""
    texts, names, left = [], [], list(ALIASES)
    if not scope.settings.case_sensitive:
        left.remove("K")
    if shadow is not None:
        names.append(shadow.field.text.ours)
        texts.append(both("{} AS {}", items[0][0], names[0]))
        left = [name for name in left if name.lower() != names[0].lower()]
    for item, _ in items[len(names) :]:
        if nested or draw.chance(70):
            clashing = [name for name in left if name in CLASHING]
            name = draw.of(clashing) if clashing and draw.chance(35) else draw.of(left)
            own = item.ours.rpartition(".")[2]
            if own in left and draw.chance(60):
                name = own  # the name of a field of a struct, or of a qualified column
            left.remove(name)
            texts.append(both("{} AS {}", item, quoted(name)))
            names.append(name)
        else:
            texts.append(item)
            names.append(None)
    return texts, names


def sorts(items: list[tuple[Both, str]]) -> bool:
    return all(total_order(type_) for _, type_ in items)


def not_hidden(scope: Scope, items: list[tuple[Both, str]], names: list[str | None]) -> Scope:
    """The scope without columns that an item of another type hides in ORDER BY."""
    types = {quoted(name).lower(): type_ for name, (_, type_) in zip(names, items, strict=True) if name is not None}
    left = [
        field for field in scope.fields
        if all(type_ == field.type or not f"{field.text.ours.lower()}.".startswith(f"{name}.")
               for name, type_ in types.items())
    ]  # fmt: skip
    return scope if len(left) == len(scope.fields) else dataclasses.replace(scope, fields=left, made={}, others=())


def ordered_by(
    draw: Choices, scope: Scope, text: Both, items: list[tuple[Both, str]], names: list[str | None],
    others: list[Both], shadow: Shadow | None,
) -> Select:  # fmt: skip
    """The statement with ORDER BY and LIMIT. ORDER BY ends with all columns, which orders all unequal rows."""
    fields = [
        Field(both("{}", quoted(name)), type_)
        for name, (_, type_) in zip(names, items, strict=True)
        if name is not None
    ]
    ordered = sorts(items) and draw.chance(35 if shadow is None else 80)
    if ordered:
        scope.tags.add("ORDER BY")
        first = draw.of([*(field.text for field in fields if field.type in ORDERABLE), *others, both("1")])
        if draw.chance(30) and fields and scope.remote:
            # A name of several items refers to a column below them, which may have another type.
            bare = [item.ours.lower() for (item, _), name in zip(items, names, strict=True) if name is None]
            unnamed = {*bare, *(text.rpartition(".")[2] for text in bare)}
            numbers = [field for field in fields if field.type == "bigint" and field.text.ours.lower() not in unnamed]
            first = (
                Both(
                    f"same_bigint({numbers[0].text.ours})",
                    f"coalesce({numbers[0].text.sparks}, {numbers[0].text.sparks})",
                )
                if numbers
                else first
            )
        if shadow is not None and draw.chance(80):
            first = draw.of((shadow.field.text, shadow.call))
        direction = draw.of(("", " DESC", " NULLS LAST", " DESC NULLS FIRST"))
        rest = ", ".join(str(position) for position in range(1, len(items) + 1))
        text = both("{} ORDER BY {}{}, {}", text, first, direction, rest)
        if draw.chance(60):
            scope.tags.add("LIMIT")
            text = both("{} LIMIT {}", text, str(draw.between(1, 5)))
    return Select(text, fields, names, ordered)
