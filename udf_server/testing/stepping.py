"""Converts one step of a process table function to the segment that a server would get."""

import pyarrow as pa

from remote_udf.functions import FunctionSpec
from remote_udf.process_calls import STATE, TIMERS, ProcessCall, segments_schema
from remote_udf.row_kinds import ROW_KIND, RowKind
from udf_server.base.values import Key, codec_for_type
from udf_server.testing.keeping import Kept

__all__ = ["Arrived", "segment_columns"]

Arrived = tuple[int, pa.StructArray, RowKind]
"""The number of a table, a row of it, and the kind of change."""


def segment_columns(
    spec: FunctionSpec, call: ProcessCall, kept: Kept, key: Key, arrived: Arrived | None, advance_to: int | None
) -> list[pa.Array]:
    """The columns of a segment of one row, or of none, with what is kept for its key."""
    schema = segments_schema(spec, call)
    types = {each.name: each.type for each in schema}
    key_parts = [codec_for_type(each.type).encode([v]) for each, v in zip(types["key"], key or (), strict=False)]
    if call.broadcast or not key_parts:
        key_column = pa.array([None if call.broadcast else {}], types["key"])
    else:
        key_column = pa.StructArray.from_arrays(key_parts, fields=list(types["key"]))
    before = kept.broadcast if call.broadcast else kept.states.get(key)
    rows = _row_column(call, arrived, types["rows"])
    return [
        key_column,
        pa.nulls(1, types[STATE]) if before is None else before,
        kept.timers.get(key, pa.array([[]], types[TIMERS])) if not call.broadcast else pa.array([[]], types[TIMERS]),
        rows,
        pa.array([kept.watermarks], types["watermarks"]),
        pa.array([advance_to], pa.int64()),
        pa.array([kept.now], pa.int64()),
    ]


def _row_column(call: ProcessCall, arrived: Arrived | None, type_: pa.DataType) -> pa.Array:
    if arrived is None:
        return pa.array([[]], type_)
    number, row, kind = arrived
    parts: dict[str, pa.Array] = {
        "table": pa.array([number], pa.int8()),
        ROW_KIND: pa.array([kind.code], pa.int8()),
    }
    column = call.tables[number].time_column
    parts["time"] = row.field(column).cast(pa.int64()) if column >= 0 else pa.nulls(1, pa.int64())
    fields = list(type_.value_type)
    arrays = [parts[each.name] if each.name in parts else pa.nulls(1, each.type) for each in fields]
    for index, each in enumerate(fields):
        if each.name == str(number):
            arrays[index] = row
    struct = pa.StructArray.from_arrays(arrays, fields=fields)
    return pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), struct, type=type_)
