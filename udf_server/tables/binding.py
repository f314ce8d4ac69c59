"""Binding: a process table function as a vectorized function over segments, for one stream.

Everything vectorized functions have is so had by segments: deadlines, retries, and a segment that fails
found by halving.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.functions import NullCall
from remote_udf.process_calls import STATE, TIMERS, ProcessCall, processed_type, segments_schema
from remote_udf.types import spelled
from udf_server.functions import Function
from udf_server.metrics import ProcessMetrics
from udf_server.tables.context import CallFacts
from udf_server.tables.declaration import ProcessTable
from udf_server.tables.engine import Engine, Processed, Segment
from udf_server.tables.reading import SegmentReader
from udf_server.tables.writing import processed_array
from udf_server.values import codec_for_type

__all__ = ["TableBinding", "bind_table", "checked_process_segments"]

ASYNC_SEGMENTS = 256
"""Segments of an async function under way at once in a bundle."""


def checked_process_segments(function: ProcessTable, call: ProcessCall, schema: pa.Schema) -> list[pa.DataType]:
    """The type of each column of the segments. Raises StreamError for columns that are not those of this call."""
    wanted = segments_schema(function.spec, call)
    if schema.names != wanted.names or any(
        not field.type.equals(target.type) for field, target in zip(schema, wanted, strict=True)
    ):
        raise StreamError(
            ErrorKind.PROTOCOL, ErrorCode.ARGUMENT_TYPE,
            f"function {function.spec.key}: segments are {spelled(pa.struct(list(schema)))}, expected "
            f"{spelled(pa.struct(list(wanted)))}",
        )  # fmt: skip
    return list(wanted.types)


def bind_table(function: ProcessTable, call: ProcessCall, metrics: ProcessMetrics) -> Function:
    """The function that takes the columns of segments of this call. Raises ValueError for scalars it cannot read."""
    function = function.in_call(call)
    binding = TableBinding(function, call, metrics)
    result = processed_type(function.spec, broadcast=call.broadcast)
    bound = Function(
        spec=replace(function.spec, result=result, nulls=NullCall.CALL),
        call=binding.call_async if function.is_async else binding.call,
        parameters=[[codec_for_type(field.type)] for field in segments_schema(function.spec, call)],
        result=codec_for_type(result),
        context_parameter=None,
        origin=function.origin,
        is_async=function.is_async,
    )
    bound.opens, bound.closes = function.opens, function.closes
    return bound


class TableBinding:
    """Segments in columns to what they give, in a struct array."""

    def __init__(self, function: ProcessTable, call: ProcessCall, metrics: ProcessMetrics | None = None) -> None:
        self._function = function
        self._metrics = metrics
        self._names = segments_schema(function.spec, call).names
        self._call = call
        facts = CallFacts(function.spec, call, tuple(entry.name for entry in function.states))
        self._engine = Engine(function, facts, _scalars(function, call), _broadcast_state(function, call))
        self._reader = SegmentReader(function, call)

    def call(self, *columns: pa.Array) -> pa.Array:
        run, segments = self._engine.run, self._reader.read(columns)
        return self._encoded(columns, segments, [run(segment) for segment in segments])

    async def call_stepwise(self, columns: Sequence[pa.Array], most_timers: int) -> pa.Array:
        """For tests of authors: fires so many timers of each segment at most."""
        segments = self._reader.read(columns)
        for segment in segments:
            segment.most_timers = most_timers
        return self._encoded(columns, segments, [await self._engine.run_async(segment) for segment in segments])

    async def call_async(self, *columns: pa.Array) -> pa.Array:
        segments, turns = self._reader.read(columns), asyncio.Semaphore(ASYNC_SEGMENTS)

        async def run(segment: Segment) -> Processed:
            async with turns:
                return await self._engine.run_async(segment)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(run(segment)) for segment in segments]
        return self._encoded(columns, segments, [task.result() for task in tasks])

    def _encoded(
        self, columns: Sequence[pa.Array], segments: Sequence[Segment], processed: Sequence[Processed]
    ) -> pa.Array:
        result = processed_array(self._function, processed, broadcast=self._call.broadcast)
        if self._metrics is not None:
            given = dict(zip(self._names, columns, strict=True))
            self._metrics.processed(
                segments=len(segments),
                rows=sum(len(segment.rows) for segment in segments),
                emitted=sum(len(each.output) for each in processed),
                fired=sum(each.fired for each in processed),
                state_in=given[STATE].nbytes + given[TIMERS].nbytes,
                state_out=result.field(STATE).nbytes + result.field(TIMERS).nbytes,
            )
        return result


def _scalars(function: ProcessTable, call: ProcessCall) -> list[Any]:
    """A value per scalar argument: what was sent, or the declared default."""
    values = []
    for argument in function.arguments:
        if argument.table is not None:
            continue
        if argument.name in call.scalars.schema.names:
            assert argument.codec is not None
            column = call.scalars.column(argument.name)
            values.append(
                argument.codec.decode(column if column.type == argument.type else column.cast(argument.type))[0]
            )
        else:
            values.append(argument.default)
    return values


def _broadcast_state(function: ProcessTable, call: ProcessCall) -> list[Any] | None:
    if call.broadcast_state is None or call.broadcast:
        return None
    entries = [entry for entry in function.states if entry.broadcast]
    return [entry.codec.decode(call.broadcast_state.column(entry.name))[0] for entry in entries]
