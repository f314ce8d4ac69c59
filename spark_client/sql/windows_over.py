"""OVER with remote aggregates: a SELECT becomes one over a DataFrame that has their values as columns.

Every part of an expression that has no remote aggregate is a hidden column of the SELECT's rows, so that
names, windows of Spark's own and subqueries mean what they meant.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlglot import exp

from spark_client.aggregate import AggregateExpression
from spark_client.errors import PlanError
from spark_client.over import OverExpression
from spark_client.over_planner import plan_over
from spark_client.sql.calls import call_of, has_remote, is_remote_window, read_remote
from spark_client.sql.names import FunctionNames
from spark_client.sql.parsing import error_at
from spark_client.sql.sources import Source, alias_in, column, is_column, output_names, without_rows
from spark_client.sql.window_frames import named_windows, read_window
from spark_client.sql.workspace import Workspace

__all__ = ["WindowedSelect"]

_CLAUSES = ("order", "sort", "cluster", "distribute")


class WindowedSelect:
    """One SELECT without groups. `call` makes an aggregate of a remote function's name and arguments."""

    def __init__(
        self, workspace: Workspace, select: Any, source: Source, names: FunctionNames,
        call: Callable[..., AggregateExpression],
    ) -> None:  # fmt: skip
        self._workspace = workspace
        self._select = select
        self._source = source
        self._names = names
        self._call = call
        self._named = named_windows(select)
        self._hidden: dict[str, tuple[str, Any]] = {}
        self._overs: dict[str, OverExpression] = {}

    def rewritten(self) -> Any:
        """The SELECT over the values. Raises PlanError, with the place in the text."""
        select = self._select
        shown = output_names(self._source, select, has_remote(self._names))
        stars = [item for item in select.expressions if item.is_star]
        of_star = [(len(self._source.base({}, [star]).columns), star) for star in stars]
        star_names = self._source.base({}, stars).columns if stars else []
        hidden_stars = [self._workspace.hidden("star") for _ in star_names]
        left = iter(zip(hidden_stars, star_names, strict=True))
        widths = iter(width for width, _ in of_star)
        items: list[Any] = []
        aliases: list[str] = []
        for item, name in zip(select.expressions, shown, strict=True):
            if name is None:
                own = [next(left) for _ in range(next(widths))]
                items += [exp.alias_(column(hidden), name, quoted=True) for hidden, name in own]
                continue
            lateral = [alias for alias in aliases if not self._source.has(alias)]
            items.append(exp.alias_(self._outer(item.unalias(), lateral), name, quoted=True))
            aliases.append(self._source.key(name))
        outer = without_rows(select)
        outer.set("windows", None)
        if (qualify := outer.args.pop("qualify", None)) is not None:
            # What it is about are columns by then.
            written = {
                self._source.key(item.alias): item.this for item in select.expressions if isinstance(item, exp.Alias)
            }
            outer.set("where", exp.Where(this=self._outer(self._written(qualify.this, written), ())))
        for part in _CLAUSES:
            if (clause := select.args.get(part)) is not None:
                outer.set(part, self._clause(clause, aliases))
        outer.set("expressions", items)
        outer.set("from_", exp.From(this=self._workspace.table(self._values(stars, hidden_stars))))
        return outer

    def _clause(self, clause: Any, aliases: Collection[str]) -> Any:
        copy = clause.copy()
        parts = copy.expressions or [copy.this]
        for part in parts:
            inside = part.this if isinstance(part, exp.Ordered) else part
            inside.replace(self._outer(inside, aliases))
        return copy

    def _written(self, tree: Any, aliases: Mapping[str, Any]) -> Any:
        """With the items themselves in place of their aliases."""

        def visit(node: Any) -> Any:
            is_alias = is_column(node) and not self._source.has(node.name)
            alias = aliases.get(self._source.key(node.name)) if is_alias else None
            return node if alias is None else exp.paren(alias.copy())

        return tree.transform(visit)

    def _outer(self, tree: Any, aliases: Collection[str]) -> Any:
        """The expression over hidden columns; names of `aliases` stay."""

        def visit(node: Any) -> Any:
            if is_remote_window(node, self._names):
                return self._over(node)
            if isinstance(node, (exp.Literal, exp.Identifier, exp.DataType, exp.Var)):
                return node
            if not self._mentions(node, aliases) and not has_remote(self._names)(node):
                return column(self._hide(node))
            return node.copy() if isinstance(node, exp.Column) else node

        return tree.transform(visit)

    def _over(self, window: Any) -> Any:
        read = read_remote(window.this, self._names)
        if read.order:
            raise error_at(window, f"{read.name}: WITHIN GROUP and OVER exclude each other")
        spec = read_window(window, self._named, self._workspace, self._hide)
        expression = call_of(self._call, read, [F.col(self._hide(each)) for each in read.arguments])
        if read.condition is not None:
            expression = expression.filter(F.col(self._hide(read.condition)))
        name = self._workspace.hidden("over")
        try:
            self._overs[name] = expression.over(spec)
        except PlanError as error:
            raise error_at(read.tree, str(error)) from None
        return column(name)

    def _values(self, stars: list[Any], hidden_stars: list[str]) -> DataFrame:
        base = self._source.base(dict(self._hidden.values()), stars)
        names = [name for name, _ in self._hidden.values()]
        return plan_over(base.toDF(*hidden_stars, *names), self._overs)

    def _hide(self, tree: Any) -> str:
        """The hidden column of an expression; equal ones share one."""
        return self._hidden.setdefault(self._source.same(tree), (self._workspace.hidden("column"), tree.copy()))[0]

    def _mentions(self, tree: Any, aliases: Collection[str]) -> bool:
        return any(
            alias_in(node, aliases, self._source.key) and not (node.table and self._source.names_relation(node.table))
            for node in tree.walk()
        )
