"""Bundles applied one by one, and aggregates side by side: kinds `bundle_calls` and `combine`."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from remote_udf.functions import FunctionSpec
from remote_udf.row_kinds import CODE_TYPE, RowKind
from remote_udf.segments import ACCUMULATORS, KEY, ROWS, AppliedField, list_of
from spark_client import Window, connect
from spark_client.base.calls import AggregateCall
from spark_client.base.config import ClientConfig
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.opening import open_stream
from tests.conformance.cases import Case
from tests.conformance.compare import difference
from tests.conformance.environment import Environment
from tests.conformance.functions.parts import part_name
from tests.conformance.report import Result
from tests.conformance.values import same

__all__ = ["claims", "run"]

VALUES = (AppliedField.STARTING_VALUE, AppliedField.FINAL_VALUE)


def claims(case: Case) -> bool:
    """What the cases drive without a query."""
    return case.expected.kind in ("bundle_calls", "combine")


def run(case: Case, environment: Environment) -> Result:
    """Raises FunctionMissing."""
    return _bundle_calls(case, environment) if case.expected.kind == "bundle_calls" else _combine(case, environment)


def _bundle_calls(case: Case, environment: Environment) -> Result:
    """Every call through a stream to a server, its segments compared one by one."""
    (chosen,) = environment.choose(case)
    for number, call in enumerate(case.expected.raw["calls"]):
        found = _applied(chosen.spec, chosen.server.target, call["segments"])
        wanted = call["results"]
        if len(found) != len(wanted):
            return Result.failed(f"call {number}: {len(wanted)} results expected, found {len(found)}")
        for place, (expected, actual) in enumerate(zip(wanted, found, strict=True)):
            for field, value in expected.items():
                if not same(value, actual.get(field)):
                    return Result.failed(f"call {number}, segment {place}: {field} {value}, found {actual.get(field)}")
    return Result.passed()


def _applied(spec: FunctionSpec, target: str, segments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What the server makes of segments, as cases write it: rows as lists, a value as a row of one."""
    assert spec.accumulator is not None
    config = ClientConfig(target, 10.0)
    each_row = any(segment.get("updated_values_after_each_row") for segment in segments)
    applied = tuple(field for field in AppliedField if each_row or field is not AppliedField.UPDATED_VALUES)
    call = AggregateCall(spec, len(spec.parameters), {}, uuid.uuid4().hex, config, applied=applied)
    batch = _batch(spec, segments)
    engine = RowEngine([PlannedCall(call, (0, 1, 2), names=(KEY, ACCUMULATORS, ROWS))], open_stream, ordered=True)
    try:
        completed = engine.exchange(batch)
    finally:
        engine.close()
    if completed.errors[0]:
        raise RuntimeError(f"segments failed: {completed.errors[0]}")
    results = []
    for segment, value in zip(segments, completed.values[0].to_pylist(), strict=True):
        values = (value.get(AppliedField.UPDATED_VALUES) or []) if segment.get(AppliedField.UPDATED_VALUES) else []
        accumulator = value[AppliedField.ACCUMULATOR]
        results.append(
            {
                AppliedField.ACCUMULATOR: list(accumulator.values())
                if isinstance(accumulator, dict)
                else [accumulator],
                **{field: [value[field]] for field in VALUES},
                AppliedField.UPDATED_VALUES: [[each] for each in values],
            }
        )
    return results


def _batch(spec: FunctionSpec, segments: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
    assert spec.accumulator is not None
    arguments = [pa.field(str(place), parameter.type) for place, parameter in enumerate(spec.parameters)]
    rows = pa.struct([pa.field("row_kind", CODE_TYPE), *arguments])
    held = [
        [_accumulator(spec.accumulator, each) for each in segment.get("accumulators") or ()] for segment in segments
    ]
    keys = [list(segment.get("key") or ()) for segment in segments]
    names = [f"k{place}" for place in range(max(map(len, keys), default=0))]
    columns = {
        KEY: pa.array([dict(zip(names, key, strict=True)) for key in keys]),
        ACCUMULATORS: pa.array(held, list_of(spec.accumulator)),
        ROWS: pa.array([[_row(row) for row in segment.get("rows") or ()] for segment in segments], list_of(rows)),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _accumulator(type_: pa.DataType, values: Any) -> Any:
    if pa.types.is_struct(type_):
        return dict(zip([field.name for field in type_], values, strict=True))
    return values[0] if isinstance(values, list) else values


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    kind = RowKind(row.get("row_kind") or row.get("kind") or "+I")
    return {"row_kind": kind.code, **{str(place): value for place, value in enumerate(row["row"])}}


def _combine(case: Case, environment: Environment) -> Result:
    """The parts as aggregates of one query, their values joined by it: at the end, and after each row."""
    parts = sorted(case.expected.raw["parts"], key=lambda part: part["index"])
    combined = case.expected.raw["combined"]
    spark = environment.spark
    remote = connect(spark, environment.servers.built().target)
    functions = [remote.function(part_name(case.id, part["index"])) for part in parts]
    rows = len(combined["updated_values_after_each_row"])
    frame = spark.range(rows).coalesce(1)
    final = remote.group_by(frame).agg(*(f("id").alias(f"p{i}") for i, f in enumerate(functions))).collect()
    found = difference([combined["final_value"]], [tuple(row) for row in final], ordered=True)
    if found is not None:
        return Result.failed(f"final values: {found}")
    empty = remote.group_by(frame.where("false")).agg(*(f("id").alias(f"p{i}") for i, f in enumerate(functions)))
    found = difference([combined["starting_value"]], [tuple(row) for row in empty.collect()], ordered=True)
    if found is not None:
        return Result.failed(f"starting values: {found}")
    window = Window.orderBy("id").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    names = [f"p{i}" for i in range(len(functions))]
    running = remote.with_columns(frame, {n: f("id").over(window) for n, f in zip(names, functions, strict=True)})
    after = [tuple(row) for row in running.orderBy("id").select(*names).collect()]
    found = difference(combined["updated_values_after_each_row"], after, ordered=True)
    if found is not None:
        return Result.failed(f"values after each row: {found}")
    return Result.passed("values joined by queries; how accumulators lie beside each other is Flink's own affair")
