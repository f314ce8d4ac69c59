"""Plans remote aggregates whose output is a changelog of each key's values (FLIP-491, "Operators").

Spark gathers and sorts the rows of a key; mapInArrow turns them into changes.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from remote_udf.row_kinds import ROW_KIND
from remote_udf.segments import AppliedField
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, hidden
from spark_client.executor.aggregate.changes import ChangesPlan, map_changes
from spark_client.functions.aggregate import AggregateExpression
from spark_client.planning.aggregate.query import AggregateQuery, GroupBy, Strategy
from spark_client.planning.aggregate.rows import GroupedRows
from spark_client.planning.operators import OutputField, apply_operator, output_schema, value_fields

__all__ = ["plan_changes"]

VERSION = hidden("version")


def plan_changes(group_by: GroupBy, expressions: Sequence[AggregateExpression], per: str | Column) -> DataFrame:
    """Return `row_kind`, the keys, then a column per expression. Raises PlanError, InvalidOption or UnsupportedType."""
    for expression in expressions:
        if not isinstance(expression, AggregateExpression):
            raise PlanError(f"a running changelog takes remote aggregates, not {expression!r}")
        if expression.is_distinct:
            raise PlanError(f"call of {expression.spec.key}: DISTINCT in a running changelog is not supported")
    if not expressions:
        raise PlanError("changelog needs an aggregate")
    if isinstance(per, str) and per not in ("row", "bundle"):
        raise PlanError(f"per must be 'row', 'bundle' or a Column, not {per!r}")
    if group_by.frame.isStreaming:
        raise PlanError("a running changelog needs a table; on a stream use agg, in update mode")
    return _planned(AggregateQuery(group_by, expressions), per)


def _planned(query: AggregateQuery, per: str | Column) -> DataFrame:
    query.order_by = query.order_by or [F.monotonically_increasing_id()]
    for remote in query.remotes:
        remote.strategy = Strategy.CHAIN
    if not isinstance(per, str):
        query.hidden[VERSION] = per
    rows = GroupedRows(query).frame()
    fields = {field.name: field for field in rows.schema.fields}
    place = {name: index for index, name in enumerate(fields)}
    keys = [fields[name] for name in query.group_keys]
    output = [OutputField(ROW_KIND, T.StringType())]
    # The grouping set is part of the key, but it is not shown.
    shown = [*query.key_names, *([] if query.sets is None else [hidden("grouping_id")])]
    output += [OutputField(name, key.dataType, key.metadata) for name, key in zip(shown, keys, strict=True)]
    for remote in query.remotes:
        output += value_fields(remote.name, remote.call)
    schema = output_schema(output)
    plan = ChangesPlan(
        inputs=tuple(remote.over(place, AppliedField.FINAL_VALUE) for remote in query.remotes),
        keys=tuple(place[key.name] for key in keys),
        key_names=query.shown_key_names,
        kinds=None if query.kind is None else place[hidden("kind")],
        rows=1 if isinstance(per, str) and per == "row" else None,
        version=place.get(VERSION),
        names=tuple(schema.names),
    )
    changes = apply_operator(rows, map_changes, plan, schema)
    columns = [
        column_named(name).alias(each.name) for name, each in zip(schema.names, output, strict=True)
        if each.name != hidden("grouping_id")
    ]  # fmt: skip
    return changes.select(*columns)
