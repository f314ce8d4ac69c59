"""Reads windows in SQL as `spark_client.Window`: PARTITION BY, ORDER BY, ROWS and RANGE frames."""

import datetime
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import functions as F
from pyspark.sql import types as T
from sqlglot import exp

from spark_client.base.errors import PlanError
from spark_client.functions.window import Months, Ordered, Window, WindowSpec
from spark_client.sql.rows.scope import Scope
from spark_client.sql.text.nodes import Node
from spark_client.sql.text.parsing import error_at
from spark_client.sql.text.writers import canonical

__all__ = ["named_windows", "read_window", "sort_of"]


def named_windows(select: Node) -> dict[str, Node]:
    """The windows of a WINDOW clause by name. Spark compares these names with their case."""
    return {window.this.name: window for window in select.args.get("windows") or ()}


def read_window(window: Node, named: Mapping[str, Node], scope: Scope, hide: Callable[[Node], str]) -> WindowSpec:
    """Read the window of an OVER. `hide` returns the column of an expression. Raises PlanError with the position."""
    definition, seen = window, set()
    while (name := _refers_to(definition)) is not None:
        if name not in named or name in seen:
            raise error_at(window, f"no window {name!r} in the WINDOW clause")
        seen.add(name)
        definition = named[name]
    spec = WindowSpec(partition=tuple(hide(each) for each in definition.args.get("partition_by") or ()))
    order = definition.args.get("order")
    frame = definition.args.get("spec")
    spec = spec.orderBy(*(_order(each, hide) for each in (order.expressions if order else ())))
    if frame is None:
        return spec
    if frame.args.get("exclude"):
        raise error_at(window, "Spark does not support EXCLUDE in a window")
    bounds: list[Any] = [_bound(frame, side, window, scope) for side in ("start", "end")]
    try:
        between = spec.rowsBetween if frame.args["kind"].upper() == "ROWS" else spec.rangeBetween
        spec = between(*bounds)
    except PlanError as error:
        raise error_at(window, str(error)) from None
    return spec


def _refers_to(definition: Node) -> str | None:
    """The name of the window to which a definition only refers: `OVER w`, `OVER (w)`, `w2 AS w`."""
    alias = definition.args.get("alias")
    own = any(definition.args.get(part) for part in ("partition_by", "order", "spec"))
    if alias is None or own:
        return None
    return str(alias.name)


def sort_of(ordered: Node, column: str) -> Ordered:
    """The order of a column with the direction of a sort expression. Without NULLS, nulls are the smallest values."""
    down = bool(ordered.args.get("desc"))
    return Ordered(column, descending=down, nulls_first=bool(ordered.args.get("nulls_first", not down)))


def _order(ordered: Node, hide: Callable[[Node], str]) -> str | Ordered:
    """The column of one sort expression, with its direction unless that is Spark's default."""
    name = hide(ordered.this if isinstance(ordered, exp.Ordered) else ordered)
    sort = sort_of(ordered, name)
    return sort if sort.descending or not sort.nulls_first else name


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
