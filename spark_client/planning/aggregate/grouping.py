"""RemoteGrouping: rows grouped by keys, waiting for aggregates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Unpack

from pyspark.sql import Column, DataFrame

from spark_client.base.errors import PlanError
from spark_client.base.identifiers import Identifiers, identifiers_of
from spark_client.base.option_types import EmitCallOptions
from spark_client.functions.aggregate import AggregateExpression
from spark_client.functions.scalar import column_of
from spark_client.planning.aggregate.changes import plan_changes
from spark_client.planning.aggregate.planner import plan_fired, plan_group_by
from spark_client.planning.aggregate.query import GroupBy
from spark_client.windows.columns import WINDOW_END, WINDOW_START
from spark_client.windows.emitting import emit_options

__all__ = ["RemoteGrouping", "positions_of"]


@dataclass(frozen=True)
class RemoteGrouping:
    """What `RemoteSession.group_by` and its siblings return."""

    frame: DataFrame
    keys: Sequence[str | Column]
    sets: Sequence[Sequence[int]] | None = None
    order_by: Sequence[str | Column] = ()
    is_changelog: bool | None = None
    """Whether the frame is a changelog; None if its columns say so."""
    emission: Mapping[str, object] = field(default_factory=dict)
    """Options of `emit`."""

    def emit(self, **options: Unpack[EmitCallOptions]) -> "RemoteGrouping":
        """Window aggregates of a stream with early fire, late fire and allowed lateness.

        `early_fire_delay="1 s"`, `late_fire_delay="0 s"`, `allow_lateness="1 minute"`; see the options in the docs.
        They win over those of the session, `spark.remoteudf.emit.early-fire.delay` and so on. The result of `agg`
        is a changelog then, with a column `row_kind` in front. On a table, whose windows are complete, they change
        nothing. Raises InvalidOption or PlanError for options that make no sense.
        """
        emit_options(options, {})
        return replace(self, emission={**self.emission, **options})

    def agg(self, *aggregates: AggregateExpression | Column) -> DataFrame:
        """A row per key: its columns, then one per aggregate, remote ones and Spark's own as they come.

        After a remote aggregate with `on_error="column"` stands a column `<name>_error`. Spark's own
        aggregates refer to columns by name, `F.sum("price")`, not by frame, `F.sum(df["price"])`. On a
        stream the state is Spark's. Raises PlanError, InvalidOption or UnsupportedType.
        """
        if self.frame.isStreaming:
            options = emit_options(self.emission, self.frame.sparkSession.conf.getAll)
            # The settings of the session are for window aggregates only.
            if options.fires and (
                self.emission or {WINDOW_START, WINDOW_END} <= identifiers_of(self.frame).keys(map(str, self.keys))
            ):
                return plan_fired(self._group_by, aggregates, options)
        return plan_group_by(self._group_by, aggregates)

    def changelog(self, *aggregates: AggregateExpression, per: str | Column = "row") -> DataFrame:
        """The changes of each key's values: a column `row_kind`, the key's columns, then one per remote aggregate.

        The first rows of a key give +I; values that change -U with the old ones, then +U; a key that has no rows
        left -D with the last ones; values that stay as they are nothing. Rows come in the order of
        `order_by`, or of the frame. Values are compared after each row with `per="row"`, after every `size`
        rows of a key and its last one with `per="bundle"`, or with a Column wherever that changes from one
        row of a key to the next, such as the version in a change feed. Changes of a key are in one
        partition, in order. The rows of a key are held in memory. Raises PlanError for streams, and what
        `agg` raises.
        """
        return plan_changes(self._group_by, aggregates, per)

    @property
    def _group_by(self) -> GroupBy:
        return GroupBy(self.frame, self.keys, self.sets, self.order_by, self.is_changelog)


def positions_of(
    chosen: Sequence[str | Column], keys: Sequence[str | Column], identifiers: Identifiers
) -> tuple[int, ...]:
    """Where the columns of a grouping set stand among the keys. Raises PlanError."""

    def same(one: str | Column, other: str | Column) -> bool:
        return isinstance(one, str) and isinstance(other, str) and identifiers.same(one, other)

    positions = []
    for column in chosen:
        found = [i for i, key in enumerate(keys) if key is column or same(key, column)]
        if not found:
            # A column that is made again, F.col("k") for "k", is recognised by its text, if one key alone has it.
            written = [i for i, key in enumerate(keys) if repr(column_of(key)) == repr(column_of(column))]
            found = written if len(written) == 1 else []
        if not found:
            raise PlanError(f"column {column!r} of a grouping set is not one of the keys")
        positions.append(found[0])
    return tuple(positions)
