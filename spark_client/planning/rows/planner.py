"""Runs calls over whole rows: plans a `with_columns`, a `select` or a `lateral_join` of the session."""

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import error_column, hidden, identifiers_of, texts_of
from spark_client.base.types import spark_type
from spark_client.executor.scalar.rows import ColumnSource
from spark_client.functions.aggregate import AggregateExpression, OverExpression
from spark_client.functions.column_calls import ColumnCall, call_of
from spark_client.planning.over import with_hidden_over
from spark_client.planning.rows.calls import CallNode, CallPlanner, Item, columns_of

__all__ = ["How", "plan_lateral_join", "plan_select", "plan_with_columns"]

How = Literal["inner", "left"]
_ROWS = hidden("rows")


def plan_with_columns(
    spark: SparkSession,
    config: ClientConfig,
    frame: DataFrame,
    calls: Mapping[str, object],
    options: Mapping[str, object],
) -> DataFrame:
    """Return `frame` with a column per call, each followed by an error column if on-error is `column`.

    Every call sees `frame` unchanged. As in DataFrame.withColumns, a column of the same name is replaced in its
    position. One with the name of an error column is removed. Raises PlanError, InvalidOption or UnsupportedType
    before anything runs.
    """
    planner = CallPlanner(spark, config, options)
    for position, name in enumerate(frame.columns):
        planner.passes(texts_of(name), position)
    wide, titles = with_hidden_over(frame, {n: call for n, call in calls.items() if isinstance(call, OverExpression)})
    left: dict[str, list[Item]] = {}
    for name, call in calls.items():
        if isinstance(call, OverExpression):
            added = titles[name]
            left[planner.same(name)] = [(ColumnSource.INPUT, position) for position in added]
        else:
            left[planner.same(name)] = columns_of(planner.node(name, _required_call(name, call)))
    errors = {
        planner.same(of.error_name) for added in left.values() for source, of in added
        if source is ColumnSource.ERROR and isinstance(of, CallNode)
    }  # fmt: skip
    items: list[Item] = []
    for position, name in enumerate(frame.columns):
        same = planner.same(name)
        items += left.pop(same, [] if same in errors else [(ColumnSource.INPUT, position)])
    items += [item for added in left.values() for item in added]
    shown = {position: title for added in titles.values() for position, title in added.items()}
    return planner.plan(wide, ["*"], len(wide.columns), items, shown)


def plan_select(
    spark: SparkSession,
    config: ClientConfig,
    frame: DataFrame,
    columns: Sequence[str | Column],
    options: Mapping[str, object],
) -> DataFrame:
    """Return the given columns of `frame` and calls; error columns follow their call. Raises as `plan_with_columns`."""
    planner = CallPlanner(spark, config, options)
    passed = [column for column in columns if call_of(column) is None]
    widths: list[int] = []
    for column in passed:
        plain = isinstance(column, str) and "*" not in column
        if plain:
            planner.passes([str(column)], sum(widths))
        widths.append(1 if plain else len(frame.select(column).columns))
    items: list[Item] = []
    left, position = iter(widths), 0
    for column in columns:
        written = call_of(column)
        if written is not None:
            items += columns_of(planner.node(written.alias or frame.select(column).columns[0], written))
        else:
            width = next(left)
            items += [(ColumnSource.INPUT, position + index) for index in range(width)]
            position += width
    return planner.plan(frame, passed, sum(widths), items)


def _required_call(name: str, call: object) -> ColumnCall:
    written = call_of(call)
    if isinstance(call, AggregateExpression):
        raise PlanError(
            f"column {name!r}: function {call.spec.key} is an aggregate: use remote.group_by(df, ...).agg(...), or its "
            "method `over` for a value in each row"
        )
    if written is None:
        given = "an expression" if isinstance(call, Column) else f"a {type(call).__name__}"
        raise PlanError(
            f"column {name!r}: expected the call of a remote function and nothing around it, got {given}. Make the "
            f'call here under a name, such as "{name}_call", and compute with that column in a select after it'
        )
    return written


def plan_lateral_join(
    spark: SparkSession, config: ClientConfig, frame: DataFrame, call: Column, how: How, names: Sequence[str] | None,
    options: Mapping[str, object],
) -> DataFrame:  # fmt: skip
    """Return `frame` with the columns of the rows after its own. Raises as `plan_with_columns`."""
    written = call_of(call)
    if written is None:
        raise PlanError("lateral_join: the call of a remote function is expected, and nothing around it")
    spec = written.spec
    if not pa.types.is_list(spec.result) or not pa.types.is_struct(spec.result.value_type):
        raise PlanError(f"lateral_join: a function that returns rows is expected, not {spec.signature}")
    if how not in ("inner", "left"):
        raise PlanError(f"lateral_join: how is 'inner' or 'left', not {how!r}")
    fields = [field.name for field in spec.result.value_type]
    shown = fields if names is None else list(names)
    if len(shown) != len(fields):
        raise PlanError(f"lateral_join: names has {len(shown)} names, the rows of {spec.key} have {', '.join(fields)}")
    planned = plan_with_columns(spark, config, frame, {_ROWS: call}, options)
    errors = error_column(_ROWS)
    failures = [error_column(spec.name)] if errors in planned.columns else []
    repeated = identifiers_of(spark).repeated([*dict.fromkeys(frame.columns), *failures, *shown])
    if repeated:
        raise PlanError(
            f"lateral_join: there would be two columns {repeated[0]!r}; pass names for the columns of the rows"
        )
    rows = F.col(_ROWS)
    if failures:
        # A failed call has no rows, but its error must not get lost.
        nothing = F.lit(None).cast(spark_type(spec.result.value_type))
        rows = F.when(F.col(errors).isNotNull(), F.array(nothing)).otherwise(rows)
    generator = F.inline_outer(rows) if how == "left" else F.inline(rows)
    joined = planned.select("*", generator.alias(*shown)).drop(_ROWS)
    return joined.withColumnRenamed(errors, failures[0]) if failures else joined
