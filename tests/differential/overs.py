"""Random OVER clauses: partitions, orders, ROWS and RANGE frames, named windows."""

from tests.differential.both import Both, both, joined
from tests.differential.choices import Choices
from tests.differential.expressions import Scope, expression
from tests.differential.imitations import Aggregate, aggregates_of

__all__ = ["OFFSETS", "over_item"]

MONTHS = ("INTERVAL 1 MONTH", "INTERVAL 2 MONTHS", "INTERVAL 13 MONTHS")
OFFSETS = {
    "bigint": (("1", "2", "0", "5"), ("1", "5000000000000000000")),
    "int": (("1", "3"),),
    "double": (("0.5D", "2.25D"), ("1", "2"), ("0.5D", "1e308D")),
    "decimal(10,2)": (("0.5", "1.5"), ("1", "2")),
    "timestamp": (
        ("INTERVAL 1 DAY", "INTERVAL 2 DAYS"), ("INTERVAL 1 DAY", "INTERVAL 3 DAYS"),
        ("INTERVAL 1 HOUR", "INTERVAL 24 HOURS"), ("INTERVAL '30' MINUTE",),
        ("INTERVAL '1 01:00:00' DAY TO SECOND", "INTERVAL '0 00:00:10' DAY TO SECOND"), MONTHS,
    ),
    "timestamp_ntz": (("INTERVAL 1 DAY",), ("INTERVAL 1 HOUR",), ("INTERVAL '90' MINUTE",), MONTHS),
    "date": (("INTERVAL 1 DAY", "INTERVAL 2 DAYS"), ("1", "3"), MONTHS),
}  # fmt: skip
"""The bounds of RANGE frames by the type of the order; Spark requires two bounds of one type."""
DIRECTIONS = ("", " DESC", " NULLS LAST", " DESC NULLS FIRST", " ASC NULLS FIRST")


def over_item(draw: Choices, scope: Scope, windows: list[Both] | None) -> tuple[Both, str]:
    """An aggregate over a window, perhaps within an expression; named windows are appended to `windows`."""
    total, spec = _spec(draw, scope)
    if windows is not None:
        scope.tags.add("named window")
        if windows and draw.chance(60):
            # The order of a shared window may be partial, so values must not depend on it.
            spec, total = both("w1"), False
        else:
            windows.append(both("w{} AS {}", str(len(windows) + 1), spec))
            spec = both("w{}", str(len(windows)))
    if draw.chance(20):
        scope.tags.add("Spark's aggregate beside")
        return both("sum({}) OVER {}", expression(draw, scope, "bigint", 1), spec), "bigint"
    known = aggregates_of({field.type for field in scope.fields} | {"bigint"})
    found = [each for each in known if (total or not each.ordered) and (scope.unique or not each.unique)]
    chosen = (
        draw.of([each for each in found if each.name.startswith("list")] or found)
        if draw.chance(15)
        else draw.of(found)
    )
    call = _call(draw, scope, chosen, spec)
    if chosen.returns == "bigint" and draw.chance(20):
        return both(draw.of(("{} - {}", "coalesce({}, {})")), call, expression(draw, scope, "bigint", 1)), "bigint"
    if chosen.returns == "bigint" and draw.chance(10):
        scope.tags.add("guarded")
        by = expression(draw, scope.without_remote(), "bigint", 0)
        return both("CASE WHEN {} <> 0 THEN 10 div {} * {} END", by, by, call), "bigint"
    return call, chosen.returns


def _call(draw: Choices, scope: Scope, chosen: Aggregate, spec: Both) -> Both:
    scope.tags.add(f"{chosen.name.rsplit('_', 1)[0]} over")
    arguments = [expression(draw, scope, chosen.parameters[0], 1)]
    if chosen.unique:
        arguments.append(scope.unique[0])
    ours = f"{chosen.name}({', '.join(each.ours for each in arguments)})"
    return both("{} OVER {}", Both(ours, chosen.sparks.format(*(each.sparks for each in arguments))), spec)


def _spec(draw: Choices, scope: Scope) -> tuple[bool, Both]:
    """A window, and whether its frames and the order in them are determined for each row."""
    comparable = scope.comparable()
    partition = both("")
    if draw.chance(70):
        keys = [
            expression(draw, scope, field.type, 1) if draw.chance(20) else field.text
            for field in draw.some(comparable, 1, 2)
        ]
        partition = both("PARTITION BY {}", joined(", ", keys))
    kind = draw.weighted([(15, "none"), (25, "default"), (30, "rows"), (30, "range")])
    if kind == "none" or (kind == "rows" and not scope.unique):
        return False, both("({})", partition)
    if kind == "range":
        return False, both("({} {})", partition, _range(draw, scope))
    direction = draw.of(DIRECTIONS)
    order = both("ORDER BY {}{}", draw.of(comparable).text, direction)
    if scope.unique:
        order = both("{}, {}", order, joined(", ", scope.unique))
    frame = both("{}", _rows_frame(draw)) if kind == "rows" else both("")
    scope.tags.add("ROWS" if kind == "rows" else "OVER ORDER BY")
    return bool(scope.unique), both("({} {} {})", partition, order, frame)


def _rows_frame(draw: Choices) -> str:
    start = draw.of((-3, -2, -1, 0, 1, 2))
    end = draw.between(start, 3)
    from_, to = (
        ("UNBOUNDED PRECEDING" if draw.chance(30) else _bound(start)),
        ("UNBOUNDED FOLLOWING" if draw.chance(20) else _bound(end)),
    )
    return f"ROWS BETWEEN {from_} AND {to}"


def _bound(offset: int) -> str:
    return "CURRENT ROW" if offset == 0 else f"{abs(offset)} {'PRECEDING' if offset < 0 else 'FOLLOWING'}"


def _range(draw: Choices, scope: Scope) -> Both:
    """An order by one column and a frame by its values."""
    scope.tags.add("RANGE")
    times = scope.of_type("timestamp", "timestamp_ntz")
    field = draw.of(times if times and draw.chance(50) else scope.of_type(*OFFSETS) or scope.comparable())
    order = both("ORDER BY {}{}", field.text, draw.of(DIRECTIONS))
    if field.type not in OFFSETS:
        return order
    scope.tags.add(f"RANGE over {field.type}")
    offsets = draw.of(OFFSETS[field.type])
    start = draw.of(("UNBOUNDED PRECEDING", "CURRENT ROW", *(f"{offset} PRECEDING" for offset in offsets)))
    end = draw.of(("CURRENT ROW", "UNBOUNDED FOLLOWING", *(f"{offset} FOLLOWING" for offset in offsets)))
    if draw.chance(30):
        scope.tags.add("RANGE on one side")
        at = draw.of(offsets)
        start, end = draw.of((
            (f"{at} PRECEDING", f"{at} PRECEDING"), (f"{at} FOLLOWING", f"{at} FOLLOWING"),
            ("UNBOUNDED PRECEDING", f"{at} PRECEDING"), (f"{at} FOLLOWING", "UNBOUNDED FOLLOWING"),
        ))  # fmt: skip
    return both("{} RANGE BETWEEN {} AND {}", order, start, end)
