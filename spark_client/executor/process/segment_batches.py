"""Converts rows of tables to segments of a process table function, and their output to rows of the result."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from remote_udf.process_calls import ADVANCE_TO, NOW, STATE, TABLE, TIME, TIMERS, WATERMARKS
from remote_udf.row_kinds import ROW_KIND
from remote_udf.segments import KEY, ROWS
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.engine.policy import check_policy
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.process.output import OutputRows, cast
from spark_client.executor.process.plan import ProcessPlan
from spark_client.executor.stream.runtime import Runtime

__all__ = ["Before", "Segments", "after", "empty_lists", "key_structs", "rows_of", "segment_batch", "segment_engine"]


@dataclass(frozen=True)
class Before:
    """State and timers, each with one entry per segment; null for the first segment of a key."""

    state: pa.Array
    timers: pa.Array


@dataclass(frozen=True)
class Segments:
    """Rows divided into segments, which begin at `starts`. `advance_to` is the watermark after them, or None."""

    plan: ProcessPlan
    table: pa.Table
    starts: Integers
    now: int
    before: Before | None = None
    advance_to: int | None = None

    @property
    def count(self) -> int:
        return len(self.starts)

    def keys(self) -> list[pa.Array]:
        """The columns of the key, with a row per segment."""
        firsts = pa.array(self.starts)
        return [self.table.column(key).combine_chunks().take(firsts) for key in self.plan.keys]

    def batch(self) -> pa.RecordBatch:
        """The batch to send."""
        schema, count = self.plan.segments, self.count
        key = schema.field(KEY).type
        return segment_batch(
            self.plan,
            pa.nulls(count, key) if self.plan.process.broadcast else key_structs(self.keys(), key, count),
            rows_of(self.plan, self.table),
            self.starts,
            self.before or _nothing_before(schema, count),
            now=self.now,
            advance_to=self.advance_to,
            watermark=None,
        )

    def require_success(self, completed: Completed) -> None:
        """Raise FunctionFailed for the first segment that failed: missing rows might change all later results."""
        if errors := completed.errors[0]:
            check_policy(self.plan.call, errors, self.keys(), self.plan.key_names, completed.first)

    def output(self, completed: Completed) -> Iterator[pa.RecordBatch]:
        """The rows of the result of some segments, by segment, in the order in which they were emitted."""
        return self._output_rows.batches(completed)

    @functools.cached_property
    def _output_rows(self) -> OutputRows:
        column = self.plan.rows[0] if self.plan.rows else None
        through = None if column is None else self.table.column(column).combine_chunks()
        return OutputRows(self.plan, self.keys(), self.starts, through)


def segment_engine(plan: ProcessPlan, runtime: Runtime) -> RowEngine:
    """An engine for batches of segments, which returns a segment with its parts as soon as those before it are done."""
    planned = PlannedCall(plan.call, tuple(range(len(plan.segments))), names=tuple(plan.segments.names))
    return RowEngine([planned], runtime, ordered=True, merging=False, piecewise=True)


def segment_batch(
    plan: ProcessPlan, keys: pa.Array, rows: pa.StructArray, starts: Integers, before: Before, *,
    now: int, advance_to: int | None, watermark: int | None,
) -> pa.RecordBatch:  # fmt: skip
    """The columns of segments, with a row for each. Its rows begin at `starts`; see message.proto.

    `watermark` is that of all tables before these rows, `advance_to` the one after them.
    """
    schema, count = plan.segments, len(starts)
    offsets = pa.array(np.append(starts, len(rows)).astype(np.int32))
    parts = {
        KEY: keys, STATE: before.state, TIMERS: before.timers,
        ROWS: pa.ListArray.from_arrays(offsets, rows, type=schema.field(ROWS).type),
        WATERMARKS: pa.array([[watermark] * len(plan.process.tables)] * count, schema.field(WATERMARKS).type),
        ADVANCE_TO: pa.array([advance_to] * count, pa.int64()),
        NOW: pa.array(np.full(count, now)),
    }  # fmt: skip
    return pa.RecordBatch.from_arrays([parts[name] for name in schema.names], schema=schema)


def rows_of(plan: ProcessPlan, table: pa.Table) -> pa.StructArray:
    """The rows in the form of segments: a struct of the number of the table, kind, time, and a row per table."""
    type_ = plan.segments.field(ROWS).type.value_type
    parts: dict[str, pa.Array] = {}
    if plan.table is None:
        parts[TABLE] = pa.array(np.zeros(table.num_rows, np.int8))
    else:
        parts[TABLE] = table.column(plan.table).combine_chunks()
    if plan.row_kind is not None:
        parts[ROW_KIND] = table.column(plan.row_kind).combine_chunks()
    if plan.time is not None:
        parts[TIME] = table.column(plan.time).combine_chunks().cast(pa.int64())
    for index, column in enumerate(plan.rows):
        # Rows of broadcast tables are sent in other calls.
        missing = pa.nulls(table.num_rows, type_.field(str(index)).type)
        parts[str(index)] = missing if column < 0 else table.column(column).combine_chunks()
    fields = list(type_)
    return pa.StructArray.from_arrays([cast(parts[each.name], each.type) for each in fields], fields=fields)


def after(processed: pa.StructArray) -> Before:
    """State and timers after segments, for the next segments of the same keys."""
    return Before(processed.field(STATE), processed.field(TIMERS))


def _nothing_before(schema: pa.Schema, count: int) -> Before:
    return Before(pa.nulls(count, schema.field(STATE).type), empty_lists(count, schema.field(TIMERS).type))


def key_structs(columns: Sequence[pa.Array], type_: pa.DataType, count: int) -> pa.StructArray:
    """The keys of `count` segments or rows as structs of this type."""
    if not columns:
        return pa.array([{}] * count, type_)
    fields = list(type_)
    arrays = [cast(column, each.type) for column, each in zip(columns, fields, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields)


def empty_lists(count: int, type_: pa.DataType) -> pa.Array:
    """A list array of `count` empty lists."""
    offsets = pa.array(np.zeros(count + 1, np.int32))
    return pa.ListArray.from_arrays(offsets, pa.array([], type_.value_type), type=type_)
