"""Node: what a tree of SQL is made of."""

from typing import TYPE_CHECKING

from sqlglot import exp

__all__ = ["Node"]

if TYPE_CHECKING:
    # The base of every node has this name in the release that types are checked with, and another one in earlier ones.
    Node = exp.Expr
else:
    Node = exp.Expression
