"""Random SELECT statements: items, WHERE, GROUP BY with its sets, HAVING, OVER, DISTINCT, ORDER BY and LIMIT."""

import dataclasses

from tests.differential.both import Both, both, joined
from tests.differential.choices import Choices
from tests.differential.expressions import Field, Scope, condition, expression
from tests.differential.imitations import Aggregate, aggregates_of
from tests.differential.overs import over_item
from tests.differential.tables import quoted
from tests.differential.values import COLLATED, NUMBERS, ORDERABLE, total_order

__all__ = ["Select", "select"]

ALIASES = ("r", "s", "u", "k", "v", "x.y", "has space", "id", "é", "K", "q`q")
CLASHING = ("k", "v", "id")
"""Aliases that are names of columns as well."""
BUILTIN = (
    ("bigint", "count(*)", ()), ("bigint", "sum({})", ("bigint",)), ("bigint", "max({})", ("bigint",)),
    ("double", "avg({})", ("bigint",)), ("bigint", "count(DISTINCT {})", ("string",)),
    ("string", "min({})", ("string",)),
    ("bigint", "sum({}) FILTER (WHERE {})", ("bigint", "boolean")), ("bigint", "count_if({})", ("boolean",)),
)  # fmt: skip
GUARDED = "guarded by FILTER"
"""Beside a DISTINCT with a FILTER, Spark computes the arguments of all aggregates for every row, and may fail there."""


@dataclasses.dataclass
class Select:
    """A statement, the columns of its result, and what is known of their order."""

    text: Both
    fields: list[Field]
    names: list[str | None]
    """The names of the columns; None where a column has no alias."""
    ordered: bool


def select(
    draw: Choices, scope: Scope, source: Both, *, keys: list[Field] | None = None, nested: bool = False
) -> Select:
    """A random statement over the source; grouped by `keys` at least, where there are any."""
    where = both(" WHERE {}", condition(draw, scope)) if draw.chance(40) else both("")
    if where.ours:
        scope.tags.add("WHERE")
    kind = "grouped" if keys is not None else draw.weighted([(30, "plain"), (40, "grouped"), (30, "over")])
    scope.tags.add(kind)
    if kind == "grouped":
        return _grouped(draw, scope, both("{}{}", source, where), keys or [], nested)
    return _rows(draw, scope, both("{}{}", source, where), kind == "over", nested)


def _rows(draw: Choices, scope: Scope, source: Both, overs: bool, nested: bool) -> Select:
    types = sorted({field.type for field in scope.fields})
    items: list[tuple[Both, str]] = []
    windows: list[Both] = []

    def plain() -> None:
        type_ = draw.of(("bigint", *types))
        items.append((expression(draw, scope, type_, 2), type_))

    draw.several(plain, 1, 3)
    if overs:
        named = draw.chance(40)
        items += [over_item(draw, scope, windows if named else None) for _ in range(draw.between(1, 3))]
    distinct = both("DISTINCT ") if not overs and draw.chance(15) and _sorts(items) else both("")
    if distinct.ours:
        scope.tags.add("DISTINCT rows")
    named_items, names = _named(draw, scope, items, nested)
    clause = both(" WINDOW {}", joined(", ", windows)) if windows else both("")
    if overs and draw.chance(25):
        clause = both("{}{}", clause, _qualify(draw, scope, items, names))
    text = both("SELECT {}{} FROM {}{}", distinct, joined(", ", named_items), source, clause)
    seen = _not_hidden(scope, items, names)
    order = [] if distinct.ours else [expression(draw, seen, draw.of(("bigint", "string")), 1)]
    return _ordered(draw, scope, text, items, names, order, nested)


