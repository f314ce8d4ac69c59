"""Plans remote aggregates as one operator, or as partial, shuffle and merge, beside Spark's own aggregates.

(a) mapInArrow turns the rows of a partition into accumulators, bundle by bundle. (b) Spark's groupBy gathers the
accumulators of a key and computes its own aggregates. (c) mapInArrow turns accumulators into values. If a function
needs the rows of a key in one place or in order, (a) receives them sorted by key and processes them in chains of
bundles. If Spark's own aggregates need the rows, (a) passes them on, with the accumulators in the last row of each
segment, so that the data is read once. Over few rows (a) gets all rows of a key and is the only step. Expressions
around remote aggregates are computed from their values.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from remote_udf.options import AggregatePlan, OnError
from remote_udf.segments import ACCUMULATORS, ROWS, AppliedField
from spark_client.base.changelogs import kind_column, require_no_fires
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, error_column, hidden, identifiers_of, is_hidden
from spark_client.base.settings import reads_stream
from spark_client.executor.aggregate.firing import EmitOptions
from spark_client.executor.aggregate.merge import FinishPlan, map_finish
from spark_client.executor.aggregate.segment_columns import segment_call
from spark_client.executor.engine.row_engine import PlannedCall
from spark_client.executor.scalar.rows import ColumnSource, OutputColumn
from spark_client.functions.aggregate import AggregateExpression, OverExpression
from spark_client.functions.arguments import column_of
from spark_client.functions.column_calls import computed, error_of, shown, values_in
from spark_client.planning.aggregate.builtins import is_distinct, known_builtin, of_stream
from spark_client.planning.aggregate.emitting import plan_emitting
from spark_client.planning.aggregate.query import BY_PLAN, AggregateQuery, GroupBy, Remote, Strategy, asked_plan
from spark_client.planning.aggregate.rewrites import (
    changelog_query,
    pane_query,
    with_updates,
    with_window_time,
    with_zone,
)
from spark_client.planning.aggregate.rows import GroupedRows
from spark_client.planning.aggregate.sizes import bound_of
from spark_client.planning.aggregate.steps import Steps
from spark_client.planning.operators import (
    OutputField,
    apply_operator,
    output_schema,
    value_fields,
    with_hidden_names,
    with_names,
)
from spark_client.planning.scans import scan_of
from spark_client.windows.columns import WINDOW_TIME, emitted
from spark_client.windows.emitting import is_only_updated, without_updates

__all__ = ["plan_fired", "plan_group_by"]


def plan_group_by(group_by: GroupBy, expressions: Sequence[AggregateExpression | Column]) -> DataFrame:
    """Return keys, then a column per expression in their order. Raises PlanError, InvalidOption or UnsupportedType."""
    return _with_computed(group_by.frame, expressions, partial(_plan_group_by, group_by))


def _plan_group_by(group_by: GroupBy, expressions: Sequence[AggregateExpression | Column]) -> DataFrame:
    for expression in expressions:
        if isinstance(expression, OverExpression) or not isinstance(expression, (AggregateExpression, Column)):
            raise PlanError(f"agg takes calls of remote aggregates and Spark's own, not {expression!r}")
    if not expressions:
        raise PlanError("agg needs an aggregate")
    require_no_fires(group_by.frame, "agg")
    timed = with_zone(with_window_time(group_by))
    streaming = reads_stream(group_by.frame)
    if streaming:
        expressions = [
            of_stream(known_builtin(group_by.frame, each, "DISTINCT on a stream:"))
            if not isinstance(each, AggregateExpression)
            and is_distinct(group_by.frame, each)
            and kind_column(group_by.frame) is None
            else each
            for each in expressions
        ]
    timed = with_updates(timed)
    query = changelog_query(timed, expressions) or pane_query(timed, expressions) or AggregateQuery(timed, expressions)
    result = _GroupByPlanner(query).plan()
    if is_only_updated(group_by.frame):
        result = without_updates(result)
    if len(timed.keys) > len(group_by.keys):
        return result.drop(WINDOW_TIME)
    return emitted(result) if streaming else result


def plan_fired(
    group_by: GroupBy, expressions: Sequence[AggregateExpression | Column], options: EmitOptions
) -> DataFrame:
    """Plan a stream whose windows fire early or late: the result is a changelog with `row_kind` first."""
    timed = with_zone(with_window_time(group_by))
    if not expressions:
        raise PlanError("agg needs an aggregate")
    result = _with_computed(timed.frame, expressions, lambda calls: plan_emitting(timed, calls, options))
    return result if len(timed.keys) == len(group_by.keys) else result.drop(WINDOW_TIME)


@dataclass(frozen=True)
class Plan:
    """A way to compute the groups of a query, why it was chosen, and what makes it of the input of step (a)."""

    name: AggregatePlan
    reason: str
    make: Callable[[DataFrame], DataFrame]


class _GroupByPlanner:
    def __init__(self, query: AggregateQuery) -> None:
        self._query = query
        self._rows, self._steps = GroupedRows(query), Steps(query)

    def plan(self) -> DataFrame:
        base = self._rows.unchanged() or self._rows.frame()
        plan = self._plan_of(base)
        if not reads_stream(self._query.frame):
            names = dict.fromkeys(remote.call.spec.name for remote in self._query.remotes)
            self._query.shown_calls = [f"{name}{BY_PLAN}{plan.name}: {plan.reason}" for name in names]
        return plan.make(base)

    def _plan_of(self, base: DataFrame) -> Plan:
        """The plan that the query needs, else that of the option `aggregate-plan`, else that of the size."""
        own = AggregatePlan.SORTED if self._query.chained else AggregatePlan.PARTIAL
        if (needs := self._needs_steps(base)) is not None:
            return Plan(own, needs, self._in_steps)
        chosen, reason, sort = asked_plan(self._query.remotes), "the option aggregate-plan", True
        if chosen is AggregatePlan.AUTO:
            bound = bound_of(base)
            small = AggregatePlan.ONE_TASK if bound.narrow else AggregatePlan.SORTED
            chosen, reason = small if bound.small else own, bound.why
            sort = self._query.chained or not self._query.keys or not bound.small
        if chosen is AggregatePlan.PARTIAL and self._query.chained:
            chosen, reason = own, "a function needs the rows of a key in one place or in order"
        if chosen is AggregatePlan.PARTIAL:
            return Plan(chosen, reason, self._in_steps)
        one_task = chosen is AggregatePlan.ONE_TASK
        return Plan(chosen, reason, partial(self._in_one_operator, one_task=one_task, sort=sort))

    def _needs_steps(self, base: DataFrame) -> str | None:
        """Why the query cannot be one operator over all rows of a key; None if it can."""
        query = self._query
        found = {
            "it is a stream": reads_stream(self._query.frame),
            "it is a changelog": query.kind is not None,
            "Spark's own aggregates or DISTINCT need the rows": query.passes_rows,
            "it has grouping sets": query.sets is not None,
            "its windows consist of panes": query.has_panes or query.only_updated,
            "workers read the files": scan_of(base) is not None and not query.chained,
            "Spark cannot sort by the keys": not query.chained and not self._rows.sorts_keys(base),
        }
        return next((reason for reason, holds in found.items() if holds), None)

    def _in_one_operator(self, base: DataFrame, *, one_task: bool = False, sort: bool = True) -> DataFrame:
        """Step (a) alone, over all rows of a key in their order."""
        for remote in self._query.remotes:
            remote.strategy = Strategy.CHAIN
        placed = self._rows.placed(base, one_task=one_task, sort=sort)
        rows = placed if self._query.keys else self._rows.with_one_more(placed)
        result = self._steps.mapped(rows, self._query.remotes, AppliedField.FINAL_VALUE, is_sorted=sort)
        return result if self._query.shows_values_only else self._shown(result)

    def _in_steps(self, base: DataFrame) -> DataFrame:
        """Steps (a), (b) and (c)."""
        query, steps = self._query, self._steps
        in_lists = not query.keys or query.passes_rows or reads_stream(query.frame) or query.only_updated
        if query.chained:
            return self._finished(steps.gathered(self._rows.placed(base))) if in_lists else self._in_one_operator(base)
        if in_lists or not self._rows.sorts_keys(base):
            return self._finished(steps.gathered(base))
        # Spark sorts accumulators faster than it gathers them in lists, and sorting spills to disk.
        reduced = query.spread(steps.mapped(base, query.remotes))
        columns = [reduced[key] for key in query.group_keys]  # `F.col` takes ten requests to the JVM more
        merged = steps.merged(reduced.repartition(*columns).sortWithinPartitions(*columns))
        return merged if query.shows_values_only else self._shown(merged)

    def _shown(self, merged: DataFrame) -> DataFrame:
        """The result under the names that the user gave."""
        remotes = self._query.remotes
        if self._query.sets is None and not any(remote.keeps_errors for remote in remotes):
            return merged.toDF(*self._query.titles, *(remote.name for remote in remotes))
        columns = [
            F.col(key).alias(name) for key, name in zip(self._query.group_keys, self._query.titles, strict=False)
        ]
        for remote in remotes:
            columns.append(F.col(remote.accumulator).alias(remote.name))
            if remote.call.policy.on_error is OnError.COLUMN:
                columns.append(F.col(remote.error).alias(error_column(remote.name)))
        return merged.select(*columns)

    def _finished(self, gathered: DataFrame) -> DataFrame:
        keys = self._query.group_keys
        if len(self._query.builtins) + len(keys) > len(gathered.columns):
            raise PlanError("an aggregate of Spark's own became several columns")
        fields = gathered.schema.fields
        names = [field.name for field in fields]
        # Without columns of the user's all names are hidden already.
        plain = gathered if all(map(is_hidden, names)) else with_hidden_names(gathered)
        place = {name: len(names) - 1 - index for index, name in enumerate(reversed(names))}
        key_struct = None
        if self._query.keys and any(remote.call.spec.sees_key for remote in self._query.remotes):
            key_struct = len(names)
            shown = zip(keys, self._query.unique_key_names, strict=False)  # the grouping set is not shown
            columns = [plain[plain.columns[place[key]]].alias(name) for key, name in shown]
            plain = plain.select("*", F.struct(*columns).alias(hidden("key")))
        calls = tuple(self._finishing_call(remote, place, key_struct) for remote in self._query.remotes)
        titled = zip(self._query.titles, fields, strict=False)  # those of values follow
        output = [OutputField(name, field.dataType, field.metadata) for name, field in titled]
        sources = [(ColumnSource.INPUT, index) for index in range(len(output))]
        builtins, remotes = itertools.count(len(keys)), enumerate(self._query.remotes)
        for expression in self._query.expressions:
            if not isinstance(expression, AggregateExpression):
                at = next(builtins)
                output.append(OutputField(names[at], fields[at].dataType, fields[at].metadata))
                sources.append((ColumnSource.INPUT, at))
                continue
            number, remote = next(remotes)
            fields_of_call = value_fields(remote.name, remote.call)
            output += fields_of_call
            sources += [(ColumnSource.VALUE, number), (ColumnSource.ERROR, number)][: len(fields_of_call)]
        schema = output_schema(output)
        plan = FinishPlan(
            calls=calls,
            keys=tuple(range(len(self._query.keys))),
            key_names=tuple(self._query.key_names),
            output=tuple(OutputColumn(name, *each) for name, each in zip(schema.names, sources, strict=True)),
            distinct=tuple(place[r.accumulator] for r in self._query.remotes if r.expression.is_distinct),
        )
        names = [each.name for each in output]
        return apply_operator(plain, map_finish, plan, schema, names, self._query.shown_calls)

    def _finishing_call(self, remote: Remote, place: dict[str, int], key_struct: int | None) -> PlannedCall:
        rows = ROWS if remote.strategy is Strategy.ROWS else ACCUMULATORS
        errors = (place[remote.error],) if remote.error in place else ()
        call = remote.applying(AppliedField.FINAL_VALUE)
        return segment_call(call, {rows: place[remote.accumulator]}, errors, key_struct)


def _with_computed(
    source: DataFrame, expressions: Sequence[AggregateExpression | Column],
    plan: Callable[[Sequence[AggregateExpression | Column]], DataFrame],
) -> DataFrame:  # fmt: skip
    """Return what `plan` returns for these expressions, of which it need not know those around remote aggregates.

    `plan` returns some columns, then one for each expression, each followed by its error column if it has one. An
    expression has an error column with the first error of its calls. Raises PlanError for what cannot be computed from
    the columns that `plan` returns.
    """
    inside = [values_in(each, AggregateExpression) for each in expressions]
    calls = {name: call for found in inside for name, call in found.items()}
    if not calls:
        return plan(expressions)
    alone = [each for each, found in zip(expressions, inside, strict=True) if not found]
    planned = plan([*alone, *(call.alias(name) for name, call in calls.items())])
    last = {*calls, *map(error_column, calls)}
    titles = [name for name in planned.columns if name not in last]
    identifiers = identifiers_of(planned)
    repeated = identifiers.repeated(titles)
    own = [hidden(f"own_{i}") if identifiers.key(name) in repeated else name for i, name in enumerate(titles)]
    if own != titles:
        planned = planned.toDF(*own, *planned.columns[len(own) :])
    passed = iter(own)
    chosen = [column_named(next(passed)) for _ in range(len(own) - sum(map(_width, alone)))]
    for each, found in zip(expressions, inside, strict=True):
        if not found:
            chosen += [column_named(next(passed)) for _ in range(_width(each))]
            continue
        chosen.append(column_of(each))
        if (error := error_of(planned, found)) is not None:
            name = computed(planned, [column_of(each)], source, calls).columns[-1]
            chosen.append(error.alias(error_column(shown(source, name, calls))))
    # With a column of the rows, an aggregate among the expressions is an error, and not one row over all of them.
    row = {hidden(f"call_{number}"): column_named(name) for number, name in enumerate(calls)}
    wide = computed(planned, [*chosen, *(call.alias(name) for name, call in row.items())], source, calls)
    result = wide.drop(*row)
    names = dict(zip(own, titles, strict=True))
    shown_names = [names.get(name) or shown(source, name, calls) for name in result.columns]
    return result if shown_names == result.columns else with_names(result, shown_names)


def _width(expression: AggregateExpression | Column) -> int:
    if not isinstance(expression, AggregateExpression):
        return 1
    return 2 if expression.plan(()).policy.on_error is OnError.COLUMN else 1
