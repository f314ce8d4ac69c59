"""Aggregation: plans remote aggregates into partial, shuffle, merge, beside Spark's own aggregates.

(a) mapInArrow: rows of a partition become accumulators, bundle by bundle; (b) Spark's groupBy gathers
the accumulators of a key and computes its own aggregates; (c) mapInArrow: accumulators become values.
A function whose rows must be in one place or in order gets them sorted by key in (a), in chains of
bundles. Where Spark's own aggregates need the rows, (a) hands them on, with the accumulators in the last
row of their segment, so that the data is read once.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from enum import Enum, auto
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.types import StructField, StructType

from remote_udf.errors import StreamError
from remote_udf.functions import NullCall
from remote_udf.options import OnError
from remote_udf.row_kinds import ROW_KIND, RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, AppliedField
from spark_client.aggregate import AggregateExpression
from spark_client.calls import AggregateCall
from spark_client.changelogs import kind_code, kind_column
from spark_client.comparing import normalized, require_sorting, sorts
from spark_client.directions import is_direction
from spark_client.errors import PlanError
from spark_client.executor.aggregates.bundles import PartialPlan
from spark_client.executor.aggregates.grouped import map_grouped
from spark_client.executor.aggregates.merge import FinishPlan, map_finish
from spark_client.executor.aggregates.partial import map_partial
from spark_client.executor.aggregates.segments import AggregateInput
from spark_client.executor.engine import PlannedCall
from spark_client.executor.policy import ERROR_TYPE
from spark_client.executor.rows import OutputColumn, Source
from spark_client.scalar import column_of
from spark_client.types import arrow_type, spark_type

__all__ = ["Aggregation", "plan_aggregation"]

PREFIX = "__remote_udf_"
ERROR_SUFFIX = "_error"
_RETRACTS = [kind.code for kind in RowKind if kind.is_retract]


@dataclasses.dataclass(frozen=True)
class Aggregation:
    """What is asked for. `sets` are the grouping sets as positions of keys; None for GROUP BY alone."""

    frame: DataFrame
    keys: Sequence[Column | str]
    sets: Sequence[Sequence[int]] | None
    order_by: Sequence[Column | str]
    changelog: bool | None
    """Whether the frame is a changelog; None if its columns say so."""


class _Strategy(Enum):
    """How the rows of a key get together."""

    PARTIAL = auto()
    """Accumulators of bundles, merged after the shuffle."""
    CHAIN = auto()
    """Rows sorted by key; the accumulator goes from bundle to bundle."""
    ROWS = auto()
    """Spark gathers the rows; the function gets them in one segment."""


@dataclasses.dataclass(eq=False)
class _Remote:
    """A remote aggregate, planned. Columns of step (a) by name."""

    expression: AggregateExpression
    name: str
    call: AggregateCall
    strategy: _Strategy
    position: int
    arguments: list[str]
    condition: str | None

    @property
    def accumulator(self) -> str:
        return f"{PREFIX}accumulator_{self.position}"

    @property
    def error(self) -> str:
        return f"{PREFIX}error_{self.position}"

    @property
    def keeps_errors(self) -> bool:
        """Errors go on to the end instead of failing the job."""
        return self.call.policy.on_error is not OnError.FAIL

    def applying(self, *applied: AppliedField) -> AggregateCall:
        return dataclasses.replace(self.call, applied=applied)


def plan_aggregation(aggregation: Aggregation, expressions: Sequence[AggregateExpression | Column]) -> DataFrame:
    """Keys, then a column per expression in their order. Raises PlanError, InvalidOption or UnsupportedType."""
    for expression in expressions:
        if not isinstance(expression, (AggregateExpression, Column)):
            raise PlanError(f"agg takes calls of remote aggregates and Spark's own, not {expression!r}")
    if not expressions:
        raise PlanError("agg without an aggregate")
    return _Planner(aggregation, expressions).plan()


class _Planner:
    def __init__(self, aggregation: Aggregation, expressions: Sequence[AggregateExpression | Column]) -> None:
        self._frame = frame = aggregation.frame
        self._expressions = expressions
        self._builtins = [each for each in expressions if isinstance(each, Column)]
        self._order_by = list(aggregation.order_by)
        self._kind = self._kind_column(aggregation.changelog)
        self._key_names = frame.select(*aggregation.keys).columns if aggregation.keys else []
        self._keys = [f"{PREFIX}key_{index}" for index in range(len(self._key_names))]
        self._hidden: dict[str, Column] = {}
        """Columns of step (a) that are not the frame's."""
        # By nothing at all is one group, whatever it is called.
        self._sets = aggregation.sets if aggregation.keys else None
        for name, key, type_ in zip(self._keys, aggregation.keys, self._key_types(aggregation.keys), strict=True):
            self._hidden[name] = normalized(column_of(key), type_)
        self._remotes = self._planned()
        self._passes_rows = bool(self._builtins) or any(r.strategy is _Strategy.ROWS for r in self._remotes)
        if self._kind is not None and self._builtins:
            raise PlanError(
                "Spark's own aggregates cannot take rows back: on a changelog use remote ones, or aggregate the "
                "table it describes"
            )

    @property
    def _chained(self) -> bool:
        return any(remote.strategy is _Strategy.CHAIN for remote in self._remotes)

    def plan(self) -> DataFrame:
        base = self._base()
        in_lists = not self._keys or self._passes_rows or self._frame.isStreaming
        if in_lists or not (self._chained or self._sorts_keys(base)):
            return self._finished(self._gathered(base))
        if self._chained:
            return self._shown(self._mapped(base, self._remotes, AppliedField.FINAL_VALUE))
        # Spark sorts accumulators faster than it gathers them in lists, and to any size.
        keys = self._group_keys()
        partial = self._mapped(base, self._remotes)
        return self._shown(self._merged(partial.repartition(*keys).sortWithinPartitions(*keys)))

    # What is asked for.

    def _kind_column(self, changelog: bool | None) -> str | None:
        found = kind_column(self._frame)
        if changelog and found is None:
            raise PlanError(f"no column {ROW_KIND!r} or '_change_type' makes this a changelog")
        return found if changelog is not False else None

    def _key_types(self, keys: Sequence[Column | str]) -> list[T.DataType]:
        if not keys:
            return []
        fields = self._frame.select(*keys).schema.fields
        for field in fields:
            arrow_type(field.dataType, f"key {field.name!r}")
        return [field.dataType for field in fields]

    def _planned(self) -> list[_Remote]:
        remotes = []
        for position, expression in enumerate(self._expressions):
            if not isinstance(expression, AggregateExpression):
                continue
            self._refuse_retraction(expression)
            names = []
            for index, (column, type_) in enumerate(self._arguments(expression)):
                names.append(f"{PREFIX}argument_{position}_{index}")
                self._hidden[names[-1]] = normalized(column, type_) if expression.is_distinct else column
            condition = None
            if (only := expression.condition_column()) is not None:
                condition = f"{PREFIX}condition_{position}"
                self._hidden[condition] = only
            call = expression.plan((AppliedField.ACCUMULATOR,))
            name = expression.column_name(self._frame)
            strategy = self._strategy(expression)
            remotes.append(_Remote(expression, name, call, strategy, position, names, condition))
        if any(remote.strategy is _Strategy.CHAIN for remote in remotes):
            for remote in remotes:
                if remote.strategy is _Strategy.PARTIAL:
                    remote.strategy = _Strategy.CHAIN
        return remotes

    def _refuse_retraction(self, expression: AggregateExpression) -> None:
        if self._kind is not None and not expression.spec.supports_retracting:
            raise PlanError(
                f"Retract functionality is not implemented for the aggregate function: {expression.spec.key}; its "
                f"input is a changelog (column {self._kind!r})"
            )
        if self._kind is not None and expression.is_distinct:
            raise PlanError(f"call of {expression.spec.key}: DISTINCT over a changelog is not supported")

    def _strategy(self, expression: AggregateExpression) -> _Strategy:
        if expression.is_distinct:
            return _Strategy.ROWS
        streaming = self._frame.isStreaming
        in_order = bool(self._order_by) or (self._kind is not None and not streaming)
        if expression.spec.supports_merging and not in_order:
            return _Strategy.PARTIAL
        return _Strategy.ROWS if streaming else _Strategy.CHAIN

    def _arguments(self, expression: AggregateExpression) -> list[tuple[Column, T.DataType]]:
        """The arguments with their types, which are checked."""
        columns, spec = expression.columns(), expression.spec
        fields = self._frame.select(*columns).schema.fields if columns else []
        try:
            spec.check_arguments(
                [
                    arrow_type(field.dataType, f"call of {spec.key}, argument {spec.parameter(i).name!r}")
                    for i, field in enumerate(fields)
                ]
            )
        except StreamError as error:
            raise PlanError(error.message) from None
        return [(column, field.dataType) for column, field in zip(columns, fields, strict=True)]

    # Step (a).

    def _base(self) -> DataFrame:
        """The rows step (a) gets: what Spark's aggregates may name, and hidden columns with everything else."""
        hidden = dict(self._hidden)
        chained = self._chained
        order: list[str | Column] = []
        if self._kind is not None:
            hidden[f"{PREFIX}kind"] = kind_code(self._kind)
        for index, column in enumerate(self._ordering(chained)):
            if self._is_direction(column):
                order.append(column)
                continue
            # Here and not in the sort: what a row's place in the input gives would be that after the shuffle.
            order.append(f"{PREFIX}order_{index}")
            hidden[f"{PREFIX}order_{index}"] = column_of(column)
        # With all of the frame's columns at first: the order may name any of them. Spark prunes the rest.
        base = self._frame.select("*", *(column.alias(name) for name, column in hidden.items()))
        if self._sets is not None:
            base = self._expanded(base)
        keys = self._group_keys()
        if chained:
            for name, type_ in zip(self._key_names, self._types_of_keys(base), strict=False):
                require_sorting(type_, f"key {name!r}")
            placed = base.repartition(*keys) if keys else base.repartition(1)
            base = placed.sortWithinPartitions(*keys, *order) if keys or order else placed
        sorted_by = () if self._frame.isStreaming else (name for name in order if isinstance(name, str))
        done = {*self._keys, *sorted_by}
        return base.select(*self._passed_columns(), *keys, *(name for name in hidden if name not in done))

    def _types_of_keys(self, base: DataFrame) -> list[T.DataType]:
        keys = self._group_keys()
        return [field.dataType for field in base.select(*keys).schema.fields] if keys else []

    def _sorts_keys(self, base: DataFrame) -> bool:
        return all(sorts(type_) for type_ in self._types_of_keys(base))

    def _ordering(self, chained: bool) -> Sequence[Column | str]:
        """What the rows of a key are ordered by: what the caller says; the input's order for a changelog."""
        if self._order_by or self._kind is None or not chained:
            return self._order_by
        # The order of the input, as far as a DataFrame has one: by partition, then by position.
        return [F.monotonically_increasing_id()]

    def _is_direction(self, column: Column | str) -> bool:
        """Whether it can be sorted by and not selected, such as `F.col("x").desc()`. Raises PlanError on a stream."""
        found = is_direction(self._frame, column)
        if found and self._frame.isStreaming:
            raise PlanError(f"on a stream order_by takes columns, from the smallest up, not {column}")
        return found

    def _passed_columns(self) -> list[str]:
        """The frame's own columns that Spark's aggregates may name."""
        if not self._builtins:
            return []
        names = [name.casefold() for name in self._frame.columns]
        return [f"`{name}`" for name in self._frame.columns if names.count(name.casefold()) == 1]

    def _group_keys(self) -> list[str]:
        if self._sets is None:
            return self._keys
        return [*(f"{key}_in_set" for key in self._keys), f"{PREFIX}grouping_id"]

    def _expanded(self, base: DataFrame) -> DataFrame:
        """Every row once per grouping set, with null for the keys that are not in it (Spark's Expand)."""
        assert self._sets is not None
        types = {field.name: field.dataType for field in base.schema.fields if field.name in self._keys}
        choices = []
        for number, chosen in enumerate(self._sets):
            parts = [
                (F.col(key) if index in chosen else F.lit(None).cast(types[key])).alias(f"{key}_in_set")
                for index, key in enumerate(self._keys)
            ]
            choices.append(F.struct(*parts, F.lit(number).alias(f"{PREFIX}grouping_id")))
        exploded = base.select("*", F.explode(F.array(*choices)).alias(f"{PREFIX}set"))
        return exploded.select("*", *(F.col(f"{PREFIX}set.{name}").alias(name) for name in self._group_keys()))

    def _gathered(self, base: DataFrame) -> DataFrame:
        """Step (a), if there is one, and (b): a row per key."""
        mapped = [remote for remote in self._remotes if remote.strategy is not _Strategy.ROWS]
        partial = self._mapped(base, mapped) if mapped else base
        collected: list[Column] = list(self._builtins)
        for remote in self._remotes:
            if remote.strategy is _Strategy.ROWS:
                collected.append(self._collected_rows(remote).alias(remote.accumulator))
                continue
            collected.append(F.collect_list(remote.accumulator).alias(remote.accumulator))
            if remote.keeps_errors:
                collected.append(F.first(remote.error, ignorenulls=True).alias(remote.error))
        count = f"{PREFIX}count"
        counted = self._kind is not None and not self._chained
        if counted:
            # Rows added less rows taken back: of each bundle, or where the rows are here, of each row.
            sign = F.when(F.col(f"{PREFIX}kind").isin(_RETRACTS), -1).otherwise(1) if self._passes_rows else count
            collected.append(F.sum(sign).alias(count))
        gathered = partial.groupBy(*self._group_keys()).agg(*collected)
        if counted:
            gathered = (gathered.where(F.col(count) > 0) if self._keys else gathered).drop(count)
        return gathered

    def _mapped(
        self, base: DataFrame, mapped: Sequence[_Remote], applied: AppliedField = AppliedField.ACCUMULATOR
    ) -> DataFrame:
        """Step (a): accumulators, or where all rows of a key are in one place the values themselves."""
        fields = {field.name: field for field in base.schema.fields}
        place = {name: index for index, name in enumerate(base.columns)}
        inputs = tuple(
            AggregateInput(
                remote.applying(applied),
                tuple(place[name] for name in remote.arguments),
                None if remote.condition is None else place[remote.condition],
            )
            for remote in mapped
        )
        keys = self._group_keys()
        own = {name for remote in mapped for name in (*remote.arguments, remote.condition)}
        passed = [name for name in fields if name not in own] if self._passes_rows else None
        schema = [StructField(n, fields[n].dataType, True, fields[n].metadata) for n in passed or keys]
        types = [each.call.applied_type for each in inputs]
        schema += [StructField(r.accumulator, spark_type(type_)) for r, type_ in zip(mapped, types, strict=True)]
        schema += [StructField(r.error, spark_type(ERROR_TYPE)) for r in mapped if r.keeps_errors]
        kinds = None if self._kind is None else place[f"{PREFIX}kind"]
        if kinds is not None and not self._chained and passed is None:
            schema.append(StructField(f"{PREFIX}count", T.LongType()))
        plan = PartialPlan(
            inputs=inputs,
            keys=tuple(place[name] for name in keys),
            key_names=self._shown_key_names(),
            kinds=kinds,
            passed=None if passed is None else tuple(place[name] for name in passed),
            names=tuple(field.name for field in schema),
        )
        run = map_grouped if self._chained else map_partial

        def operate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return run(plan, batches)

        # mapInArrow goes by names, and the frame's may have dots in them.
        plain = base.toDF(*(f"{PREFIX}{index}" for index in range(len(fields))))
        return plain.mapInArrow(operate, StructType(schema))

    def _merged(self, partial: DataFrame) -> DataFrame:
        """Steps (b) and (c) over accumulators that are sorted by key."""
        fields = {field.name: field for field in partial.schema.fields}
        place = {name: index for index, name in enumerate(fields)}
        inputs = tuple(
            AggregateInput(
                remote.applying(AppliedField.FINAL_VALUE),
                (),
                accumulator=place[remote.accumulator],
                error=place.get(remote.error),
            )
            for remote in self._remotes
        )
        keys = self._group_keys()
        schema = [StructField(name, fields[name].dataType, True, fields[name].metadata) for name in keys]
        schema += [StructField(r.accumulator, spark_type(r.call.spec.result)) for r in self._remotes]
        schema += [StructField(r.error, spark_type(ERROR_TYPE)) for r in self._remotes if r.keeps_errors]
        plan = PartialPlan(
            inputs=inputs,
            keys=tuple(place[name] for name in keys),
            key_names=self._shown_key_names(),
            kinds=None,
            passed=None,
            names=tuple(field.name for field in schema),
        )

        def operate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return map_grouped(plan, batches)

        return partial.mapInArrow(operate, StructType(schema))

    def _shown(self, merged: DataFrame) -> DataFrame:
        """The result under the names that were asked for."""
        columns = [F.col(key).alias(name) for key, name in zip(self._group_keys(), self._key_names, strict=False)]
        for remote in self._remotes:
            columns.append(F.col(remote.accumulator).alias(remote.name))
            if remote.call.policy.on_error is OnError.COLUMN:
                columns.append(F.col(remote.error).alias(remote.name + ERROR_SUFFIX))
        return merged.select(*columns)

    def _shown_key_names(self) -> tuple[str, ...]:
        """What the columns of a key are called for the function and in errors."""
        return (*self._unique_key_names(), *(["grouping"] if self._sets is not None else []))

    def _collected_rows(self, remote: _Remote) -> Column:
        """The rows of a key for one call, as Spark gathers them."""
        kinds = [F.col(f"{PREFIX}kind").alias(ROW_KIND)] if self._kind is not None else []
        row = F.struct(*kinds, *(F.col(name).alias(str(i)) for i, name in enumerate(remote.arguments)))
        condition = None if remote.condition is None else F.col(remote.condition)
        if remote.call.spec.nulls is NullCall.SKIP:
            for name in remote.arguments:
                present = F.col(name).isNotNull()
                condition = present if condition is None else condition & present
        if remote.expression.is_distinct:
            return F.collect_set(row if condition is None else F.when(condition, row))
        if not self._order_by:
            return F.collect_list(row if condition is None else F.when(condition, row))
        placed = F.struct(
            *(F.col(f"{PREFIX}order_{i}").alias(f"o{i}") for i in range(len(self._order_by))), row.alias("row")
        )
        rows = F.collect_list(placed if condition is None else F.when(condition, placed))
        return F.transform(F.array_sort(rows), lambda each: each["row"])

    # Step (c).

    def _finished(self, gathered: DataFrame) -> DataFrame:
        keys = self._group_keys()
        if len(self._builtins) + len(keys) > len(gathered.columns):
            raise PlanError("an aggregate of Spark's own became several columns")
        fields = gathered.schema.fields
        names = [field.name for field in fields]
        builtin_at = {id(each): len(keys) + index for index, each in enumerate(self._builtins)}
        # mapInArrow goes by names, and Spark's own may be called anything.
        plain = gathered.toDF(*(f"{PREFIX}{index}" for index in range(len(names))))
        place = {name: len(names) - 1 - index for index, name in enumerate(reversed(names))}
        key_struct = None
        if self._keys and any(remote.call.spec.sees_key for remote in self._remotes):
            key_struct = len(names)
            shown = zip(keys, self._unique_key_names(), strict=False)  # the grouping set is not shown
            columns = [plain[f"{PREFIX}{place[key]}"].alias(name) for key, name in shown]
            plain = plain.select("*", F.struct(*columns).alias(f"{PREFIX}key"))
        calls = tuple(self._finishing_call(remote, place, key_struct) for remote in self._remotes)
        output: list[tuple[str, Source, int, T.DataType, dict[str, Any]]] = [
            (name, Source.INPUT, index, fields[index].dataType, fields[index].metadata)
            for index, name in enumerate(self._key_names)
        ]
        for expression in self._expressions:
            if not isinstance(expression, AggregateExpression):
                at = builtin_at[id(expression)]
                output.append((names[at], Source.INPUT, at, fields[at].dataType, fields[at].metadata))
                continue
            number = next(i for i, remote in enumerate(self._remotes) if remote.expression is expression)
            remote = self._remotes[number]
            output.append((remote.name, Source.VALUE, number, spark_type(remote.call.spec.result), {}))
            if remote.call.policy.on_error is OnError.COLUMN:
                output.append((remote.name + ERROR_SUFFIX, Source.ERROR, number, spark_type(ERROR_TYPE), {}))
        plan = FinishPlan(
            calls=calls,
            keys=tuple(range(len(self._keys))),
            key_names=tuple(self._key_names),
            output=tuple(OutputColumn(f"{PREFIX}{i}", each[1], each[2]) for i, each in enumerate(output)),
        )
        schema = StructType([StructField(f"{PREFIX}{i}", e[3], True, e[4]) for i, e in enumerate(output)])

        def operate(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return map_finish(plan, batches)

        return plain.mapInArrow(operate, schema).toDF(*(each[0] for each in output))

    def _unique_key_names(self) -> list[str]:
        """The names of the key's columns as the function sees them."""
        seen: list[str] = []
        for index, name in enumerate(self._key_names):
            seen.append(f"{name}_{index}" if name in seen else name)
        return seen

    def _finishing_call(self, remote: _Remote, place: dict[str, int], key_struct: int | None) -> PlannedCall:
        rows = ROWS if remote.strategy is _Strategy.ROWS else ACCUMULATORS
        columns, names = [place[remote.accumulator]], [rows]
        if key_struct is not None and remote.call.spec.sees_key:
            columns, names = [key_struct, *columns], [KEY, *names]
        errors = (place[remote.error],) if remote.error in place else ()
        return PlannedCall(remote.applying(AppliedField.FINAL_VALUE), tuple(columns), errors, tuple(names))


def _accumulator(remote: _Remote) -> pa.DataType:
    assert remote.call.spec.accumulator is not None
    return remote.call.spec.accumulator