def _grouped(draw: Choices, scope: Scope, source: Both, needed: list[Field], nested: bool) -> Select:
    comparable = scope.comparable()
    keys: list[tuple[Both, str]] = [(field.text, field.type) for field in needed]

    def key() -> None:
        field = draw.of(comparable)
        if draw.chance(30):
            keys.append((expression(draw, scope, field.type, 1), field.type))
        elif all(field.text != text for text, _ in keys):
            keys.append((field.text, field.type))

    draw.several(key, 0 if needed or draw.chance(10) else 1, 2)
    clause, sets = _group_by(draw, scope, [text for text, _ in keys], len(needed))
    # Of keys that a collation finds equal, any may be the one that is shown.
    items = [(both("lower({})", text), type_) if type_ == COLLATED else (text, type_) for text, type_ in keys]
    items = [each for each in items if draw.chance(80)]
    items += [(both("-({})", text), type_) for text, type_ in keys if type_ in NUMBERS and draw.chance(15)]

    def aggregate() -> None:
        items.append(_aggregate_item(draw, scope))

    draw.several(aggregate, 1, 3)
    if sets and draw.chance(40):
        items.append((both("CAST(grouping_id() AS bigint)"), "bigint"))
    named_items, names = _named(draw, scope, items, nested)
    having = both("")
    if draw.chance(20):
        scope.tags.add("HAVING")
        left, _ = _aggregate_item(draw, scope, "bigint")
        shown = [both("{}", quoted(name)) for name, (_, type_) in zip(names, items, strict=True)
                 if name is not None and type_ == "bigint"]  # fmt: skip
        if shown and draw.chance(40):
            scope.tags.add("HAVING of an alias")
            left = draw.of(shown)
        having = both(" HAVING {} > {}", left, draw.of(("0", "2")))
    text = both("SELECT {} FROM {}{}{}", joined(", ", named_items), source, clause, having)
    order = [draw.of([text for text, _ in keys] or [both("1")])]
    # In ORDER BY Spark gives aggregates the keys with the nulls of grouping sets, and in the SELECT those of the rows.
    if not sets:
        order += [_aggregate_item(draw, _not_hidden(scope, items, names), "bigint")[0]]
    return _ordered(draw, scope, text, items, names, order, nested)


def _group_by(draw: Choices, scope: Scope, keys: list[Both], needed: int) -> tuple[Both, bool]:
    if not keys:
        return both(""), False
    plain = joined(", ", keys)
    how = (
        draw.weighted([(60, "plain"), (12, "ROLLUP"), (12, "CUBE"), (16, "GROUPING SETS")]) if needed == 0 else "plain"
    )
    scope.tags.add("GROUP BY" if how == "plain" else how)
    if how == "plain":
        return both(" GROUP BY {}", plain), False
    if how != "GROUPING SETS":
        return both(" GROUP BY {} ({})", how, plain), True
    sets = [draw.some(keys) for _ in range(draw.between(1, 3))] + [keys]
    written = joined(", ", [both("({})", joined(", ", each)) for each in sets])
    return both(" GROUP BY GROUPING SETS ({})", written), True


def _aggregate_item(draw: Choices, scope: Scope, type_: str | None = None) -> tuple[Both, str]:
    """An aggregate, perhaps within an expression."""
    if draw.chance(25):
        guarded = GUARDED in scope.tags
        known = [each for each in BUILTIN if type_ in (None, each[0]) and not (guarded and "DISTINCT" in each[1])]
        returns, template, types = draw.of(known)
        scope.tags |= {"Spark's aggregate beside", *(["DISTINCT"] if "DISTINCT" in template else [])}
        return both(template, *(expression(draw, scope, each, 1) for each in types)), returns
    call, returns = aggregate_call(draw, scope, type_)
    if returns == "bigint" and draw.chance(20):
        other, _ = _aggregate_item(draw, scope, "bigint")
        return both(draw.of(("{} + {}", "coalesce({}, {})", "CASE WHEN {} > 0 THEN {} END")), call, other), returns
    return call, returns


def aggregate_call(draw: Choices, scope: Scope, type_: str | None = None) -> tuple[Both, str]:
    """A call of a remote aggregate over groups, and Spark's: with DISTINCT, FILTER and WITHIN GROUP."""
    known = aggregates_of({field.type for field in scope.fields} | {"bigint"})
    found = [
        each for each in known
        if type_ in (None, each.returns) and (scope.unique or not (each.unique or each.sorted_by))
    ]  # fmt: skip
    chosen = draw.of(found)
    scope.tags.add(_form(chosen))
    inner = scope if draw.chance(70) else scope.without_remote()
    arguments = [expression(draw, inner, chosen.parameters[0], 1)]
    filtered = both("")
    if draw.chance(25):
        filtered, arguments[0] = _filter(draw, scope, chosen, arguments[0])
    if chosen.unique:
        arguments.append(scope.unique[0])
    if chosen.sorted_by:
        order = scope.unique[0]
        ours = f"{chosen.name}({arguments[0].ours}) WITHIN GROUP (ORDER BY {order.ours}){filtered.ours}"
        scope.tags.add("WITHIN GROUP")
        return Both(ours, chosen.sorted_by.format(arguments[0].sparks, order.sparks) + filtered.sparks), chosen.returns
    distinct = ""
    is_comparable = not (chosen.ordered or chosen.unique) and chosen.parameters[0] in ORDERABLE
    if is_comparable and GUARDED not in scope.tags and draw.chance(20):
        distinct = "DISTINCT "
        scope.tags.add("DISTINCT")
    listed = ", ".join(each.ours for each in arguments)
    spark_call = chosen.sparks.format(distinct + arguments[0].sparks, *(each.sparks for each in arguments[1:]))
    call = Both(f"{chosen.name}({distinct}{listed}){filtered.ours}", spark_call + filtered.sparks)
    if chosen.ordered:
        return both("sort_array({})", call), chosen.returns
    return call, chosen.returns


