"""Node: the type of the nodes of a syntax tree; and the parts of a condition."""

from typing import TYPE_CHECKING

from sqlglot import exp

__all__ = ["Node", "conjuncts"]

if TYPE_CHECKING:
    # The release that is type-checked uses this name for the base of every node; earlier releases use another one.
    Node = exp.Expr
else:
    Node = exp.Expression


def conjuncts(condition: Node) -> list[Node]:
    """The parts of a condition that AND joins."""
    while isinstance(condition, exp.Paren):
        condition = condition.this
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.this), *conjuncts(condition.expression)]
    return [condition]
