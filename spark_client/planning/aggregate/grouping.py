"""RemoteGrouping: rows grouped by keys, to which aggregates are applied, or whose changes are returned (FLIP-491)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from remote_udf.option_types import EmitCallOptions
from remote_udf.row_kinds import ROW_KIND
from remote_udf.segments import AppliedField
from spark_client.base.errors import PlanError
from spark_client.base.grouped import retains_keys
from spark_client.base.identifiers import Identifiers, column_named, hidden, identifiers_of
from spark_client.base.settings import all_settings, planning, read_once, reads_stream
from spark_client.executor.aggregate.changes import ChangesPlan, map_changes
from spark_client.functions.aggregate import AggregateExpression
from spark_client.functions.arguments import column_of
from spark_client.planning.aggregate.planner import plan_fired, plan_group_by
from spark_client.planning.aggregate.query import AggregateQuery, GroupBy, Strategy
from spark_client.planning.aggregate.rows import GroupedRows
from spark_client.planning.operators import OutputField, apply_operator, output_schema, value_fields, with_hidden_names
from spark_client.windows.columns import WINDOW_END, WINDOW_START
from spark_client.windows.emitting import emit_options

__all__ = ["RemoteGrouping", "positions_of"]

VERSION = hidden("version")


@dataclass(frozen=True)
class RemoteGrouping:
    """Rows grouped by keys. `RemoteSession.group_by` and similar methods return it; call `agg` to aggregate."""

    frame: DataFrame
    keys: Sequence[str | Column]
    sets: Sequence[Sequence[int]] | None = None
    order_by: Sequence[str | Column] = ()
    is_changelog: bool | None = None
    """Whether the frame is a changelog; None if its columns decide."""
    emission: Mapping[str, object] = field(default_factory=dict)
    """Options of `emit`."""

    def emit(self, **options: Unpack[EmitCallOptions]) -> "RemoteGrouping":
        """Set early firing, late firing and allowed lateness for window aggregates of a stream.

        `agg` then returns a changelog with `row_kind` as its first column. In batch, where windows are complete, these
        options change nothing. They override the session's, such as `spark.remoteudf.emit.early-fire.delay`.

        Args:
            **options: `early_fire_delay="1 s"`, `late_fire_delay="0 s"`, `allow_lateness="1 minute"`; see the options.

        Raises:
            InvalidOption: an option is unknown or has an invalid value.
        """
        emit_options(options, {})
        return replace(self, emission={**self.emission, **options})

    @planning()
    def agg(self, *aggregates: AggregateExpression | Column) -> DataFrame:
        """Aggregate the rows of each key.

        On a stream the state is Spark's.

        Args:
            *aggregates: Remote aggregates and Spark's own, in any order. Spark's own must refer to columns by name,
                `F.sum("price")`, not by frame, `F.sum(df["price"])`. A remote aggregate may be part of an expression,
                `F.round(mean("price"), 2)`, with other remote aggregates, keys by name and literals.

        Returns:
            A row per key: the key's columns, then a column per aggregate. A remote aggregate with
            `on_error="column"` is followed by a column `<name>_error`. With `spark.sql.retainGroupColumns=false` the
            key's columns are omitted, as by Spark; a changelog, as of `emit`, always has them.

        Raises:
            PlanError: the aggregates cannot be computed over these rows.
            InvalidOption: an option is unknown or has an invalid value.
            UnsupportedType: a column has a type that cannot be sent.
        """
        spark = self.frame.sparkSession
        if reads_stream(self.frame):
            options = emit_options(self.emission, read_once(spark, all_settings))
            # The settings of the session apply to window aggregates only.
            if options.fires and (
                self.emission or {WINDOW_START, WINDOW_END} <= identifiers_of(self.frame).keys(map(str, self.keys))
            ):
                return plan_fired(self._group_by, aggregates, options)
        planned = plan_group_by(self._group_by, aggregates)
        if not self.keys or read_once(spark, retains_keys):
            return planned
        names = planned.columns
        numbered = with_hidden_names(planned)
        return numbered.select(*numbered.columns[len(self.keys) :]).toDF(*names[len(self.keys) :])

    @planning()
    def changelog(self, *aggregates: AggregateExpression, per: str | Column = "row") -> DataFrame:
        """Return the changes of each key's values, computed in batch. The rows of a key are held in memory.

        The first rows of a key give +I. If its values change, the old ones are emitted as -U and the new ones as +U. If
        a key has no rows left, its last values are emitted as -D. Values that do not change emit nothing.

        Args:
            *aggregates: Remote aggregates.
            per: When values are compared: "row" after each row; "bundle" after every `size` rows of a key and its last
                one; a Column where its value changes between rows of a key, such as the version in a change feed.

        Returns:
            `row_kind`, the key's columns, then a column per aggregate. The changes of a key are in one partition, in
            the order of `order_by`, or else of the frame.

        Raises:
            PlanError: the frame is a stream, or the aggregates cannot be computed over these rows.
            InvalidOption: an option is unknown or has an invalid value.
            UnsupportedType: a column has a type that cannot be sent.
        """
        return _plan_changes(self._group_by, aggregates, per)

    @property
    def _group_by(self) -> GroupBy:
        return GroupBy(self.frame, self.keys, self.sets, self.order_by, self.is_changelog)


def positions_of(
    chosen: Sequence[str | Column], keys: Sequence[str | Column], identifiers: Identifiers
) -> tuple[int, ...]:
    """The positions of the columns of a grouping set among the keys. Raises PlanError."""

    def same(one: str | Column, other: str | Column) -> bool:
        return isinstance(one, str) and isinstance(other, str) and identifiers.same(one, other)

    positions = []
    for column in chosen:
        found = [i for i, key in enumerate(keys) if key is column or same(key, column)]
        if not found:
            # A new column with equal text, F.col("k") for "k", is recognised if only one key has that text.
            written = [i for i, key in enumerate(keys) if repr(column_of(key)) == repr(column_of(column))]
            found = written if len(written) == 1 else []
        if not found:
            raise PlanError(f"column {column!r} of a grouping set is not one of the keys")
        positions.append(found[0])
    return tuple(positions)


def _plan_changes(group_by: GroupBy, expressions: Sequence[AggregateExpression], per: str | Column) -> DataFrame:
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
    if reads_stream(group_by.frame):
        raise PlanError("a running changelog needs a table; on a stream use agg, in update mode")
    return _planned_changes(AggregateQuery(group_by, expressions), per)


def _planned_changes(query: AggregateQuery, per: str | Column) -> DataFrame:
    query.order_by = query.order_by or [F.monotonically_increasing_id()]
    for remote in query.remotes:
        remote.strategy = Strategy.CHAIN
    if not isinstance(per, str):
        query.hidden[VERSION] = per
    grouped = GroupedRows(query)
    rows = grouped.placed(grouped.frame())
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