def _filter(draw: Choices, scope: Scope, chosen: Aggregate, argument: Both) -> tuple[Both, Both]:
    """A FILTER, and the argument, which may be one that only the FILTER keeps from failing."""
    scope.tags.add("FILTER")
    if chosen.parameters[0] == "bigint" and "DISTINCT" not in scope.tags and draw.chance(30):
        scope.tags.add(GUARDED)
        by = expression(draw, scope.without_remote(), "bigint", 0)
        return both(" FILTER (WHERE {} <> 0)", by), both("10 div {}", by)
    return both(" FILTER (WHERE {})", condition(draw, scope, 0)), argument


def _form(chosen: Aggregate) -> str:
    return chosen.name.rsplit("_", 1)[0]


def _named(
    draw: Choices, scope: Scope, items: list[tuple[Both, str]], nested: bool
) -> tuple[list[Both], list[str | None]]:
    """The items with their aliases; the names of a subquery's columns differ."""
    texts, names, left = [], [], list(ALIASES)
    if not scope.settings.case_sensitive:
        left.remove("K")
    for item, _ in items:
        if nested or draw.chance(70):
            clashing = [name for name in left if name in CLASHING]
            name = draw.of(clashing) if clashing and draw.chance(35) else draw.of(left)
            own = item.ours.rpartition(".")[2]
            if own in left and draw.chance(60):
                name = own  # of a field of a struct, or of a qualified column
            left.remove(name)
            texts.append(both("{} AS {}", item, quoted(name)))
            names.append(name)
        else:
            texts.append(item)
            names.append(None)
    return texts, names


def _sorts(items: list[tuple[Both, str]]) -> bool:
    return all(total_order(type_) for _, type_ in items)


def _not_hidden(scope: Scope, items: list[tuple[Both, str]], names: list[str | None]) -> Scope:
    """The scope without columns that an item of another type hides in ORDER BY."""
    types = {quoted(name).lower(): type_ for name, (_, type_) in zip(names, items, strict=True) if name is not None}
    left = [
        field for field in scope.fields
        if all(type_ == field.type or not f"{field.text.ours.lower()}.".startswith(f"{name}.")
               for name, type_ in types.items())
    ]  # fmt: skip
    return scope if len(left) == len(scope.fields) else dataclasses.replace(scope, fields=left, made={}, others=())


def _qualify(draw: Choices, scope: Scope, items: list[tuple[Both, str]], names: list[str | None]) -> Both:
    """A condition over a window, or over the alias of one."""
    scope.tags.add("QUALIFY")
    over = over_item(draw, scope, None)
    shown = [(both("{}", quoted(name)), type_) for (_, type_), name in zip(items, names, strict=True) if name]
    text, type_ = draw.of([over, *shown])
    template = draw.of(("{} IS NOT NULL", "{} IS NULL", *(("{} > 1", "{} <= 2") if type_ == "bigint" else ())))
    return both(" QUALIFY " + template, text)


def _ordered(
    draw: Choices, scope: Scope, text: Both, items: list[tuple[Both, str]], names: list[str | None],
    others: list[Both], nested: bool,
) -> Select:  # fmt: skip
    """The statement with ORDER BY and LIMIT: all columns at the end make the order one of rows that differ."""
    fields = [
        Field(both("{}", quoted(name)), type_)
        for name, (_, type_) in zip(names, items, strict=True)
        if name is not None
    ]
    ordered = _sorts(items) and draw.chance(35)
    if ordered:
        scope.tags.add("ORDER BY")
        first = draw.of([*(field.text for field in fields if field.type in ORDERABLE), *others, both("1")])
        if draw.chance(30) and fields and scope.remote:
            numbers = [field for field in fields if field.type == "bigint"]
            first = (
                Both(
                    f"same_bigint({numbers[0].text.ours})",
                    f"coalesce({numbers[0].text.sparks}, {numbers[0].text.sparks})",
                )
                if numbers
                else first
            )
        direction = draw.of(("", " DESC", " NULLS LAST", " DESC NULLS FIRST"))
        rest = ", ".join(str(position) for position in range(1, len(items) + 1))
        text = both("{} ORDER BY {}{}, {}", text, first, direction, rest)
        if draw.chance(60):
            scope.tags.add("LIMIT")
            text = both("{} LIMIT {}", text, str(draw.between(1, 5)))
    return Select(text, fields, names, ordered)
