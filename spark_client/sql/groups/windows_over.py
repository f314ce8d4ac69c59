"""OVER with remote aggregates: a SELECT becomes one over a DataFrame that has their values as columns.

As in Spark, an item without a remote aggregate is computed with the SELECT's rows. Of other items, only columns,
windows of Spark's own and subqueries are computed there, so that CASE and AND can still prevent an evaluation.
"""

import datetime
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.functions.aggregate import OverExpression
from spark_client.functions.window import Months, Window, WindowSpec
from spark_client.planning.over import plan_over
from spark_client.sql.groups.hidden import HiddenColumns, is_column_of_rows, named_as_written, order_of
from spark_client.sql.rows.calls import SORTING, has_remote, is_remote_window, read_remote, walk_query
from spark_client.sql.rows.scope import Scope
from spark_client.sql.rows.sources import (
    alias_in,
    aliased,
    distinct_outputs,
    is_column,
    output_names,
    several_columns,
    without_rows,
)
from spark_client.sql.text.nodes import Node, column
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.writers import canonical

__all__ = ["read_window", "with_windows_over"]


def with_windows_over(scope: Scope, select: Node) -> Node:
    """A SELECT with remote aggregates OVER windows over their values."""
    windowed = any(is_remote_window(node, scope.functions) for node in walk_query(select))
    return _WindowedSelect(scope, select).rewritten() if windowed else select


class _WindowedSelect:
    """One SELECT without groups."""

    def __init__(self, scope: Scope, select: Node) -> None:
        self._scope = scope
        self._select = select
        self._source = source = scope.source(select)
        self._hidden = HiddenColumns(scope, source)
        self._overs: dict[str, OverExpression] = {}
        self._kind = source.kind_column
        """The column that makes the rows a changelog, whose net rows have the values; None for a table."""

    def rewritten(self) -> Node:
        """The SELECT over the values. Raises PlanError with the position in the text."""
        select = self._select
        ours = partial(has_remote, names=self._scope.functions)
        shown = output_names(self._source, select, ours)
        stars = [item for item, name in zip(select.expressions, shown, strict=True) if name is None and not ours(item)]
        widths = iter([len(self._source.base({}, [star]).columns) for star in stars])
        star_names = self._source.base({}, stars).columns if stars else []
        hidden_stars = [self._kind if name == self._kind else self._scope.hidden("star") for name in star_names]
        left = iter(zip(hidden_stars, star_names, strict=True))
        items: list[Node] = []
        aliases: list[str] = []
        for item, name in zip(select.expressions, shown, strict=True):
            if name is None and ours(item):
                if not isinstance(item, exp.Aliases):
                    raise error_at(item, several_columns(item))
                items.append(
                    exp.Aliases(this=self._outer(item.this, self._lateral(aliases)), expressions=item.expressions)
                )
            elif name is None:
                own = [next(left) for _ in range(next(widths))]
                items += [exp.alias_(column(hidden), name, quoted=True) for hidden, name in own]
            else:
                items.append(exp.alias_(self._outer(item.unalias(), self._lateral(aliases)), name, quoted=True))
                aliases.append(self._source.key(name))
        outer = without_rows(select)
        outer.set("windows", None)
        if (qualify := outer.args.pop("qualify", None)) is not None:
            # QUALIFY becomes a WHERE over the values, which are columns there.
            outer.set("where", exp.Where(this=self._outer(self._written(qualify.this, aliased(self._source, select)))))
        for part in SORTING:
            if (clause := select.args.get(part)) is not None:
                outer.set(part, self._clause(clause, distinct_outputs(aliases)))
        outer.set("expressions", items)
        outer.set("from_", exp.From(this=self._scope.table(self._values(stars, hidden_stars))))
        return outer

    def _clause(self, clause: Node, outputs: Collection[str]) -> Node:
        def is_output(node: Node) -> bool:
            return alias_in(node, outputs, self._source.key) and not self._source.shows(node)

        copy = clause.copy()
        for part in copy.expressions or [copy.this]:
            inside = part.this if isinstance(part, exp.Ordered) else part
            inside.replace(self._outer(inside, is_output))
        return copy

    def _lateral(self, aliases: Collection[str]) -> Callable[[Node], bool]:
        """Returns whether a node refers to an earlier item of the SELECT."""
        lateral = {alias for alias in aliases if not self._source.has(alias)}
        return lambda node: alias_in(node, lateral, self._source.key) and not self._source.is_of_relation(node)

    def _written(self, tree: Node, aliases: Mapping[str, Node]) -> Node:
        """Replace aliases by their items. Raises PlanError if an alias is also the name of a column."""

        def visit(node: Node) -> Node:
            alias = aliases.get(self._source.key(node.name)) if is_column(node) else None
            if alias is None:
                return node
            if self._source.has(node.name) and self._source.same(alias) != self._source.same(node):
                raise error_at(node, f"{canonical(node)} in QUALIFY is ambiguous: a column, and an item of the SELECT")
            return exp.paren(alias.copy())

        return tree.transform(visit)

    def _outer(self, tree: Node, is_output: Callable[[Node], bool] = lambda _: False) -> Node:
        """The expression over hidden columns; names for which `is_output` is true stay."""

        def names_output(node: Node) -> bool:
            return any(is_output(each) for each in node.walk())

        def seen(node: Node) -> Node | None:
            if isinstance(node, exp.Window) and names_output(node):
                raise error_at(node, "a window cannot name another item of its SELECT, as in Spark: use a subquery")
            if is_remote_window(node, self._scope.functions):
                return self._over(node)
            if names_output(node):
                return node.copy() if is_column_of_rows(node) else None
            called = self._hidden.is_call(node) and not has_remote(node, self._scope.functions)
            return column(self._hidden.name(node)) if called else None

        if isinstance(tree, (exp.Literal, exp.Var)):
            return tree.copy()  # in ORDER BY, the ordinal of an item
        if not has_remote(tree, self._scope.functions) and not names_output(tree):
            return column(self._hidden.name(tree))
        return self._hidden.over(tree, seen)

    def _over(self, window: Node) -> Node:
        read = read_remote(window.this, self._scope.functions)
        if read.order:
            raise error_at(window, f"{read.name}: WITHIN GROUP and OVER exclude each other")
        spec = read_window(window, self._select, self._scope, self._hidden.name)
        expression = self._hidden.aggregate(read)
        name = self._scope.hidden("over")
        try:
            self._overs[name] = expression.over(spec)
        except PlanError as error:
            raise error_at(read.tree, str(error)) from None
        rows = "" if self._kind is None else f", over the net rows of a changelog (column {self._kind!r})"
        self._scope.stages.append(f"{canonical(window)}: {read.name} on the server, for each row{rows}")
        return column(name)

    def _values(self, stars: list[Node], hidden_stars: list[str]) -> DataFrame:
        items = self._hidden.items()
        for tree in items.values() if self._kind is not None else ():
            if (window := tree.find(exp.Window)) is not None:
                raise error_at(window, f"a window of Spark's own beside a remote one counts the retracted rows of a "
                               f"changelog (column {self._kind!r}): compute it in a query of its own")  # fmt: skip
        if self._kind is not None and self._kind not in hidden_stars:
            items[self._kind] = column(self._kind)
        base = self._source.base(items, stars, self._select.args.get("windows") or ())
        with named_as_written(items):
            return plan_over(base.toDF(*hidden_stars, *items), self._overs)


