"""Gives the keys of a grouped SELECT their names again, for subqueries that refer to them: HAVING EXISTS (... = t.k).

In the rewritten SELECT, keys are hidden columns. A subquery is not rewritten, because only Spark knows which of its
names refer to the SELECT around it.
"""

from collections.abc import Mapping

from pyspark.errors import AnalysisException
from sqlglot import exp

from spark_client.sql.rows.sources import Source, column
from spark_client.sql.text.nodes import Node

__all__ = ["tables_of_keys"]


def tables_of_keys(source: Source, select: Node, keys: Mapping[str, Node]) -> list[Node]:
    """A join for each table of the SELECT, with a table of one row that has its name and those of its `keys`.

    `select` is the rewritten SELECT: if it has no subqueries, there are no joins. `keys` contains the keys by the names
    of their columns, which are hidden, except those of windows.
    """
    rest = select.copy()
    rest.set("with_", None)
    if not any(isinstance(node, exp.Query) for node in rest.walk() if node is not rest):
        return []
    found: dict[str, list[Node]] = {}
    for name, key in keys.items():
        relation = _relation_of(source, key) if isinstance(key, exp.Column) else None
        if relation is not None and source.key(name) != source.key(key.name):
            found.setdefault(relation, []).append(exp.alias_(column(name), key.name, quoted=True))
    return [
        exp.Join(
            this=exp.Lateral(
                this=exp.Subquery(this=exp.Select(expressions=items)),
                alias=exp.TableAlias(this=exp.to_identifier(relation, quoted=True)),
            )
        )
        for relation, items in found.items()
    ]


def _relation_of(source: Source, key: exp.Column) -> str | None:
    """The table of a key; None if the key is a field, or its name has more parts than a table and a column."""
    if len(key.parts) > 2 or (key.table and not source.names_relation(key.table)):
        return None
    if key.table:
        return source.key(key.table)
    if len(source.relations) == 1:
        return min(source.relations)
    return next((each for each in sorted(source.relations) if _has_column(source, each, key.name)), None)


def _has_column(source: Source, relation: str, name: str) -> bool:
    try:
        source.run(source.selecting([column(name, relation)]))
    except AnalysisException:
        return False
    return True
