"""Tables joined with the rows of a call, and lookup joins. Spark makes the rows by `inline`, or has them in a table."""

from tests.differential.both import Both, both
from tests.differential.choices import Choices
from tests.differential.expressions import Field, Scope, condition, expression
from tests.differential.tables import Table

__all__ = ["lateral_source", "lookup_source"]

ROWS = """CASE WHEN {0} IS NOT NULL THEN transform(filter(array(0L, 1L, 2L), i -> i < pmod({0}, 3L)), i ->
 CASE WHEN i < 2L THEN named_struct('a', i, 'b', {1}) END) END"""
"""Spark's equivalent of `rows_of`."""
LOOKED_UP = "(SELECT * FROM VALUES (0L, 'a', 0.5D), (1L, 'b', NULL), (2L, NULL, 2.5D) AS q(n, s, d))"
"""What `looked_up` returns for its argument `n`, as a table."""


def lateral_source(draw: Choices, left: Scope, table: Table) -> Both:
    """The table `l` and the rows `r` of a call; their columns are added to the scope."""
    # Spark's side repeats the arguments.
    arguments = [expression(draw, left.without_remote(), type_, 1) for type_ in ("bigint", "string")]
    call = both("{}, {}", *arguments)
    written = draw.of(("rows_of({})", "TABLE(rows_of({}))", "`rows_of@1`({})"))
    rows = Both(written.format(call.ours), f"inline({ROWS.format(*(argument.sparks for argument in arguments))})")
    kind = draw.of(("JOIN", "LEFT JOIN", ",", "CROSS JOIN", "LEFT OUTER JOIN"))
    scope = _with_rows(left, (("a", "bigint"), ("b", "string")))
    source = both("{} AS l {} LATERAL {} AS r(a, b)", table.name, kind, rows)
    if kind in (",", "CROSS JOIN"):
        return source
    on = condition(draw, scope.without_remote(), 1) if draw.chance(70) else both("TRUE")
    return both("{} ON {}", source, on)


def lookup_source(draw: Choices, left: Scope, table: Table) -> Both:
    """The table `l` and what a function returns for one of its columns."""
    value = expression(draw, left.without_remote(), "bigint", 1)
    scope = _with_rows(left, (("n", "bigint"), ("s", "string"), ("d", "double")))
    on = both(draw.of(("r.n = {}", "{} = r.n")), value)
    if draw.chance(60):
        on = both("{} AND {}", on, condition(draw, scope.without_remote(), 1))
    looked_up = Both(draw.of(("looked_up", "`looked_up@1`")) + " FOR SYSTEM_TIME AS OF PROCTIME()", LOOKED_UP)
    return both("{} AS l {} {} AS r ON {}", table.name, draw.of(("JOIN", "LEFT JOIN")), looked_up, on)


def _with_rows(scope: Scope, columns: tuple[tuple[str, str], ...]) -> Scope:
    # Several rows may come from one, so no column is unique.
    scope.unique = []
    scope.fields += [Field(both("{}", f"r.{name}"), type_) for name, type_ in columns]
    return scope
