"""The passes over a statement, in their order.

A pass is a function of a scope and a tree. It returns the rewritten tree, or the same tree if there is nothing to do.
To add one, write it in a module of the room of its subject and give it a line in PASSES.
"""

from collections.abc import Callable
from enum import Flag, auto
from functools import partial
from typing import NamedTuple

from spark_client.sql.fewer_calls.fused_calls import with_fused_calls
from spark_client.sql.fewer_calls.joined_calls import without_derived_calls
from spark_client.sql.fewer_calls.limited_calls import with_limited_calls
from spark_client.sql.fewer_calls.needed_items import without_unused_columns
from spark_client.sql.fewer_calls.single_calls import with_single_calls
from spark_client.sql.registry import later
from spark_client.sql.rewriting import with_remote_queries, without_remote_aggregates
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.scope import Rewrite, Scope
from spark_client.sql.rows.shared_operators import SharedOperators
from spark_client.sql.tables.lateral_calls import with_lateral_calls
from spark_client.sql.tables.process_functions import with_process_functions
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import Text
from spark_client.sql.wrong_calls import with_right_counts

__all__ = ["PASSES", "Trees", "rewritten", "scope_of"]


class Trees(Flag):
    """The trees that a pass is for."""

    PLANNED = auto()
    """Statements with functions that Spark does not have: they are run in pieces."""
    WINDOWS = auto()
    """Statements over a view of windows, which may be such statements."""
    SPARK = auto()
    """Statements that Spark runs whole, with calls of scalar functions."""
    CHECKED = auto()
    """Statements that Spark runs as they are written, with such calls."""
    PIECE = auto()
    """Each tree that a planned statement runs."""
    WHOLE = auto()
    """Pieces of whose result every column is computed; the passes for pieces come first."""


class Pass(NamedTuple):
    """A pass, and the trees that it is for."""

    rewrite: Rewrite
    trees: Trees
    when: Callable[[SqlFunctions], bool] = lambda _: True
    """Whether it has anything to do, so that a pass of another package is imported only then."""


PASSES: tuple[Pass, ...] = (
    # An error in the text is reported before anything runs.
    Pass(with_right_counts, Trees.PLANNED | Trees.SPARK | Trees.CHECKED),
    # Joins with the rows of a function become Spark's own, so the passes below see plain tables.
    Pass(with_lateral_calls, Trees.PLANNED),
    # The conditions of the text are measured, before others are moved among them.
    Pass(later("spark_client.models.condition_order:with_ordered_conditions"), Trees.PLANNED | Trees.SPARK,
         when=lambda functions: functions.session.condition_sample > 0),
    # Calls move above a LIMIT, so they are estimated and shared there.
    Pass(with_limited_calls, Trees.SPARK),
    # What is estimated are the calls of the text: the passes below compute some of them.
    Pass(later("spark_client.models.call_estimates:with_estimates"), Trees.PLANNED | Trees.SPARK,
         when=lambda functions: functions.estimate),
    # The rows of a process function are a table for the aggregates around it.
    Pass(with_process_functions, Trees.PLANNED),
    # An aggregate computes all columns of its table, so those that nothing reads are omitted before.
    Pass(without_unused_columns, Trees.PLANNED),
    # Every SELECT with an aggregate is run, from the inside out; Spark can run the rest.
    Pass(without_remote_aggregates, Trees.PLANNED | Trees.WINDOWS),
    # A call of several clauses is made once, below them.
    Pass(with_single_calls, Trees.SPARK | Trees.PIECE),
    # Spark's plan is compared with the calls that are left.
    Pass(without_derived_calls, Trees.SPARK),
    # The calls that are left become one operator, if the value of each of them is needed.
    Pass(with_fused_calls, Trees.SPARK | Trees.WHOLE),
)  # fmt: skip


def rewritten(trees: Trees, scope: Scope, tree: Node) -> Node:
    """The tree after all passes for trees of a kind; the same tree if they change nothing."""
    for each in PASSES:
        if trees in each.trees and each.when(scope.functions):
            tree = each.rewrite(scope, tree)
    return tree


def scope_of(
    functions: SqlFunctions, text: Text, shared: SharedOperators | None = None, *, is_planned: bool = False,
    reads_all: bool = False,
) -> Scope:  # fmt: skip
    """The scope of a statement, in which passes rewrite the trees that they run."""
    return Scope(
        functions, text, piece=partial(rewritten, Trees.PIECE), whole=partial(rewritten, Trees.WHOLE),
        query=with_remote_queries, shared=shared, is_planned=is_planned, reads_all=reads_all,
    )  # fmt: skip
