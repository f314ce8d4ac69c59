"""Segments of one key in a harness: their columns, their results, and the rows that they emit."""

import asyncio
import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from remote_udf.functions import FunctionSpec
from remote_udf.process_calls import STATE, TIMERS, ProcessCall, segments_schema
from remote_udf.row_kinds import ROW_KIND, RowKind
from remote_udf.table_arguments import ArgumentTrait
from udf_server.process.base import Row, row_class
from udf_server.process.binding import ProcessBinding
from udf_server.process.declaration import ProcessFunction
from udf_server.testing.steps import Arrived, Kept
from udf_server.values.values import Key, codec_for_type

__all__ = ["SegmentSteps"]


class SegmentSteps:
    """Processes the segments of one call."""

    def __init__(self, spec: FunctionSpec, call: ProcessCall, fields: Sequence[pa.Field]) -> None:
        """`fields` are the columns of the call's result."""
        assert spec.process is not None
        self._spec, self._call, self._fields, self._signature = spec, call, fields, spec.process
        keyed = any(each.has_set_semantics for each in spec.process.tables)
        self.has_state = keyed and not spec.process.passes_columns_through
        """Whether the rows of a key depend on each other, and timers may be set."""

    def run(
        self, function: ProcessFunction, kept: Kept, key: Key, rows: Sequence[Arrived], advance_to: int | None,
        most_timers: int, *, broadcast: bool = False,
    ) -> dict[str, pa.Array]:  # fmt: skip
        """Process one segment, and return the columns of its result by name."""
        state = None if kept.broadcast is None else pa.RecordBatch.from_struct_array(kept.broadcast)
        call = dataclasses.replace(self._call, broadcast=broadcast, broadcast_state=state)
        columns = segment_columns(function.spec, call, kept, key, rows, advance_to)
        result = asyncio.run(ProcessBinding(function, call).call_stepwise(columns, most_timers))
        return dict(zip([each.name for each in result.type], result.flatten(), strict=True))

    def emitted(self, key: Key, arrived: Sequence[Arrived], output: pa.ListArray) -> list[Row]:
        """The rows of a result, with the columns of the call's result. `arrived` has the rows of the segment."""
        names = tuple(each.name for each in self._fields)
        flat = output.values
        values = [codec_for_type(each.type).decode(part) for each, part in zip(
            self._spec.result, flat.field("value").flatten(), strict=True)]  # fmt: skip
        times, kinds = flat.field("time").to_pylist(), flat.field(ROW_KIND).to_pylist()
        rows = []
        for index in range(len(flat)):
            row = [*self._prefix(key, arrived), *(column[index] for column in values)]
            if self._call.on_time:
                row.append(_time_value(times[index], self._fields[-1].type))
            rows.append(row_class(names, RowKind.of(kinds[index] or 0)).of(row))
        return rows

    def _prefix(self, key: Key, arrived: Sequence[Arrived]) -> list[Any]:
        prefix: list[Any] = []
        for argument in self._signature.tables:
            if argument.has(ArgumentTrait.PASS_COLUMNS_THROUGH):
                prefix += [codec_for_type(part.type).decode(part)[0] for part in arrived[0][1].flatten()]
            elif argument.has_set_semantics:
                prefix += key
        return prefix


def segment_columns(
    spec: FunctionSpec, call: ProcessCall, kept: Kept, key: Key, arrived: Sequence[Arrived], advance_to: int | None
) -> list[pa.Array]:
    """The columns of a segment of these rows, with what is kept for their key."""
    schema = segments_schema(spec, call)
    types = {each.name: each.type for each in schema}
    key_parts = [codec_for_type(each.type).encode([v]) for each, v in zip(types["key"], key or (), strict=False)]
    if call.broadcast or not key_parts:
        key_column = pa.array([None if call.broadcast else {}], types["key"])
    else:
        key_column = pa.StructArray.from_arrays(key_parts, fields=list(types["key"]))
    before, no_timers = kept.broadcast if call.broadcast else kept.states.get(key), pa.array([[]], types[TIMERS])
    return [
        key_column,
        pa.nulls(1, types[STATE]) if before is None else before,
        no_timers if call.broadcast else kept.timers.get(key, no_timers),
        _row_column(call, arrived, types["rows"]),
        pa.array([kept.watermarks], types["watermarks"]),
        pa.array([advance_to], pa.int64()),
        pa.array([kept.now], pa.int64()),
    ]


def _row_column(call: ProcessCall, arrived: Sequence[Arrived], type_: pa.DataType) -> pa.Array:
    if not arrived:
        return pa.array([[]], type_)
    fields = list(type_.value_type)
    parts: dict[str, pa.Array] = {
        "table": pa.array([number for number, _, _ in arrived], pa.int8()),
        ROW_KIND: pa.array([kind.code for _, _, kind in arrived], pa.int8()),
        "time": pa.concat_arrays([_time(call, number, row) for number, row, _ in arrived]),
    }
    for each in fields:
        if each.name not in parts:
            nothing = pa.nulls(1, each.type)
            rows = [row if each.name == str(number) else nothing for number, row, _ in arrived]
            parts[each.name] = pa.concat_arrays(rows)
    struct = pa.StructArray.from_arrays([parts[each.name] for each in fields], fields=fields)
    return pa.ListArray.from_arrays(pa.array([0, len(arrived)], pa.int32()), struct, type=type_)


def _time(call: ProcessCall, number: int, row: pa.StructArray) -> pa.Array:
    column = call.tables[number].time_column
    return row.field(column).cast(pa.int64()) if column >= 0 else pa.nulls(1, pa.int64())


def _time_value(time: int | None, type_: pa.DataType) -> int | datetime.datetime | None:
    """Convert a time to a datetime, or return its microseconds if Python has no datetime for it."""
    try:
        return codec_for_type(type_).decode(pa.array([time], type_))[0]
    except OverflowError:
        return time
