"""Plans a call of a process table function over DataFrames.

In batch, the plan is repartition, sort, mapInArrow. Streams with keys continue in `streams`.

The rows of a key are gathered and sorted: by ORDER BY, otherwise by their position in the input, which is the
partition and the position in it. Rows of several tables are merged by time, if they have one. At the end of the
input the watermark moves to the end of time, so that all timers fire.
"""

import dataclasses
import uuid
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from remote_udf.errors import InvalidCall
from remote_udf.functions import FunctionSpec
from remote_udf.process_calls import ProcessCall
from remote_udf.process_planning import output_fields, plan_process_call, require_uid
from remote_udf.result_columns import resolved
from remote_udf.row_kinds import RowKind
from remote_udf.table_arguments import ArgumentTrait
from spark_client.base.calls import ProcessTableCall
from spark_client.base.changelogs import kind_code, mode_metadata, require_no_fires
from spark_client.base.config import ClientConfig
from spark_client.base.errors import PlanError
from spark_client.base.identifiers import hidden, identifiers_of, quoted
from spark_client.base.options import buckets_of, call_options
from spark_client.base.types import spark_type
from spark_client.executor.process.plan import OutputSource, ProcessPlan
from spark_client.executor.process.processing import map_processed
from spark_client.planning.key_columns import normalized, require_sorting
from spark_client.planning.operators import apply_operator
from spark_client.planning.process.broadcast import broadcast_state
from spark_client.planning.process.inputs import ProcessInput, TableOptions, in_call, inputs_of, names_of
from spark_client.planning.process.normalising import normalised_inputs
from spark_client.planning.process.row_order import RowOrder, ordered_by_time
from spark_client.planning.process.streams import StateSettings, require_streams, with_state
from spark_client.planning.process.upstream import StreamUids, Upstream, is_watermarked, warn_of_times
from spark_client.windows.columns import zone_of

__all__ = ["plan_process"]


def plan_process(
    spark: SparkSession, config: ClientConfig, spec: FunctionSpec, tables: DataFrame | Mapping[str, DataFrame] | None,
    of_tables: TableOptions, *, scalars: Mapping[str, object], on_time: str | Sequence[str], uid: str | None,
    options: Mapping[str, object], uids: StreamUids,
) -> DataFrame:  # fmt: skip
    """Return the result. Raises PlanError if the call is invalid, InvalidOption or UnsupportedType."""
    inputs = inputs_of(spec, tables, of_tables)
    spec = in_call(spec, inputs, scalars)
    inputs = normalised_inputs(spec, inputs, of_tables.upsert_key)
    times = names_of(on_time, "on_time")
    try:
        name = require_uid(spec, uid)
        given = {name: each.given(name) for name, each in inputs.items()}
        process = ordered_by_time(spec, plan_process_call(spec, given, scalars, times, identifiers_of(spark).key))
    except InvalidCall as error:
        raise PlanError(str(error)) from None
    chosen, policy = call_options(spec, options, spark)
    call = ProcessTableCall(
        spec=spec, arguments=len(spec.parameters), options=chosen, operation_id=uuid.uuid4().hex, config=config,
        policy=policy, process=process,
    )  # fmt: skip
    assert spec.process is not None
    ordered = [inputs[argument.name] for argument in spec.process.tables]
    zones = filter(None, (zone_of(each.frame) for each in ordered if each.frame.isStreaming))
    state = StateSettings(name, buckets_of(spec, options, spark), next(zones, None))
    planner = _ProcessPlanner(spark, call, process, ordered, state)
    streams = [each.frame for each in ordered if each.frame.isStreaming]
    if not streams or not planner.by_key:
        return planner.plan()
    definition = (spec.key, process.to_proto().SerializeToString(), [id(each.frame) for each in ordered], dict(options))
    return uids.result(spec.key, streams, name, definition, planner.plan)


