"""The steps of an aggregation in Spark: rows become accumulators, then the accumulators of a key are gathered."""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from remote_udf.functions import NullCall
from remote_udf.row_kinds import ROW_KIND
from remote_udf.segments import AppliedField
from remote_udf.types import spelled
from spark_client.base.changelogs import sign_of
from spark_client.base.grouped import described, grouped
from spark_client.base.identifiers import hidden, is_hidden
from spark_client.base.settings import reads_stream
from spark_client.base.types import spark_type
from spark_client.executor.aggregate.bundles import PartialPlan
from spark_client.executor.aggregate.grouped import map_gathered, map_grouped
from spark_client.executor.aggregate.partial import map_partial
from spark_client.executor.aggregate.segment_columns import AggregateInput
from spark_client.executor.engine.policy import ERROR_TYPE
from spark_client.planning.aggregate.keeping import keeps_one as keeps_one_accumulator
from spark_client.planning.aggregate.keeping import latest, with_one_accumulator
from spark_client.planning.aggregate.query import UPDATES, AggregateQuery, Remote, Strategy
from spark_client.planning.key_columns import sorts
from spark_client.planning.operators import apply_operator, with_hidden_names

__all__ = ["Steps"]


class Steps:
    """Steps (a) and (b); see `spark_client.planning.aggregate.planner`."""

    def __init__(self, query: AggregateQuery) -> None:
        self._query = query

    def gathered(self, base: DataFrame) -> DataFrame:
        """Run step (a), if there is one, and step (b); the result has a row per key."""
        mapped = [remote for remote in self._query.remotes if remote.strategy is not Strategy.ROWS]
        partial = self._query.spread(self.mapped(base, mapped)) if mapped else base
        keeps_one = keeps_one_accumulator(self._query, partial)
        if keeps_one:
            partial = with_one_accumulator(self._query, partial)
        # Spark makes a column from a text in fewer requests than from a function.
        collected: list[Column | str] = list(self._query.builtins)
        streaming = reads_stream(self._query.frame)
        for remote in self._query.remotes:
            if remote.strategy is Strategy.ROWS:
                rows = self._collected_rows(remote, base)
                rows = described(rows, self._description(remote, base)) if streaming else rows
                collected.append(rows.alias(remote.accumulator))
                continue
            if streaming:
                accumulators = latest(remote) if keeps_one else F.collect_list(remote.accumulator)
                accumulators = described(accumulators, self._description(remote))
                collected.append(accumulators.alias(remote.accumulator))
            else:
                collected.append(f"collect_list({remote.accumulator}) AS {remote.accumulator}")
            if remote.keeps_errors:
                collected.append(f"first({remote.error}, true) AS {remote.error}")
        count = hidden("count")
        counted = self._query.kind is not None and not self._query.chained
        if counted:
            # Added rows minus retracted rows: per bundle, or per row if rows are passed on.
            sign = sign_of(F.col(hidden("kind"))) if self._query.passes_rows else count
            collected.append(F.sum(sign).alias(count))
        described_alone = streaming and not self._query.remotes
        if described_alone:
            collected.append(described(F.lit(True), f"aggregates{self._by_keys}").alias(hidden("state")))
        if self._query.only_updated:
            collected.append(F.max(UPDATES).alias(UPDATES))
        texts = [each for each in collected if isinstance(each, str)]
        if not self._query.keys and len(texts) == len(collected):
            gathered = partial.selectExpr(*texts)
        else:
            columns = [F.expr(each) if isinstance(each, str) else each for each in collected]
            gathered = grouped(partial, self._query.group_keys, columns)
        if described_alone:
            # Spark does not compute an aggregate that nothing reads.
            gathered = gathered.where(hidden("state")).drop(hidden("state"))
        if self._query.only_updated:
            gathered = gathered.where(UPDATES).drop(UPDATES)
        if counted:
            is_left = F.col(count) != 0 if self._query.windowed else F.col(count) > 0
            gathered = (gathered.where(is_left) if self._query.keys else gathered).drop(count)
        return gathered

    def mapped(
        self, base: DataFrame, mapped: Sequence[Remote], applied: AppliedField = AppliedField.ACCUMULATOR, *,
        is_sorted: bool = True,
    ) -> DataFrame:  # fmt: skip
        """Step (a): accumulators, or final values if all rows of a key are in one place.

        Without `is_sorted`, the rows of a key are in one task but not beside each other. Final values have the names
        that the user gave if `shows_values_only`, otherwise hidden ones.
        """
        fields = {field.name: field for field in base.schema.fields}
        place = {name: index for index, name in enumerate(base.columns)}
        renamed = self._query.own_names
        place |= {name: place[column] for name, column in renamed.items()}
        fields |= {name: fields[column] for name, column in renamed.items()}
        inputs = tuple(remote.over(place, applied) for remote in mapped)
        keys = self._query.group_keys
        own = {name for remote in mapped for name in (*remote.arguments, remote.condition)}
        passed = [name for name in fields if name not in own] if self._query.passes_rows else None
        final = applied is AppliedField.FINAL_VALUE and self._query.shows_values_only
        schema = self._schema([fields[name] for name in passed or keys], passed or keys, mapped, inputs, final=final)
        kinds = None if self._query.kind is None else place[hidden("kind")]
        if kinds is not None and not self._query.chained and passed is None:
            schema.append(StructField(hidden("count"), T.LongType()))
        plan = PartialPlan(
            inputs=inputs,
            keys=tuple(place[name] for name in keys),
            key_names=self._query.shown_key_names,
            kinds=kinds,
            passed=None if passed is None else tuple(place[name] for name in passed),
            names=tuple(field.name for field in schema),
            below_zero=self._query.windowed,
        )
        run = (map_grouped if is_sorted else map_gathered) if self._query.chained else map_partial
        # Without columns of the user's all names are hidden already, unless the frame is taken unchanged.
        ready = base if renamed or all(map(is_hidden, base.columns)) else with_hidden_names(base)
        return apply_operator(ready, run, plan, StructType(schema), calls=self._query.shown_calls)

    def merged(self, partial: DataFrame) -> DataFrame:
        """Run steps (b) and (c) over accumulators that are sorted by key.

        The columns have the names that the user gave if `shows_values_only`, otherwise hidden ones.
        """
        fields = {field.name: field for field in partial.schema.fields}
        place = {name: index for index, name in enumerate(fields)}
        inputs = tuple(
            AggregateInput(
                remote.applying(AppliedField.FINAL_VALUE),
                (),
                accumulator=place[remote.accumulator],
                error=place.get(remote.error),
            )
            for remote in self._query.remotes
        )
        keys, final = self._query.group_keys, self._query.shows_values_only
        schema = self._schema([fields[key] for key in keys], keys, self._query.remotes, inputs, final=final)
        plan = PartialPlan(
            inputs=inputs,
            keys=tuple(place[name] for name in keys),
            key_names=self._query.shown_key_names,
            kinds=None,
            passed=None,
            names=tuple(field.name for field in schema),
        )
        return apply_operator(partial, map_grouped, plan, StructType(schema), calls=self._query.shown_calls)

    def _schema(
        self, fields: Sequence[StructField], names: Sequence[str], remotes: Sequence[Remote],
        inputs: Sequence[AggregateInput], *, final: bool,
    ) -> list[StructField]:  # fmt: skip
        """These columns, then those of the calls; if `final`, under the names that the user gave."""
        shown = zip(self._query.titles if final else names, fields, strict=True)
        values = ((r.name if final else r.accumulator, each) for r, each in zip(remotes, inputs, strict=True))
        return [
            *(StructField(name, field.dataType, True, field.metadata) for name, field in shown),
            *(StructField(name, spark_type(each.call.applied_type)) for name, each in values),
            *(StructField(remote.error, spark_type(ERROR_TYPE)) for remote in remotes if remote.keeps_errors),
        ]

    @property
    def _by_keys(self) -> str:
        """The keys, and the time zone of their windows."""
        zone = "" if self._query.zone is None else f" in the time zone {self._query.zone}"
        return f" by ({', '.join(self._query.key_names)}){zone}"

    def _description(self, remote: Remote, base: DataFrame | None = None) -> str:
        """What a stream collects for a call, by which keys: its rows, of `base`, or its accumulators."""
        spec, by_keys = remote.call.spec, self._by_keys
        if base is None:
            assert spec.accumulator is not None
            return f"{spec.name}: accumulators {spelled(spec.accumulator)}{by_keys}"
        types = {field.name: field.dataType.simpleString() for field in base.schema.fields}
        order = [hidden(f"order_{index}") for index in range(len(self._query.order_by))]
        changes = ["row_kind"] if self._query.kind is not None else []
        rows, by = (", ".join(names) for names in (
            [*changes, *(types[name] for name in remote.arguments)], (types[name] for name in order)
        ))  # fmt: skip
        return f"{spec.name}: rows ({rows}) in the order of ({by}){by_keys}"

    def _collected_rows(self, remote: Remote, base: DataFrame) -> Column:
        """The rows of a key for one call, gathered by Spark."""
        kinds = [F.col(hidden("kind")).alias(ROW_KIND)] if self._query.kind is not None else []
        row = F.struct(*kinds, *(F.col(name).alias(str(i)) for i, name in enumerate(remote.arguments)))
        condition = None if remote.condition is None else F.col(remote.condition)
        if remote.call.spec.nulls is NullCall.SKIP:
            for name in remote.arguments:
                present = F.col(name).isNotNull()
                condition = present if condition is None else condition & present
        if remote.expression.is_distinct:
            # The set may contain equal structs twice; `map_finish` removes the repetitions.
            return F.collect_set(row if condition is None else F.when(condition, row))
        if not self._query.order_by:
            return F.collect_list(row if condition is None else F.when(condition, row))
        order = F.struct(*(F.col(hidden(f"order_{i}")) for i in range(len(self._query.order_by))))
        placed = F.struct(order.alias("order"), row.alias("row"))
        rows = F.collect_list(placed if condition is None else F.when(condition, placed))
        sortable = all(sorts(base.schema[name].dataType) for name in remote.arguments)
        # Spark compares whole rows much faster, but not rows with maps.
        in_order = F.array_sort(rows) if sortable else F.array_sort(rows, _by_order)
        return F.transform(in_order, lambda each: each["row"])


def _by_order(one: Column, other: Column) -> Column:
    before, after = one["order"] < other["order"], one["order"] > other["order"]
    return F.when(before, -1).when(after, 1).otherwise(0)
