"""Binding: turns a process table function into a vectorized function over segments, for one stream.

Segments therefore get everything that vectorized functions have: deadlines, retries, and isolation of a failing
segment by halving.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.functions import NullCall
from remote_udf.process_calls import STATE, TIMERS, ProcessCall, segments_schema
from remote_udf.segments import ROWS
from remote_udf.types import spelled
from udf_server.base.extra_metrics import ProcessMetrics
from udf_server.declaring.functions import Function, place_of
from udf_server.process.columns import SegmentReader, SegmentWriter
from udf_server.process.context import CallFacts
from udf_server.process.declaration import ProcessFunction
from udf_server.process.engine import Emitted, Engine, Flush, Processed, Segment
from udf_server.runners.work import Emission
from udf_server.values.values import codec_for_type

__all__ = ["ProcessBinding", "bind_process", "checked_process_segments"]

ASYNC_SEGMENTS = 256
"""The maximum number of segments of an async function that are in flight in a bundle."""
PART_SHARE = 16
"""The divisor of the part size for async functions, which have many segments in flight at once."""
HELD_BYTES = 16 << 20


def checked_process_segments(function: ProcessFunction, call: ProcessCall, schema: pa.Schema) -> list[pa.DataType]:
    """Return the type of each column of the segments. Raises StreamError for columns of another call."""
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


def bind_process(function: ProcessFunction, call: ProcessCall, metrics: ProcessMetrics) -> Function:
    """The function over the columns of this call's segments. Raises ValueError for scalars that it cannot read."""
    function = function.in_call(call)
    binding = ProcessBinding(function, call, metrics)
    bound = Function(
        spec=replace(function.spec, result=binding.writer.type, nulls=NullCall.CALL),
        call=binding.call_async if function.is_async else binding.call,
        parameters=[[codec_for_type(field.type)] for field in segments_schema(function.spec, call)],
        result=codec_for_type(binding.writer.type),
        context_parameter=None,
        origin=function.origin,
        is_async=function.is_async,
        emits=True,
        places=binding.place,
    )
    bound.opens, bound.closes = function.opens, function.closes
    return bound


class ProcessBinding:
    """Processes segments, given as columns, and returns the results as a struct array."""

    def __init__(self, function: ProcessFunction, call: ProcessCall, metrics: ProcessMetrics | None = None) -> None:
        self.function = function
        self.metrics = metrics
        self.names = segments_schema(function.spec, call).names
        facts = CallFacts(function.spec, call, tuple(entry.name for entry in function.states))
        self._engine = Engine(function, facts, _scalars(function, call), _broadcast_state(function, call))
        self.reader, self.writer = SegmentReader(function, call), SegmentWriter(function, call)

    def place(self, position: int, path: Sequence[str]) -> str:
        """What messages call a field of a segment."""
        column, signature = self.names[position], self.function.spec.process
        if column == ROWS and path:
            assert signature is not None
            return place_of(f"table {signature.tables[int(path[0])].name!r}", path[1:])
        return place_of(column, path)

    def call(self, emission: Emission | None, *columns: pa.Array) -> pa.Array:
        run, results = self._engine.run, _CallResults(self, emission, columns)
        for index, segment in enumerate(results.segments):
            if results.add(run(segment, results.flush(index))):
                results.wait()
        return results.rest()

    async def call_stepwise(self, columns: Sequence[pa.Array], most_timers: int) -> pa.Array:
        """For tests of authors: fires at most this many timers of each segment."""
        results = _CallResults(self, None, columns)
        for segment in results.segments:
            segment.most_timers = most_timers
            results.add(await self._engine.run_async(segment))
        return results.rest()

    async def call_async(self, emission: Emission | None, *columns: pa.Array) -> pa.Array:
        results = _CallResults(self, emission, columns)
        turns = _SegmentTurns()

        async def run(index: int, segment: Segment) -> Processed:
            await turns.begin()
            size = 0
            try:
                processed = await self._engine.run_async(segment, results.flush(index, share=PART_SHARE))
                size = processed.size
                return processed
            finally:
                turns.end(size)

        try:
            async with asyncio.TaskGroup() as group:
                # A task and its result are released once the result was added.
                tasks = deque(group.create_task(run(index, segment)) for index, segment in enumerate(results.segments))
                while tasks:
                    await asyncio.wait([tasks[0]])
                    processed = tasks.popleft().result()
                    # Outcomes are sent in the order of segments.
                    turns.taken(processed.size)
                    if results.add(processed):
                        await results.available()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return results.rest()


