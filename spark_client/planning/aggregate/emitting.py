"""Plans window aggregates of a stream with early or late firing. The result is a changelog.

Rows are assigned to buckets of keys of one window, and Spark keeps the state of each bucket
(applyInPandasWithState). Before and after that, mapInArrow packs rows into Arrow messages and unpacks changes, so
types and nulls are Arrow's. If a delay is in processing time, Spark visits every open window in every micro-batch;
otherwise the watermark triggers them. See spark_client.executor.aggregate.fired.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructField, StructType

from remote_udf.row_kinds import ROW_KIND
from remote_udf.segments import AppliedField
from spark_client.base.changelogs import FIRED, require_no_fires
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import column_named, hidden
from spark_client.base.types import arrow_type, spark_type
from spark_client.executor.aggregate.fired import BUCKET, LAST, OVER, PACKED, fired, packed_windows
from spark_client.executor.aggregate.firing import EmitOptions, FirePlan
from spark_client.executor.aggregate.running import Running
from spark_client.executor.packed_batches import unpacked
from spark_client.functions.aggregate import AggregateExpression
from spark_client.planning.aggregate.builtins import Builtin, known_builtin
from spark_client.planning.aggregate.query import AggregateQuery, GroupBy
from spark_client.planning.aggregate.rows import GroupedRows
from spark_client.planning.key_columns import require_sorting
from spark_client.windows.columns import WINDOW_END, WINDOW_START, WINDOW_TIME, watermark_of
from spark_client.windows.emitting import is_only_updated
from spark_client.windows.row_windows import SESSION

__all__ = ["plan_emitting"]

BUCKETS = 16
"""Buckets per window, which bounds the tasks that work on one. It must not change: stored state depends on it."""


def plan_emitting(
    group_by: GroupBy, expressions: Sequence[AggregateExpression | Column], options: EmitOptions
) -> DataFrame:
    """Return `row_kind`, the keys, then a column per expression. The key window_time carries the watermark.

    Raises PlanError, InvalidOption or UnsupportedType.
    """
    require_no_fires(group_by.frame, "early and late fire")
    names = [key if isinstance(key, str) else "" for key in group_by.keys]
    for name in (WINDOW_START, WINDOW_END, WINDOW_TIME):
        if name not in names:
            raise PlanError(
                f"early and late fire are for window aggregates of a stream with a watermark; no key {name!r}"
            )
    if SESSION in group_by.frame.schema[WINDOW_START].metadata:
        raise PlanError("early and late fire are not supported for SESSION windows, whose end is not known before")
    if is_only_updated(group_by.frame):
        raise PlanError("early and late fire cannot be combined with emitOnlyOnUpdate of CUMULATE")
    time = names.index(WINDOW_TIME)
    if group_by.sets is not None and any(time not in each for each in group_by.sets):
        raise PlanError("early and late fire: every grouping set must have the columns of the window")
    own = [each for each in expressions if not isinstance(each, AggregateExpression)]
    builtins = [known_builtin(group_by.frame, each, "early and late fire:") for each in own]
    known = dict(zip(map(id, own), builtins, strict=True))
    for builtin in builtins:
        _require_comparable(builtin)
    query = AggregateQuery(group_by, expressions, known=known)
    for remote in query.remotes:
        if remote.keeps_errors:
            raise PlanError(f"call of {remote.call.spec.key}: with early or late fire on-error is 'fail'")
        if remote.expression.is_distinct:
            raise PlanError(f"call of {remote.call.spec.key}: DISTINCT with early or late fire is not supported")
    if group_by.order_by:
        raise PlanError("early and late fire: order_by is not supported; rows come in the order of the stream")
    return _planned(query, builtins, options, time)


def _require_comparable(builtin: Builtin) -> None:
    """Raises PlanError for a type whose values Python neither adds nor compares as Spark does."""
    type_, what = builtin.argument, f"early and late fire: {builtin.name}"
    if builtin.function in ("sum", "avg") and not isinstance(type_, T.NumericType):
        assert type_ is not None
        raise PlanError(f"{what} needs numbers, found {type_.simpleString()}; cast it with withColumn first")
    if type_ is not None and builtin.needs_values:
        require_sorting(type_, what)
        if isinstance(type_, (T.StructType, T.ArrayType, T.VariantType)):
            raise PlanError(f"{what}: values of type {type_.simpleString()} are not supported, only their fields are")


def _planned(query: AggregateQuery, builtins: Sequence[Builtin], options: EmitOptions, time: int) -> DataFrame:
    for number, builtin in enumerate(builtins):
        if builtin.column is not None:
            query.hidden[_argument(number)] = column_named(builtin.column)
    query.builtins = []  # their arguments are hidden columns
    base = GroupedRows(query).frame()
    fields = {field.name: field for field in base.schema.fields}
    keys = query.group_keys
    plan = _fire_plan(query, builtins, options, fields)
    last = F.unix_millis(F.col(keys[time]))
    over = F.timestamp_millis(last + options.lateness)
    metadata = watermark_of(fields[keys[time]])
    if metadata is None:
        raise PlanError(f"early and late fire need a watermark on {WINDOW_TIME}; set one before the window function")
    bucket = F.pmod(F.xxhash64(*keys), F.lit(BUCKETS)).cast("int")
    plain = base.select(last.alias(LAST), over.alias(OVER), bucket.alias(BUCKET), *fields).toDF(
        *(f"c{index}" for index in range(len(fields) + 3))
    )
    packed_type = StructType([
        StructField(LAST, T.LongType()), StructField(OVER, T.TimestampType(), True, metadata),
        StructField(BUCKET, T.IntegerType()), StructField(PACKED, T.BinaryType()),
    ])  # fmt: skip
    packed = plain.mapInArrow(packed_windows, packed_type)
    timeout = GroupStateTimeout.ProcessingTimeTimeout if options.needs_clock else GroupStateTimeout.EventTimeTimeout

    def fire(key: tuple[int, int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        yield from fired(plan, int(key[0]), frames, state)

    changes = packed.groupBy(LAST, BUCKET).applyInPandasWithState(
        fire, f"{PACKED} binary", "state binary", "append", timeout
    )
    output = _output(query, builtins, plan, fields)
    schema = StructType([StructField(f"v{index}", type_) for index, (_, type_) in enumerate(output)])
    shown = [
        F.col(f"v{i}").alias(name, metadata={FIRED: True})
        for i, (name, _) in enumerate(output) if name != hidden("grouping_id")
    ]  # fmt: skip
    return changes.mapInArrow(unpacked, schema).select(*shown)


def _output(
    query: AggregateQuery, builtins: Sequence[Builtin], plan: FirePlan, fields: Mapping[str, StructField]
) -> list[tuple[str, T.DataType]]:
    """The names and the types of the columns of changes."""
    shown_keys = [
        (name, fields[key].dataType) for name, key in zip(query.key_names, query.group_keys, strict=False)
    ]  # the grouping set is part of the key, but it is not shown
    output: list[tuple[str, T.DataType]] = [(ROW_KIND, T.StringType()), *shown_keys]
    if query.sets is not None:
        output.append((hidden("grouping_id"), fields[query.group_keys[-1]].dataType))
    remotes, own = (each.name for each in query.remotes), (each.name for each in builtins)
    names = [next(remotes if isinstance(each, AggregateExpression) else own) for each in query.expressions]
    output += [(name, spark_type(type_)) for name, type_ in zip(names, plan.value_types, strict=True)]
    return output


def _argument(number: int) -> str:
    return hidden(f"builtin_{number}")


def _fire_plan(
    query: AggregateQuery, builtins: Sequence[Builtin], options: EmitOptions, fields: Mapping[str, StructField]
) -> FirePlan:
    place = {name: index for index, name in enumerate(fields)}
    numbers = {True: itertools.count(), False: itertools.count()}
    remote = (isinstance(each, AggregateExpression) for each in query.expressions)
    shown = [(is_remote, next(numbers[is_remote])) for is_remote in remote]
    keys = query.group_keys
    return FirePlan(
        options=options,
        remotes=tuple(remote.over(place, AppliedField.ACCUMULATOR) for remote in query.remotes),
        runnings=tuple(
            Running(
                each.function, None if each.column is None else place[_argument(number)], each.distinct,
                None if each.argument is None else arrow_type(each.argument, each.name),
                arrow_type(each.type, each.name), query.kind is not None,
            )
            for number, each in enumerate(builtins)
        ),
        shown=tuple(shown),
        keys=tuple(place[name] for name in keys),
        key_names=query.shown_key_names,
        key_types=tuple(arrow_type(fields[name].dataType, name) for name in keys),
        kinds=None if query.kind is None else place[hidden("kind")],
        names=tuple(f"v{index}" for index in range(1 + len(keys) + len(shown))),
        zone=query.zone,
    )  # fmt: skip
