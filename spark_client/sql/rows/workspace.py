"""Workspace: the DataFrames in a rewritten query, and the execution of parts of the query.

In the tree, a DataFrame is a table with a unique name. It is passed to `spark.sql` as a value, which is valid for that
text only, so nothing remains in the user's catalog.
"""

import copy
import itertools
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from sqlglot import exp

from spark_client.base.calls import GENERATED
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import Identifiers, identifiers_of, quoted
from spark_client.planning.scans import projected, scan_of, selected
from spark_client.planning.selections import selected_as
from spark_client.sql.rows.conditions import Conditions
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.writers import written

__all__ = ["HIDDEN", "Workspace", "picked"]

HIDDEN = f"{GENERATED}sql_"
"""The prefix of generated names of columns and tables."""
_PARTS = ("expressions", "from_", "where")
"""The parts of a SELECT that selects columns and rows, and does nothing else."""

Transformation: TypeAlias = "Callable[[Workspace, Node, Sequence[Node]], Node]"


class Workspace:
    """The workspace of one statement.

    `ready` transforms each tree before it runs, then `fuse` those of which every column is computed. Both receive a
    workspace that runs trees unchanged, the tree, and its CTEs.
    """

    def __init__(
        self, functions: SqlFunctions, text: Text,
        ready: "Transformation | None" = None, fuse: "Transformation | None" = None,
    ) -> None:  # fmt: skip
        self.functions = functions
        self.spark = functions.spark
        self.identifiers = identifiers_of(self.spark)
        self.ready = ready
        self.fuse = fuse
        self._args = text.args
        self._values: dict[str, object] = {}
        self._names: dict[str, str] = {}
        self._numbers = itertools.count()
        self.stages: list[str] = []
        """The steps of the rewriting, in order; for `RemoteSession.explain`."""
        for identifier, field in text.field_names().items():
            self._values[field] = text.fields[field]
            self._names[identifier] = field

    def hidden(self, what: str) -> str:
        """Generate a new name."""
        return f"{HIDDEN}{what}_{next(self._numbers)}"

    def table(self, frame: DataFrame) -> exp.Table:
        """Create a table in the tree for a DataFrame."""
        name = self.hidden("frame")
        self._values[name] = frame
        self._names[name] = name
        return exp.to_table(name)

    def frame_of(self, table: Node | None) -> DataFrame | None:
        """The DataFrame of a table that `table` created; None for any other table."""
        value = self._values.get(self._names.get(table.name, "")) if table is not None else None
        return value if isinstance(value, DataFrame) else None

    def as_is(self) -> "Workspace":
        """A copy that runs trees unchanged."""
        same = copy.copy(self)
        same.ready = same.fuse = None
        return same

    def run(self, tree: Node, ctes: Sequence[Node] = (), *, whole: bool = False) -> DataFrame:
        """Run a query or a statement with these common table expressions, and return its DataFrame.

        `whole` tells that every column of the result is computed.
        """
        if self.ready is not None:
            tree = self.ready(self.as_is(), tree, ctes)
        if self.fuse is not None and whole:
            tree = self.fuse(self.as_is(), tree, ctes)
        source, where = self.frame_of(_only_table(tree)), tree.args.get("where")
        found = picked(source, tree.expressions) if source is not None and where is None else None
        if found is not None:
            return found
        text = written(_with(tree, ctes, self.identifiers) if ctes else tree)
        if not self._names:
            return self.spark.sql(text, args=self._args)
        frame, columns = self._run(text), _plain_columns(tree)
        if source is None or columns is None or scan_of(source) is None:
            return frame
        try:
            condition = None if where is None else Conditions(self.spark, written(where.this))
            return projected(source, frame, columns, condition)
        except (PlanError, AnalysisException):
            return frame  # Spark reads the rows, for example if the condition has a parameter

    def _run(self, text: str) -> DataFrame:
        pattern = re.compile("`?\\b(" + "|".join(map(re.escape, self._names)) + ")\\b`?")
        used = {self._names[match] for match in pattern.findall(text)}
        escaped = text.replace("{", "{{").replace("}", "}}")
        filled = pattern.sub(lambda match: f"{{{self._names[match[1]]}}}", escaped)
        return self.spark.sql(filled if used else text, args=self._args, **{name: self._values[name] for name in used})


def picked(frame: DataFrame, items: Sequence[Node]) -> DataFrame | None:
    """The frame with these items, without a text that Spark would parse; None if they are not columns of the frame."""
    columns: dict[str, str | Column] = {}
    if len(items) == 1 and items[0] == exp.Star():
        return selected(frame, "*")
    for item in items:
        column = item.this if isinstance(item, exp.Alias) else item
        name = column.name if isinstance(column, exp.Column) and len(column.parts) == 1 else ""
        if name not in frame.columns or item.alias_or_name in columns:
            return None
        columns[item.alias_or_name] = quoted(name)
    if list(columns.items()) == [(name, quoted(name)) for name in frame.columns]:
        return frame
    return selected_as(frame, columns)


def _only_table(tree: Node) -> Node | None:
    """The table of a query that selects columns and rows of one table and does nothing else, or None."""
    if not isinstance(tree, exp.Select) or any(value for part, value in tree.args.items() if part not in _PARTS):
        return None
    table = tree.args["from_"].this if tree.args.get("from_") else None
    if table is not None and table.alias_column_names:
        return None  # `AS t(a, b)` gives the columns other names
    own = table.args.items() if isinstance(table, exp.Table) else [("", table)]
    return None if any(value for part, value in own if part not in ("this", "alias")) else table


def _plain_columns(select: Node) -> list[str] | None:
    """The items of a SELECT as `projected` takes them; None if there is an expression."""
    columns = []
    for item in select.expressions:
        column = item.this if isinstance(item, exp.Alias) else item
        if isinstance(item, exp.Star) and not any(item.args.values()):
            columns.append("*")
        elif isinstance(column, exp.Column) and len(column.parts) == 1 and not column.is_star:
            columns.append(column.name if column is item else f"{column.name} AS {item.alias}")
        else:
            return None
    return columns


def _with(tree: Node, ctes: Sequence[Node], identifiers: Identifiers) -> Node:
    """The tree with these common table expressions around it. One of several with the same name sees the one before."""
    scopes: list[dict[str, Node]] = []
    recursive: list[bool] = []
    for cte in ctes:
        name, repeats = identifiers.key(cte.alias), isinstance(cte.parent, exp.With) and cte.parent.recursive
        if not scopes or name in scopes[-1] or repeats != recursive[-1]:
            scopes.append({})
            recursive.append(repeats)
        scopes[-1][name] = cte.copy()
    whole = tree.copy()
    for scope, repeats in zip(reversed(scopes), reversed(recursive), strict=True):
        if whole.args.get("with_"):
            whole = exp.Subquery(this=whole)
        whole.set("with_", exp.With(expressions=list(scope.values()), recursive=repeats))
    return whole
