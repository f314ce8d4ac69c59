"""The nodes of a syntax tree: their type, one that sqlglot lacks, how passes make nodes, and parts of conditions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlglot import exp

__all__ = [
    "Node",
    "UnsignedShift",
    "alias_of",
    "column",
    "conditions_of",
    "conjuncts",
    "query_in",
    "set_conditions",
    "subquery",
]

if TYPE_CHECKING:
    # The release that is type-checked uses this name for the base of every node; earlier releases use another one.
    Node = exp.Expr
else:
    Node = exp.Expression


class UnsignedShift(exp.Expression, exp.Binary, exp.Func):
    """`a >>> b`."""


def column(name: str, table: str | None = None) -> exp.Column:
    """The column of that name."""
    return exp.column(exp.to_identifier(name, quoted=True), table and exp.to_identifier(table, quoted=True))


def alias_of(name: str) -> exp.TableAlias:
    """The alias by which a table in FROM has that name."""
    return exp.TableAlias(this=exp.to_identifier(name, quoted=True))


def subquery(query: Node, name: str) -> exp.Subquery:
    """A query in FROM, with a name."""
    return exp.Subquery(this=query, alias=alias_of(name))


def conjuncts(condition: Node) -> list[Node]:
    """The parts of a condition that AND joins."""
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.this), *conjuncts(condition.expression)]
    return [condition]


def conditions_of(tree: Node) -> list[Node]:
    """The parts, without TRUE, of the WHERE of a SELECT or of the ON of a join that AND joins."""
    where = tree.args.get("where")
    condition = tree.args.get("on") if where is None else where.this
    return [] if condition is None else [part for part in conjuncts(condition) if part != exp.true()]


def set_conditions(select: Node, conditions: Iterable[Node]) -> None:
    """Change the WHERE of a SELECT to copies of these conditions, joined by AND; without any, remove it."""
    parts = list(conditions)
    select.set("where", exp.Where(this=exp.and_(*parts)) if parts else None)


def query_in(tree: Node) -> exp.Query | None:
    """The query that a statement runs: the tree itself, or that of an INSERT or a CREATE; None if there is none."""
    query = tree if isinstance(tree, exp.Query) else tree.args.get("expression")
    return query if isinstance(query, exp.Query) else None
