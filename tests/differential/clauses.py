"""Random SELECT statements: items, WHERE, GROUP BY with its sets, HAVING, OVER, DISTINCT, ORDER BY and LIMIT."""

from tests.differential.aggregate_items import aggregate_item
from tests.differential.both import Both, both, joined
from tests.differential.choices import Choices
from tests.differential.expressions import Field, Scope, condition, expression, scope_of
from tests.differential.naming import Select, Shadow, draw_shadow, named, not_hidden, ordered_by, sorts
from tests.differential.overs import over_item
from tests.differential.tables import quoted
from tests.differential.values import COLLATED, NUMBERS

__all__ = ["select"]


def select(
    draw: Choices, scope: Scope, source: Both, *, keys: list[Field] | None = None, nested: bool = False
) -> Select:
    """A random statement over the source; if `keys` are given, they are among its keys."""
    shadow = draw_shadow(draw, scope) if draw.chance(25) else None
    conditions = [condition(draw, scope)] if draw.chance(40) else []
    if shadow is not None and draw.chance(85):
        conditions.append(both("{} IS NOT NULL", shadow.call))
    where = both(" WHERE {}", joined(" AND ", conditions)) if conditions else both("")
    if conditions:
        scope.tags.add("WHERE")
    kind = "grouped" if keys is not None else draw.weighted([(30, "plain"), (40, "grouped"), (30, "over")])
    scope.tags.add(kind)
    if kind == "grouped":
        return _grouped(draw, scope, both("{}{}", source, where), keys or [], nested, shadow)
    return _rows(draw, scope, both("{}{}", source, where), kind == "over", nested, shadow)


def _rows(
    draw: Choices, scope: Scope, source: Both, overs: bool, nested: bool, shadow: Shadow | None
) -> Select:  # fmt: skip
    types = sorted({field.type for field in scope.fields})
    items: list[tuple[Both, str]] = []
    windows: list[Both] = []

    def plain() -> None:
        type_ = draw.of(("bigint", *types))
        items.append((expression(draw, scope, type_, 2), type_))

    if shadow is not None:
        items.append((shadow.item, shadow.field.type))
    draw.several(plain, 1, 3)
    if overs:
        shared = draw.chance(40)
        items += [over_item(draw, scope, windows if shared else None) for _ in range(draw.between(1, 3))]
    distinct = both("DISTINCT ") if not overs and draw.chance(15) and sorts(items) else both("")
    if distinct.ours:
        scope.tags.add("DISTINCT rows")
    named_items, names = named(draw, scope, items, nested, shadow)
    clause = both(" WINDOW {}", joined(", ", windows)) if windows else both("")
    if overs and draw.chance(25):
        clause = both("{}{}", clause, _qualify(draw, scope, items, names))
    text = both("SELECT {}{} FROM {}{}", distinct, joined(", ", named_items), source, clause)
    seen = not_hidden(scope, items, names)
    order = [] if distinct.ours else [expression(draw, seen, draw.of(("bigint", "string")), 1)]
    return ordered_by(draw, scope, text, items, names, order, shadow)