class _CallResults:
    """The results of the segments of one call, in order. They are sent early if they are large, or else at the end."""

    def __init__(self, binding: ProcessBinding, emission: Emission | None, columns: Sequence[pa.Array]) -> None:
        self.segments = binding.reader.read(columns)
        self._binding = binding
        self._emission = emission
        self._rows = [len(segment.rows) for segment in self.segments]
        named = dict(zip(binding.names, columns, strict=True))
        self._state_in = named[STATE].nbytes + named[TIMERS].nbytes
        self._pending: list[Processed] = []
        self._size = 0
        self._added = 0

    def flush(self, index: int, *, share: int = 1) -> Flush | None:
        """The receiver of rows that a segment emits before it ends. `share` divides the size of the parts."""
        emission, writer = self._emission, self._binding.writer
        if emission is None:
            return None

        def rows(emitted: list[Emitted]) -> None:
            emission.part(index, writer.rows(emitted), writer.part)

        return Flush(emission.part_bytes // share, rows, emission.wait, emission.available)

    def add(self, processed: Processed) -> bool:
        """Add the result of the next segment. Return whether outcomes were sent; then the caller must wait for room."""
        self._pending.append(processed)
        self._size += processed.size
        if self._emission is None or self._size < self._emission.part_bytes:
            return False
        self._emission.settle(self.rest())
        return True

    def wait(self) -> None:
        assert self._emission is not None
        self._emission.wait()

    async def available(self) -> None:
        assert self._emission is not None
        await self._emission.available()

    def rest(self) -> pa.Array:
        """The results that were added and not sent."""
        pending, self._pending, self._size = self._pending, [], 0
        result, metrics = self._binding.writer.results(pending), self._binding.metrics
        if metrics is not None and pending:
            first, self._added = self._added, self._added + len(pending)
            state_in, self._state_in = self._state_in, 0
            metrics.processed(
                segments=len(pending), rows=sum(self._rows[first : self._added]),
                emitted=sum(each.emitted for each in pending), fired=sum(each.fired for each in pending),
                state_in=state_in, state_out=result.field(STATE).nbytes + result.field(TIMERS).nbytes,
            )  # fmt: skip
        return result


class _SegmentTurns:
    """Limits the segments of an async function that are in flight, and the results that wait for an earlier segment."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(ASYNC_SEGMENTS)
        self._held = 0
        self._kept = 0
        """Turns of ended segments that are released when results have been taken."""

    async def begin(self) -> None:
        await self._turns.acquire()

    def end(self, size: int) -> None:
        """End a segment whose output of this size waits to be taken."""
        self._held += size
        if self._held > HELD_BYTES:
            self._kept += 1
        else:
            self._turns.release()

    def taken(self, size: int) -> None:
        self._held -= size
        if self._held <= HELD_BYTES:
            for _ in range(self._kept):
                self._turns.release()
            self._kept = 0


def _scalars(function: ProcessFunction, call: ProcessCall) -> list[Any]:
    """A value per scalar argument: that of the call, or the declared default."""
    values = []
    for argument in function.arguments:
        if argument.table is not None:
            continue
        if argument.name in call.scalars.schema.names:
            assert argument.codec is not None
            values.append(argument.codec.decode(call.scalars.column(argument.name).cast(argument.type))[0])
        else:
            values.append(argument.default)
    return values


def _broadcast_state(function: ProcessFunction, call: ProcessCall) -> list[Any] | None:
    if call.broadcast_state is None or call.broadcast:
        return None
    entries = [entry for entry in function.states if entry.broadcast]
    return [entry.codec.decode(call.broadcast_state.column(entry.name))[0] for entry in entries]
