"""Cases that Spark supports and `remote.sql` does not: they must be rejected with the documented messages."""

from tests.differential.cases import Case
from tests.differential.choices import Choices
from tests.differential.expressions import expression, scope_of
from tests.differential.tables import Settings, Table

__all__ = ["draw_refused"]

TEMPLATES = (
    "SELECT * FROM (SELECT *, id % 2 AS g FROM t) PIVOT ({} FOR g IN (0, 1))",
    "FROM t |> AGGREGATE {} GROUP BY v",
    "SELECT (SELECT {} FROM t AS x WHERE x.id = y.id) FROM t AS y",
    "WITH RECURSIVE r(n) AS (SELECT 1L UNION ALL SELECT n + {} FROM r, t WHERE n < 2 GROUP BY n) SELECT * FROM r",
)
"""Queries with `{}` for an aggregate."""


def draw_refused(draw: Choices, settings: Settings, table: Table) -> Case:
    """An aggregate in a place where a remote one is not allowed."""
    argument = expression(draw, scope_of(draw, table, settings).without_remote(), "bigint", 1).sparks
    template = draw.of(TEMPLATES)
    ours, sparks = (template.format(f"{name}({argument})") for name in ("sum_bigint", "sum"))
    return Case(settings, (table,), f"remote.sql({ours!r})", f"spark.sql({sparks!r})", {"sql", "refused"})
