"""`remote.lateral_join` and `remote.estimate`: calls of a function that returns rows, and what calls would cost."""

from tests.differential.both import Both
from tests.differential.cases import Case, draw_settings, draw_tables
from tests.differential.choices import Choices
from tests.differential.expressions import Scope, condition, expression, scope_of
from tests.differential.imitations import IDENTITIES
from tests.differential.laterals import ROWS
from tests.differential.plugin.suffixes import SUFFIXES

__all__ = ["draw_estimate", "draw_lateral_join"]

OPTIONS = ("", ", output_mode='unordered'", ", on_error='null'")
AFTER = (
    "", ".select('id')", ".groupBy().count()", ".where('p > 0').select('id', 'q')", ".select('q')",
    ".groupBy('q').agg(F.sum('id'), F.count('*'))", ".where('q IS NULL').select('p')",
)  # fmt: skip
"""What may follow a join, so that Spark removes columns and moves conditions."""


def draw_lateral_join(draw: Choices) -> Case:
    """Each row of a frame with the rows of a call, whose arguments may have calls as well."""
    settings = draw_settings(draw)
    tables = draw_tables(draw, settings)
    scope = scope_of(draw, tables[0], settings)
    frame = _frame(draw, scope)
    arguments = [_argument(draw, scope, type_) for type_ in ("bigint", "string")]
    how = draw.of(("inner", "left"))
    call = f"remote.function('rows_of')({', '.join(argument.ours for argument in arguments)})"
    ours = f"remote.lateral_join({frame}, {call}, '{how}', names=['p', 'q']{draw.of(OPTIONS)})"
    made = ROWS.format(*(argument.sparks for argument in arguments))
    rows = f"inline{'_outer' if how == 'left' else ''}({made}) AS (p, q)"
    after = draw.of(AFTER)
    tags = {"frame", "lateral_join", *(["lateral_join, then more"] if after else [])}
    return Case(settings, tables[:1], f"{ours}{after}", f"{frame}.selectExpr('*', {rows!r}){after}", tags)


def draw_estimate(draw: Choices) -> Case:
    """The numbers of rows, calls and different calls."""
    settings = draw_settings(draw)
    tables = draw_tables(draw, settings)
    scope = scope_of(draw, tables[0], settings)
    frame = _frame(draw, scope)
    skips = draw.chance(30)
    type_ = "bigint" if skips else draw.of(("bigint", *sorted({f.type for f in scope.fields if f.type in SUFFIXES})))
    argument = expression(draw, scope.without_remote(), type_, 1).sparks
    name = "plus" if skips else f"{draw.of(tuple(IDENTITIES))}_{SUFFIXES[type_]}"
    estimate = f"remote.estimate({frame}, remote.function({name!r})(F.expr({argument!r})))"
    # A vectorized function is called for many rows at once, how many is up to the server.
    amount = "e.distinct_calls" if name.startswith("v") else "int(e.amounts.get('calls', 0))"
    ours = f"(lambda e: [(e.rows, e.calls, e.distinct_calls, {amount})])({estimate})"
    called = ".where('x IS NOT NULL')" if skips else ""
    different = f"rows{called}.groupBy('x').count().count()"
    numbers = f"[(rows.count(), rows{called}.count(), n := {different}, n)]"
    sparks = f"(lambda rows: {numbers})({frame}.selectExpr({f'{argument} AS x'!r}))"
    return Case(settings, tables[:1], ours, sparks, {"frame", "estimate"})


def _frame(draw: Choices, scope: Scope) -> str:
    if draw.chance(30):
        return f"spark.table('t').where({condition(draw, scope.without_remote(), 0).sparks!r})"
    return "spark.table('t')"


def _argument(draw: Choices, scope: Scope, type_: str) -> Both:
    """A column, perhaps by its name, perhaps with a call around it."""
    columns = [field for field in scope.of_type(type_) if "." not in field.text.ours]
    if columns and draw.chance(30):
        column = draw.of(columns).text.ours
        return Both(repr(column), column)
    text = expression(draw, scope.without_remote(), type_, 1).sparks
    if draw.chance(30):
        return Both(f"remote.function('same_{SUFFIXES[type_]}')(F.expr({text!r}))", f"coalesce({text}, {text})")
    return Both(f"F.expr({text!r})", text)
