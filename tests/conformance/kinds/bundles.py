"""Bundles applied separately, and several aggregates in one query: kinds `bundle_calls` and `combine`."""

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
from spark_client.executor.stream.runtime import RUNTIME
from tests.conformance.binding import Bound
from tests.conformance.cases import Case
from tests.conformance.environment import Environment
from tests.conformance.functions.parts import part_name
from tests.conformance.functions.plugin import CASES_VARIABLE
from tests.conformance.functions.sample import PLUGIN
from tests.conformance.observation import Observation

__all__ = ["claims", "observe"]

VALUES = (AppliedField.STARTING_VALUE, AppliedField.FINAL_VALUE)
INCLUDED = "include_value"


def claims(case: Case) -> bool:
    """Whether the case runs without a query."""
    return case.kind in ("bundle_calls", "combine")


def observe(case: Case, environment: Environment, bound: Sequence[Bound]) -> Observation:
    """Returns values by the fields in which the case expects them."""
    seen = environment.observation(case, bound)
    if case.kind == "combine":
        seen.found["expected.combined"] = _combined(case, environment)
        return seen
    (chosen,) = bound
    assert chosen.spec is not None
    target = environment.server(case, bound).target
    seen.found["expected.calls"] = [
        {"results": _applied(chosen.spec, target, _asked(case.expected, call))} for call in case.expected["calls"]
    ]
    return seen


def _asked(expected: Mapping[str, Any], call: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the segments, each of which says whether its values are asked for, as it may or its call."""
    asked = call.get(INCLUDED, expected.get(INCLUDED, True))
    return [{INCLUDED: asked, **segment} for segment in call["segments"]]


def _applied(spec: FunctionSpec, target: str, segments: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns the server's answer to segments as cases write it: rows as lists, a value as a row of one."""
    assert spec.accumulator is not None
    config = ClientConfig(target, 10.0)
    each_row = any(segment.get(AppliedField.UPDATED_VALUES) and segment[INCLUDED] for segment in segments)
    valued = any(segment[INCLUDED] for segment in segments)
    fields = {AppliedField.ACCUMULATOR, *(VALUES if valued else ()), *((AppliedField.UPDATED_VALUES,) * each_row)}
    applied = tuple(field for field in AppliedField if field in fields)
    call = AggregateCall(spec, len(spec.parameters), {}, uuid.uuid4().hex, config, applied=applied)
    batch = _batch(spec, segments)
    engine = RowEngine([PlannedCall(call, (0, 1, 2), names=(KEY, ACCUMULATORS, ROWS))], RUNTIME, ordered=True)
    try:
        completed = engine.exchange(batch)
    finally:
        engine.close()
    if completed.errors[0]:
        raise RuntimeError(f"segments failed: {completed.errors[0]}")
    results = []
    for segment, value in zip(segments, completed.values[0].to_pylist(), strict=True):
        values = value.get(AppliedField.UPDATED_VALUES) or []
        values = values if segment.get(AppliedField.UPDATED_VALUES) and segment[INCLUDED] else []
        accumulator = value[AppliedField.ACCUMULATOR]
        results.append(
            {
                str(AppliedField.ACCUMULATOR): list(accumulator.values())
                if isinstance(accumulator, dict)
                else [accumulator],
                **{str(field): [value[field]] if segment[INCLUDED] else None for field in VALUES},
                str(AppliedField.UPDATED_VALUES): [[each] for each in values],
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


def _combined(case: Case, environment: Environment) -> dict[str, Any]:
    """Runs aggregates with the values of the parts in one query: values at the start, at the end, after each row.

    The layout of combined accumulators cannot be observed from outside.
    """
    parts = sorted(case.expected["parts"], key=lambda part: part["index"])
    settings = {CASES_VARIABLE: str(environment.folder.resolve())}
    target = environment.servers.server(PLUGIN, settings, None).target
    whole = len(case.expected["combined"]["final_value"]) == len(parts)
    shown = [place for place, part in enumerate(parts) if whole or part.get(INCLUDED, True)]
    remote = connect(environment.spark, target)
    functions = [remote.function(part_name(case.id, part["index"])) for part in parts]
    names = [f"p{place}" for place in range(len(functions))]
    rows = len(case.expected["combined"]["updated_values_after_each_row"])
    frame = environment.spark.range(rows).coalesce(1)
    calls = {name: function("id") for name, function in zip(names, functions, strict=True)}
    final = remote.group_by(frame).agg(*(call.alias(name) for name, call in calls.items())).collect()
    empty = remote.group_by(frame.where("false")).agg(*(call.alias(name) for name, call in calls.items())).collect()
    window = Window.orderBy("id").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    running = remote.with_columns(frame, {name: call.over(window) for name, call in calls.items()})
    after = running.orderBy("id").select(*names).collect()
    found = {"starting_value": empty[0], "final_value": final[0]}
    return {
        **{name: [row[place] for place in shown] for name, row in found.items()},
        "updated_values_after_each_row": [[row[place] for place in shown] for row in after],
    }
