"""Tables joined with the rows of a call, and lookup joins. Spark makes the rows by `inline`, or has them in a table."""

from tests.differential.both import Both, both, joined
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
    """The table `l` and what a function returns for one of its columns, or several rows for two of them."""
    several = draw.chance(30)
    keys = [expression(draw, left.without_remote(), type_, 1) for type_ in ("bigint", "string")[: 1 + several]]
    columns = (("a", "bigint"), ("b", "string")) if several else (("d", "double"),)
    scope = _with_rows(left, (("n", "bigint"), ("s", "string"), *columns))
    equal = [both(draw.of(("r.{0} = {1}", "{1} = r.{0}")), name, key) for name, key in zip("ns", keys, strict=False)]
    # Spark's optimizer drops a join whose condition is constant, with what its keys would fail with; a call is made.
    if draw.chance(60) and "division" not in scope.tags:
        equal.append(condition(draw, scope.without_remote(), 1))
    name = draw.of(("rows_of",) if several else ("looked_up", "`looked_up@1`"))
    looked_up = Both(f"{name} FOR SYSTEM_TIME AS OF PROCTIME()", _rows_of_keys(*keys) if several else LOOKED_UP)
    kind = draw.of(("JOIN", "LEFT JOIN"))
    return both("{} AS l {} {} AS r ON {}", table.name, kind, looked_up, joined(" AND ", equal))


def _rows_of_keys(n: Both, s: Both) -> str:
    rows = f"filter({ROWS.format('q.n', 'q.s')}, i -> i IS NOT NULL)"
    keys = f"(SELECT {n.sparks} AS n, {s.sparks} AS s) AS q"
    return f"LATERAL (SELECT q.n, q.s, p.a, p.b FROM {keys} JOIN LATERAL inline({rows}) AS p(a, b))"


def _with_rows(scope: Scope, columns: tuple[tuple[str, str], ...]) -> Scope:
    # Several rows may come from one, so no column is unique.
    scope.unique = []
    scope.fields += [Field(both("{}", f"r.{name}"), type_) for name, type_ in columns]
    return scope
