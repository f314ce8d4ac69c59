"""Random aggregates over groups: with DISTINCT, FILTER, WITHIN GROUP, within expressions, beside Spark's own."""

from tests.differential.both import Both, both
from tests.differential.choices import Choices
from tests.differential.expressions import Scope, condition, expression
from tests.differential.imitations import Aggregate, aggregates_of
from tests.differential.values import ORDERABLE

__all__ = ["aggregate_call", "aggregate_item"]

BUILTIN = (
    ("bigint", "count(*)", ()), ("bigint", "sum({})", ("bigint",)), ("bigint", "max({})", ("bigint",)),
    ("double", "avg({})", ("bigint",)), ("bigint", "count(DISTINCT {})", ("string",)),
    ("string", "min({})", ("string",)),
    ("bigint", "sum({}) FILTER (WHERE {})", ("bigint", "boolean")), ("bigint", "count_if({})", ("boolean",)),
)  # fmt: skip
GUARDED = "guarded by FILTER"
"""Beside a DISTINCT with a FILTER, Spark evaluates the arguments of all aggregates for all rows, and may fail."""


def aggregate_item(draw: Choices, scope: Scope, type_: str | None = None) -> tuple[Both, str]:
    """An aggregate, perhaps within an expression."""
    if draw.chance(25):
        guarded = GUARDED in scope.tags
        known = [each for each in BUILTIN if type_ in (None, each[0]) and not (guarded and "DISTINCT" in each[1])]
        returns, template, types = draw.of(known)
        scope.tags |= {"Spark's aggregate beside", *(["DISTINCT"] if "DISTINCT" in template else [])}
        return both(template, *(expression(draw, scope, each, 1) for each in types)), returns
    call, returns = aggregate_call(draw, scope, type_)
    if returns == "bigint" and draw.chance(20):
        other, _ = aggregate_item(draw, scope, "bigint")
        # Spark does not compute what follows a count in coalesce, because a count is never null.
        whole = ("coalesce({}, {})",) if not call.sparks.startswith("count") else ()
        return both(draw.of(("{} + {}", *whole, "CASE WHEN {} > 0 THEN {} END")), call, other), returns
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
    """A FILTER, and the argument, whose evaluation may fail without the FILTER."""
    scope.tags.add("FILTER")
    if chosen.parameters[0] == "bigint" and "DISTINCT" not in scope.tags and draw.chance(30):
        scope.tags.add(GUARDED)
        by = expression(draw, scope.without_remote(), "bigint", 0)
        return both(" FILTER (WHERE {} <> 0)", by), both("10 div {}", by)
    return both(" FILTER (WHERE {})", condition(draw, scope, 0)), argument


def _form(chosen: Aggregate) -> str:
    return chosen.name.rsplit("_", 1)[0]
