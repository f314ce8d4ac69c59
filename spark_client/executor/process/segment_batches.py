"""Rows of tables as segments of a process table function, and what came of them as rows of the result."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from remote_udf.process_calls import ADVANCE_TO, NOW, STATE, TABLE, TIME, TIMERS, WATERMARKS
from remote_udf.row_kinds import ROW_KIND
from remote_udf.segments import KEY, ROWS
from spark_client.executor.aggregate.keys import combined
from spark_client.executor.engine.groups import Completed
from spark_client.executor.process.output import OutputRows, cast
from spark_client.executor.process.plan import ProcessPlan

__all__ = ["Before", "Segments", "after", "empty_lists", "rows_of"]

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

    def output(self, completed: Completed) -> Iterator[pa.RecordBatch]:
        """The rows of the result of some segments, by segment, in the order they were emitted."""
        return self._output_rows.batches(completed)

    @functools.cached_property
    def _output_rows(self) -> OutputRows:
        column = self.plan.rows[0] if self.plan.rows else None
        through = None if column is None else combined(self.table.column(column))
        return OutputRows(self.plan, self.keys(), self.starts, through)


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


def after(processed: pa.StructArray) -> Before:
    """State and timers that segments leave, for the next ones of the same keys."""
    return Before(processed.field(STATE), processed.field(TIMERS))


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
