"""Rows of tables as segments of a process table function, and what came of them as rows of the result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.process_calls import ADVANCE_TO, NOW, OUTPUT, STATE, TABLE, TIME, TIMERS, VALUE_OF_ROW, WATERMARKS
from remote_udf.row_kinds import ROW_KIND, RowKind
from remote_udf.segments import KEY, ROWS
from spark_client.executor.aggregates.keys import combined
from spark_client.executor.tables.plan import OutputSource, ProcessPlan

__all__ = ["Before", "Segments", "after", "cast", "empty_lists", "output_rows", "rows_of"]

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Before:
    """State and timers of segments, one each; None for segments that are the first of their key."""

    state: pa.Array
    timers: pa.Array


@dataclass(frozen=True)
class Segments:
    """Rows cut into segments, which begin at `starts`. `advance_to` is the watermark after them, if one comes."""

    plan: ProcessPlan
    table: pa.Table
    starts: Integers
    now: int
    before: Before | None = None
    advance_to: int | None = None
    watermarks: list[int | None] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.starts)

    def keys(self) -> list[pa.Array]:
        """The columns of the key, with a row per segment."""
        firsts = pa.array(self.starts)
        return [combined(self.table.column(key)).take(firsts) for key in self.plan.keys]

    def batch(self) -> pa.RecordBatch:
        """What is sent."""
        schema, count = self.plan.segments, self.count
        parts: dict[str, pa.Array] = {
            KEY: pa.nulls(count, schema.field(KEY).type) if self.plan.process.broadcast else self._key(schema, count),
            ROWS: self._rows(schema.field(ROWS).type),
            ADVANCE_TO: pa.array([self.advance_to] * count, pa.int64()),
            NOW: pa.array(np.full(count, self.now)),
            WATERMARKS: pa.array([self.watermarks] * count, schema.field(WATERMARKS).type),
        }
        if self.before is None:
            parts[STATE] = pa.nulls(count, schema.field(STATE).type)
            parts[TIMERS] = empty_lists(count, schema.field(TIMERS).type)
        else:
            parts[STATE], parts[TIMERS] = self.before.state, self.before.timers
        return pa.RecordBatch.from_arrays([parts[name] for name in schema.names], schema=schema)

    def _key(self, schema: pa.Schema, count: int) -> pa.Array:
        return _struct(self.keys(), schema.field(KEY).type, count)

    def _rows(self, type_: pa.DataType) -> pa.Array:
        offsets = np.append(self.starts, self.table.num_rows).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), rows_of(self.plan, self.table), type=type_)

    def output(self, processed: pa.StructArray) -> pa.RecordBatch:
        """The rows of the result, by segment, in the order they were emitted."""
        column = self.plan.rows[0] if self.plan.rows else None
        return output_rows(
            self.plan, processed, self.keys(), self.starts,
            lambda: combined(self.table.column(column)),
        )  # fmt: skip


def rows_of(plan: ProcessPlan, table: pa.Table) -> pa.StructArray:
    """The rows of an input as segments have them: a struct of the table's number, kind, time and a row per table."""
    type_ = plan.segments.field(ROWS).type.value_type
    parts: dict[str, pa.Array] = {}
    if plan.table is None:
        parts[TABLE] = pa.array(np.zeros(table.num_rows, np.int8))
    else:
        parts[TABLE] = combined(table.column(plan.table))
    if plan.row_kind is not None:
        parts[ROW_KIND] = combined(table.column(plan.row_kind))
    if plan.time is not None:
        parts[TIME] = combined(table.column(plan.time)).cast(pa.int64())
    for index, column in enumerate(plan.rows):
        # Rows of broadcast tables do not come this way.
        missing = pa.nulls(table.num_rows, type_.field(str(index)).type)
        parts[str(index)] = missing if column < 0 else combined(table.column(column))
    fields = list(type_)
    return pa.StructArray.from_arrays([cast(parts[each.name], each.type) for each in fields], fields=fields)


def output_rows(
    plan: ProcessPlan, processed: pa.StructArray, keys: Sequence[pa.Array], starts: Integers,
    through: Callable[[], pa.StructArray],
) -> pa.RecordBatch:  # fmt: skip
    """What segments emitted, as rows of the result, by segment. `keys` has a value per segment.

    `through` gives the rows of the table whose columns are passed through; a segment's begin at `starts`.
    """
    lists = _part(processed, OUTPUT)
    lengths = np.diff(lists.offsets.to_numpy())
    flat = lists.flatten()
    segment = np.repeat(np.arange(len(processed)), lengths)
    values = _part(flat, VALUE_OF_ROW).flatten()
    rows: list[pa.Array] | None = None
    columns = []
    for (source, which), target in zip(plan.output, plan.schema, strict=True):
        match source:
            case OutputSource.KEY:
                column = keys[which].take(pa.array(segment))
            case OutputSource.THROUGH:
                if rows is None:
                    origins = pa.array(starts[segment] + _part(flat, "row").to_numpy(zero_copy_only=False))
                    rows = [each.take(origins) for each in through().flatten()]
                column = rows[which]
            case OutputSource.VALUE:
                column = values[which]
            case OutputSource.TIME:
                column = _part(flat, TIME)
            case OutputSource.ROW_KIND:
                column = _KIND_NAMES.take(_part(flat, ROW_KIND))
        columns.append(cast(column, target.type))
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(flat), pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=plan.schema)


_KIND_NAMES = pa.array([kind.value for kind in RowKind])


def after(processed: pa.StructArray) -> Before:
    """State and timers that segments leave, for the next ones of the same keys."""
    return Before(_part(processed, STATE), _part(processed, TIMERS))


def _part(struct: pa.StructArray, name: str) -> Any:
    return struct.field(name)


def _struct(columns: list[pa.Array], type_: pa.DataType, count: int) -> pa.Array:
    if not columns:
        return pa.array([{}] * count, type_)
    fields = list(type_)
    arrays = [cast(column, each.type) for column, each in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def empty_lists(count: int, type_: pa.DataType) -> pa.Array:
    """So many empty lists."""
    offsets = pa.array(np.zeros(count + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], type_.value_type), type=type_)


def cast(column: pa.Array, type_: pa.DataType) -> pa.Array:
    """The column in this type, which differs in time zone, names of elements and nullability at most, or widens."""
    if column.type.equals(type_):
        return column
    if pa.types.is_struct(type_) and pa.types.is_struct(column.type):
        # By position: the columns of typed rows have names of their own.
        children = [cast(column.field(index), each.type) for index, each in enumerate(type_)]
        mask = column.is_null() if column.null_count else None
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=mask) if children else column.cast(type_)
    return column.cast(type_)
