"""Node: the type of the nodes of a syntax tree."""

from typing import TYPE_CHECKING

from sqlglot import exp

__all__ = ["Node"]

if TYPE_CHECKING:
    # The release that is type-checked uses this name for the base of every node; earlier releases use another one.
    Node = exp.Expr
else:
    Node = exp.Expression
