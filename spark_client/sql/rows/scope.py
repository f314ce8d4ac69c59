"""Scope: what a tree of one statement may refer to: the DataFrames in it, and the common table expressions around it.

In the tree, a DataFrame is a table with a unique name. It is passed to `spark.sql` as a value, which is valid for that
text only, so nothing remains in the user's catalog.
"""

import copy
import itertools
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType
from sqlglot import exp

from spark_client.base.calls import GENERATED
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import Identifiers, identifiers_of
from spark_client.planning.scans import projected, scan_of
from spark_client.sql.rows.functions import SqlFunctions
from spark_client.sql.rows.shared_operators import SharedOperators
from spark_client.sql.rows.sources import SelectSource, picked
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import Text
from spark_client.sql.text.writers import written

__all__ = ["HIDDEN", "Rewrite", "Scope", "columns_of", "each_select", "visible_ctes"]

HIDDEN = f"{GENERATED}sql_"
"""The prefix of generated names of columns and tables."""
_PARTS = ("expressions", "from_", "where")
"""The parts of a SELECT that selects columns and rows, and does nothing else."""

Rewrite: TypeAlias = "Callable[[Scope, Node], Node]"
"""A pass: it returns the rewritten tree, or the same tree if nothing changes."""


class Scope:
    """The scope of one statement; `inside` and `around` make those of its parts."""

    def __init__(
        self, functions: SqlFunctions, text: Text, *, piece: "Rewrite | None" = None, whole: "Rewrite | None" = None,
        query: "Rewrite | None" = None, shared: SharedOperators | None = None, is_planned: bool = False,
        reads_all: bool = False,
    ) -> None:  # fmt: skip
        """Keep what passes share.

        Args:
            functions: The functions of the session.
            text: The statement.
            piece: Rewrites each tree before it runs.
            whole: Rewrites each tree after `piece` if every column of its result is computed.
            query: Rewrites a query that a pass runs by itself, such as that of a table argument.
            shared: The calls that the statements of a set share.
            is_planned: Whether the text has calls that Spark does not have. A pass that finds one sets it.
            reads_all: Whether the text calls a function in FROM that reads all columns of a table.

        """
        self.functions = functions
        self.text = text
        self.shared = shared or SharedOperators()
        self.is_planned = is_planned
        self.reads_all = reads_all
        self.spark = functions.spark
        self.identifiers = identifiers_of(self.spark)
        self.key = self.identifiers.key
        """Two names are the same for Spark if their keys are equal."""
        self.ctes: Sequence[Node] = ()
        """The common table expressions that are visible, the outermost first."""
        self.stages: list[str] = []
        """The steps of the rewriting, in order; for `RemoteSession.explain`."""
        self._piece, self._whole, self._query = piece, whole, query
        self._values: dict[str, object] = {}
        self._names: dict[str, str] = {}
        self._numbers = itertools.count()
        self._sources: dict[int, tuple[Node, SelectSource]] = {}
        self._ran: dict[int, tuple[Node, DataFrame]] = {}
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

    def inside(self, ctes: Sequence[Node]) -> "Scope":
        """The scope in which these common table expressions are visible, too."""
        return self._with(ctes=[*self.ctes, *ctes]) if ctes else self

    def around(self, node: Node) -> "Scope":
        """The scope of a node inside a tree of this scope, without its own common table expressions."""
        return self.inside(visible_ctes(node))

    def outside(self) -> "Scope":
        """The scope without common table expressions."""
        return self._with(ctes=()) if self.ctes else self

    def as_is(self) -> "Scope":
        """The scope that runs trees unchanged."""
        return self._with(_piece=None, _whole=None)

    def unexplained(self) -> "Scope":
        """The scope whose steps are not described."""
        return self._with(stages=[])

    def _with(self, **changes: object) -> "Scope":
        same = copy.copy(self)
        vars(same).update(changes, _sources={})
        return same

    def source(self, select: Node) -> SelectSource:
        """The rows of a SELECT. Passes over one SELECT share them, so it must not change any more."""
        if id(select) not in self._sources:
            self._sources[id(select)] = select, SelectSource(select, self.key, self.run)
        return self._sources[id(select)][1]

    def columns(self, select: Node) -> list[tuple[str, DataType]]:
        """The names and types of the columns of a query."""
        return columns_of(self.run(select))

    def rewritten(self, query: Node) -> Node:
        """A query that a pass runs by itself, without remote aggregates."""
        return query if self._query is None else self._query(self, query)

    def run(self, tree: Node, *, whole: bool = False) -> DataFrame:
        """Run a query or a statement. `whole` tells that every column of the result is computed."""
        if self._piece is not None:
            tree = self._piece(self.as_is(), tree)
        if self._whole is not None and whole:
            tree = self._whole(self.as_is(), tree)
        if id(tree) in self._ran:
            return self._ran[id(tree)][1]
        source, where = self.frame_of(_only_table(tree)), tree.args.get("where")
        found = picked(source, tree.expressions) if source is not None and where is None else None
        if found is not None:
            return found
        text = written(_with(tree, self.ctes, self.identifiers) if self.ctes else tree)
        if not self._names:
            return self.functions.run(text, self.text, {})
        frame, columns = self._run(text), _plain_columns(tree)
        if source is None or columns is None or scan_of(source) is None:
            return frame
        try:
            return projected(source, frame, columns, None if where is None else written(where.this))
        except (PlanError, AnalysisException):
            return frame  # Spark reads the rows, for example if the condition has a parameter

    def remember(self, tree: Node, frame: DataFrame) -> Node:
        """Return the tree, and keep its DataFrame for `run`."""
        self._ran[id(tree)] = tree, frame
        return tree

    def _run(self, text: str) -> DataFrame:
        pattern = re.compile("`?\\b(" + "|".join(map(re.escape, self._names)) + ")\\b`?")
        used = {self._names[match] for match in pattern.findall(text)}
        escaped = text.replace("{", "{{").replace("}", "}}")
        filled = pattern.sub(lambda match: f"{{{self._names[match[1]]}}}", escaped)
        return self.functions.run(filled if used else text, self.text, {name: self._values[name] for name in used})


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


def columns_of(frame: DataFrame) -> list[tuple[str, DataType]]:
    """The names and types of the columns of a frame."""
    return [(field.name, field.dataType) for field in frame.schema.fields]


def visible_ctes(node: Node) -> list[Node]:
    """The common table expressions that are visible to a node inside a tree, without its own."""
    found: list[Node] = []
    while node.parent is not None:
        holder, arg = node.parent, node.arg_key
        if isinstance(holder, exp.With):
            before = holder.expressions if holder.args.get("recursive") else holder.expressions[: node.index]
            found = [*before, *found]
        elif arg != "with_" and holder.args.get("with_") is not None:
            found = [*holder.args["with_"].expressions, *found]
        node = holder
    return found


def each_select(scope: Scope, tree: Node, rewrite: Callable[[Scope, exp.Select], Node | None]) -> Node:
    """The tree in which `rewrite` has replaced SELECTs, from the inside out; the same tree if it has replaced none."""
    holder, changed = exp.Tuple(expressions=[tree.copy()]), False
    for select in reversed(list(holder.find_all(exp.Select))):
        rewritten = rewrite(scope.around(select), select)
        if rewritten is not None:
            select.replace(rewritten)
            changed = True
    return holder.expressions[0] if changed else tree