def read_window(window: Node, select: Node, scope: Scope, hide: Callable[[Node], str]) -> WindowSpec:
    """Read the window of an OVER. `hide` returns the column of an expression. Raises PlanError with the position."""
    # Spark compares the names of the WINDOW clause with their case.
    named = {each.this.name: each for each in select.args.get("windows") or ()}
    definition, seen = window, set()
    while (name := _refers_to(definition)) is not None:
        if name not in named or name in seen:
            raise error_at(window, f"no window {name!r} in the WINDOW clause")
        seen.add(name)
        definition = named[name]
    partition = tuple(hide(each) for each in definition.args.get("partition_by") or ())
    order, frame = definition.args.get("order"), definition.args.get("spec")
    spec = WindowSpec(partition, tuple(order_of(each, hide) for each in (order.expressions if order else ())))
    if frame is None:
        return spec
    if frame.args.get("exclude"):
        raise error_at(window, "Spark does not support EXCLUDE in a window")
    bounds: list[Any] = [_bound(frame, side, window, scope) for side in ("start", "end")]
    try:
        between = spec.rowsBetween if frame.args["kind"].upper() == "ROWS" else spec.rangeBetween
        return between(*bounds)
    except PlanError as error:
        raise error_at(window, str(error)) from None


def _refers_to(definition: Node) -> str | None:
    """The name of the window to which a definition only refers: `OVER w`, `OVER (w)`, `w2 AS w`."""
    alias = definition.args.get("alias")
    own = any(definition.args.get(part) for part in ("partition_by", "order", "spec"))
    return None if alias is None or own else str(alias.name)


def _bound(frame: Node, side: str, window: Node, scope: Scope) -> int | float | datetime.timedelta | Months:
    value = frame.args.get(side)
    kind = str(frame.args.get(f"{side}_side") or "").upper()
    if value is None or value == "CURRENT ROW":
        return Window.currentRow
    if value == "UNBOUNDED":
        return Window.unboundedPreceding if kind == "PRECEDING" else Window.unboundedFollowing
    found = _constant(value, window, scope)
    return -found if kind == "PRECEDING" else found


def _constant(tree: Node, window: Node, scope: Scope) -> int | float | datetime.timedelta | Months:
    """The value of a frame offset: a number, a timedelta or months."""
    if isinstance(tree, exp.Literal) and not tree.is_string and tree.is_int:
        return int(tree.this)
    try:
        frame = scope.outside().run(exp.select(exp.alias_(tree.copy(), "offset")))
        months = isinstance(frame.schema[0].dataType, T.YearMonthIntervalType)
        row = (frame.select(F.col("offset").cast("interval month").cast("int")) if months else frame).first()
    except PySparkException as error:
        raise error_at(window, f"{canonical(tree)} is not a constant for a frame") from error
    value = row[0] if row is not None else None
    if months and value is not None:
        return Months(value)
    if isinstance(value, (int, datetime.timedelta)):
        return value
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise error_at(window, f"{canonical(tree)} is not a frame offset: write a number or an interval") from None
