"""Plans expressions around remote aggregates: first the calls, each as a column, then the expressions."""

from collections.abc import Callable, Sequence

from pyspark.sql import Column, DataFrame

from remote_udf.options import OnError
from spark_client.base.identifiers import column_named, error_column, hidden, identifiers_of
from spark_client.functions.aggregate import AggregateExpression
from spark_client.functions.arguments import column_of
from spark_client.functions.column_values import computed, error_of, shown, values_in
from spark_client.planning.operators import with_names

__all__ = ["with_computed"]


def with_computed(
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