def _grouped(
    draw: Choices, scope: Scope, source: Both, needed: list[Field], nested: bool, shadow: Shadow | None
) -> Select:  # fmt: skip
    comparable = scope.comparable()
    keys: list[tuple[Both, str]] = [(field.text, field.type) for field in needed]
    if shadow is not None:
        keys.append((shadow.field.text, shadow.field.type))

    def key() -> None:
        field = draw.of(comparable)
        if draw.chance(30):
            keys.append((expression(draw, scope, field.type, 1), field.type))
        elif all(field.text != text for text, _ in keys):
            keys.append((field.text, field.type))

    draw.several(key, 0 if keys or draw.chance(10) else 1, 2)
    clause, sets = _group_by(draw, scope, [text for text, _ in keys], len(needed))
    # If a collation considers keys equal, Spark may return any of them.
    items = [(both("lower({})", text), type_) if type_ == COLLATED else (text, type_) for text, type_ in keys]
    items = [each for each in items if draw.chance(80)]
    items += [(both("-({})", text), type_) for text, type_ in keys if type_ in NUMBERS and draw.chance(15)]
    if shadow is not None:
        items.insert(0, (both("-({})", shadow.field.text), shadow.field.type))

    columns = [field.text for field in comparable if field.type == "bigint"]
    guards = [text for text, _ in keys if text in columns and not sets]
    guard = draw.of(guards) if guards and draw.chance(20) else None
    if guard is not None:
        # Spark checks a condition on keys before it aggregates rows, which would fail for others.
        scope.tags.add("HAVING of keys")
        items.append((Both(f"vsum_bigint(10 div {guard.ours})", f"sum(10 div {guard.sparks})"), "bigint"))

    def aggregate() -> None:
        items.append(aggregate_item(draw, scope))

    draw.several(aggregate, 1, 3)
    if sets and draw.chance(40):
        items.append((both("CAST(grouping_id() AS bigint)"), "bigint"))
    named_items, names = named(draw, scope, items, nested, shadow)
    having = both("")
    if draw.chance(20):
        scope.tags.add("HAVING")
        left, _ = aggregate_item(draw, scope, "bigint")
        shown = [both("{}", quoted(name)) for name, (_, type_) in zip(names, items, strict=True)
                 if name is not None and type_ == "bigint"]  # fmt: skip
        if shown and draw.chance(40):
            scope.tags.add("HAVING of an alias")
            left = draw.of(shown)
        having = both(" HAVING {} > {}", left, draw.of(("0", "2")))
    if guard is not None:
        having = both("{} {} <> 0", both("{} AND", having) if having.ours else both(" HAVING"), guard)
    outer = [field for field in comparable if field.text in [text for text, _ in keys] and "." not in field.text.ours]
    outer = [
        field for field in outer if field.text.ours.strip("`").lower() not in [str(name).lower() for name in names]
    ]
    if outer and scope.others and not sets and draw.chance(20):
        having = both("{} {}", both("{} AND", having) if having.ours else both(" HAVING"), _exists(draw, scope, outer))
    text = both("SELECT {} FROM {}{}{}", joined(", ", named_items), source, clause, having)
    # A call of a name that an item of another type hides has an argument of that type: functions here take one only.
    seen = not_hidden(scope, items, names).fields
    hidden = [field.text.ours.lower() for field in scope.fields if field not in seen]
    called = [text for text, _ in keys if not any(f"({name}" in text.ours.lower() for name in hidden)]
    order = [draw.of(called or [both("1")])]
    # In ORDER BY, the arguments of Spark's aggregates see the nulls of grouping sets; in the SELECT they see the row's
    # keys.
    if not sets:
        order += [aggregate_item(draw, not_hidden(scope, items, names), "bigint")[0]]
    return ordered_by(draw, scope, text, items, names, order, shadow)


def _exists(draw: Choices, scope: Scope, keys: list[Field]) -> Both:
    """A subquery that refers to one of the keys."""
    scope.tags.add("HAVING of an outer key")
    key, table = draw.of(keys), draw.of(scope.others)
    inner = expression(draw, scope_of(draw, table, scope.settings).without_remote(), key.type, 1)
    return both("EXISTS (SELECT 1 FROM (SELECT {} AS zz FROM {}) WHERE zz = {})", inner, table.name, key.text)


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


def _qualify(draw: Choices, scope: Scope, items: list[tuple[Both, str]], names: list[str | None]) -> Both:
    """A condition over a window, or over the alias of one."""
    scope.tags.add("QUALIFY")
    over = over_item(draw, scope, None)
    shown = [(both("{}", quoted(name)), type_) for (_, type_), name in zip(items, names, strict=True) if name]
    text, type_ = draw.of([over, *shown])
    template = draw.of(("{} IS NOT NULL", "{} IS NULL", *(("{} > 1", "{} <= 2") if type_ == "bigint" else ())))
    return both(" QUALIFY " + template, text)