class _ProcessPlanner:
    def __init__(
        self, spark: SparkSession, call: ProcessTableCall, process: ProcessCall, inputs: Sequence[ProcessInput],
        state: StateSettings,
    ) -> None:  # fmt: skip
        self._spark = spark
        self._call = call
        self._process = process
        self._inputs = inputs
        self._state = state
        spec = resolved(call.spec, process)
        assert spec.process is not None
        self._result, self._signature = spec.result, spec.process
        self._main = [i for i, argument in enumerate(self._signature.tables) if not argument.is_broadcast]
        self._order = RowOrder(process, inputs, self._main)
        self._streaming = any(each.frame.isStreaming for each in inputs)
        self.by_key = any(argument.has_set_semantics for argument in self._signature.tables)
        keyed = next((process.tables[i] for i in self._main if self._signature.tables[i].has_set_semantics), None)
        self._key_names = [] if keyed is None else [keyed.schema.names[column] for column in keyed.partition_by]
        self._keys = [hidden(f"key_{index}") for index in range(len(self._key_names))]

    def plan(self) -> DataFrame:
        if self._streaming:
            require_streams(self._call, [(each.frame, i in self._main) for i, each in enumerate(self._inputs)])
            self._require_released_rows()
        if len(self._main) < len(self._inputs):
            broadcast = {i: each for i, each in enumerate(self._inputs) if i not in self._main}
            self._call = dataclasses.replace(self._call, process=broadcast_state(self._call, broadcast))
        base, plan = self._base(), self._plan()
        schema = self._schema(plan)
        if not self._streaming:
            return self._with_mode(apply_operator(base, map_processed, plan, schema), plan)
        frames, key = [each.frame for each in self._inputs], self._call.spec.key
        marks, uid = Upstream.of(self._process, self._signature, frames), self._state.uid if self.by_key else None
        warn_of_times(key, self._process, self._signature, frames)
        marks.require_distinct(key, uid)
        if self.by_key:
            for each in frames:
                require_no_fires(each, f"function {key}")
            result = with_state(base, plan, schema, marks, self._state)
        else:
            result = apply_operator(base, map_processed, plan, schema)
        return self._with_mode(marks.marked(result, plan, uid), plan)

    def _require_released_rows(self) -> None:
        """Raises PlanError unless the watermark will release the rows that ORDER BY holds on a stream."""
        for index in self._main:
            given, order = self._inputs[index], self._process.tables[index].order_by
            if not order:
                continue
            where = f"function {self._call.spec.key}, table {self._signature.tables[index].name!r}: on a stream "
            if order[0].nulls_last:
                raise PlanError(
                    f"{where}rows whose time is null come first: remove NULLS LAST from the first column of ORDER BY"
                )
            field = given.fields[order[0].column]
            what = (
                "the first column of ORDER BY" if given.order_by else "on_time, in whose order the function takes rows,"
            )
            if not is_watermarked(field):
                raise PlanError(
                    f"{where}{what} needs a watermark, which releases the rows in order, and {field.name!r} has none: "
                    f"call withWatermark({field.name!r}, ...), or order by the column with the watermark"
                )

    def _schema(self, plan: ProcessPlan) -> StructType:
        """The columns of the result. Passed columns keep their Spark type, because Arrow has no collations."""
        through = iter([
            field.dataType
            for argument, given in zip(self._signature.tables, self._inputs, strict=True)
            if argument.has(ArgumentTrait.PASS_COLUMNS_THROUGH)
            for field in given.fields
        ])  # fmt: skip
        types = [
            next(through) if source is OutputSource.THROUGH else spark_type(field.type)
            for (source, _), field in zip(plan.output, plan.schema, strict=True)
        ]
        return StructType([StructField(name, type_) for name, type_ in zip(plan.schema.names, types, strict=True)])

    def _with_mode(self, frame: DataFrame, plan: ProcessPlan) -> DataFrame:
        """The result; if it is a changelog, its metadata has the kinds of change."""
        mode = self._signature.changelog_mode
        if mode.is_insert_only:
            return frame
        keys = len(self._keys)
        key = [
            name for (source, _), name in zip(plan.output, plan.schema.names, strict=True) if source is OutputSource.KEY
        ][:keys]
        name = plan.schema.names[-1]
        column = F.col(quoted(name))
        metadata = {
            **frame.schema.fields[-1].metadata, **mode_metadata(mode, key if mode.is_upsert else ())
        }  # fmt: skip
        return frame.select(
            *(F.col(quoted(each)) for each in plan.schema.names[:-1]), column.alias(name, metadata=metadata)
        )

    def _base(self) -> DataFrame:
        """The rows of all tables, gathered and sorted by key."""
        if not self._inputs:
            # The single call needs a row.
            return self._spark.range(0, 1, 1, 1).toDF(hidden("call"))
        selected = [self._selected(index) for index in self._main]
        base = selected[0]
        for other in selected[1:]:
            base = base.unionAll(other)
        self._require_sorting(base)
        if not self.by_key or self._streaming:
            return base.select(*self._columns())
        placed = base.repartition(*self._keys) if self._keys else base.repartition(1)
        sorting = [F.col(key) for key in self._keys] + self._order.sorting()
        return placed.sortWithinPartitions(*sorting).select(*self._columns())

    def _require_sorting(self, base: DataFrame) -> None:
        """Raises PlanError for keys and orders whose type has no order; on a stream, Arrow sorts without collations."""
        where = f"function {self._call.spec.key}, "
        for key, name in zip(self._keys, self._key_names, strict=True):
            require_sorting(base.schema[key].dataType, f"{where}key {name!r}")
        for index in self._main:
            fields = self._inputs[index].fields
            for field in (fields[each.column] for each in self._process.tables[index].order_by):
                what = f"{where}ORDER BY column {field.name!r}"
                require_sorting(field.dataType, what, collated=not self._streaming)

    def _columns(self) -> list[str]:
        """The columns that the executor receives, in order."""
        columns = [*self._keys]
        if len(self._main) > 1:
            columns.append(hidden("table"))
        if self._process.has_row_kinds:
            columns.append(hidden("kind"))
        if self._process.on_time:
            columns.append(hidden("time"))
        return [*columns, *(hidden(f"row_{index}") for index in self._main)]

    def _selected(self, index: int) -> DataFrame:
        """A table with the columns that all tables of the union have."""
        given, table = self._inputs[index], self._process.tables[index]
        frame, names = given.frame, [quoted(name) for name in given.columns]
        columns: list[Column] = []
        types = [field.dataType for field in given.fields]
        for key, column in zip(self._keys, table.partition_by, strict=False):
            columns.append(normalized(F.col(names[column]), types[column]).alias(key))
        columns.append(F.lit(index).cast("tinyint").alias(hidden("table")))
        if self._process.has_row_kinds:
            mode = given.changelog_mode
            code = F.lit(0).cast("tinyint") if given.row_kind is None else kind_code(given.row_kind, mode)
            columns.append(code.alias(hidden("kind")))
        if self._process.on_time:
            columns.append(F.col(names[table.time_column]).alias(hidden("time")))
        if not self._streaming:
            columns += self._order.columns(index, names)
        for other in self._main:
            type_ = StructType([StructField(each.name, each.dataType) for each in self._inputs[other].fields])
            row = F.struct(*self._values(given, names)) if other == index else F.lit(None).cast(type_)
            columns.append(row.alias(hidden(f"row_{other}")))
        return frame.select(*columns)

    def _values(self, given: ProcessInput, names: Sequence[str]) -> list[Column]:
        """The columns of a row for the function. A -D has only its key, if the changelog mode says so."""
        if given.row_kind is None or not given.changelog_mode.key_only_deletes:
            return [F.col(name) for name in names]
        kept = kind_code(given.row_kind, given.changelog_mode) != RowKind.DELETE.code
        return [
            F.col(name) if column in given.delete_key else F.when(kept, F.col(name)).alias(column)
            for name, column in zip(names, given.columns, strict=True)
        ]

    def _plan(self) -> ProcessPlan:
        spec, columns = self._call.spec, self._columns() if self._inputs else []
        process = self._call.process
        assert process is not None
        place = {name: index for index, name in enumerate(columns)}
        fields = output_fields(spec, process, identifiers_of(self._spark).key)
        return ProcessPlan(
            call=self._call,
            keys=tuple(place[key] for key in self._keys),
            key_names=tuple(self._key_names),
            table=place.get(hidden("table")),
            row_kind=place.get(hidden("kind")),
            time=place.get(hidden("time")),
            rows=tuple(place.get(hidden(f"row_{index}"), -1) for index in range(len(self._inputs))),
            output=tuple(self._output()),
            schema=pa.schema(fields),
            by_key=self.by_key,
        )

    def _output(self) -> list[tuple[OutputSource, int]]:
        """The sources of the columns of the result, in order."""
        sources: list[tuple[OutputSource, int]] = []
        for argument, table in zip(self._signature.tables, self._process.tables, strict=True):
            if argument.has(ArgumentTrait.PASS_COLUMNS_THROUGH):
                sources += [(OutputSource.THROUGH, index) for index in range(len(table.schema))]
            elif argument.has_set_semantics:
                sources += [(OutputSource.KEY, index) for index in range(len(table.partition_by))]
        sources += [(OutputSource.VALUE, index) for index in range(self._result.num_fields)]
        if self._process.on_time:
            sources.append((OutputSource.TIME, 0))
        if not self._signature.changelog_mode.is_insert_only:
            sources.append((OutputSource.ROW_KIND, 0))
        return sources
