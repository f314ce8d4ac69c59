"""Process table functions in tasks without state in Spark: inside mapInArrow, or as Arrow UDTFs.

Inside mapInArrow rows are sorted by key, and bundles have rows of many keys. Keys that end within a bundle are separate
segments, and many bundles are in flight at once. A key with more rows than a bundle continues in a chain: each part
receives the state and timers of the previous part, so memory does not grow with the size of a key. At the end of the
input, the watermark moves to the end of time.

An Arrow UDTF makes a request for the rows of each key, or for each batch of a table with row semantics.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pyarrow as pa

from remote_udf.errors import InvalidCall
from remote_udf.process_planning import TableGiven, plan_process_call
from remote_udf.table_arguments import ArgumentTrait, TableArgument
from spark_client.base.calls import ProcessTableCall
from spark_client.base.errors import PlanError
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.process.plan import OutputSource, ProcessPlan
from spark_client.executor.process.segment_batches import Before, Segments, after, segment_engine
from spark_client.executor.segments.cutting import rows_by_key, run_sorted, tables_of
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["END_OF_INPUT", "ArrowTableFunction", "ProcessTask", "handler_of", "map_processed"]

END_OF_INPUT = 2**63 - 1
ROWS_PER_SEGMENT = 1024
"""The size of segments with row semantics, whose rows do not depend on each other."""


def map_processed(
    plan: ProcessPlan, batches: Iterator[pa.RecordBatch], runtime: Runtime = RUNTIME
) -> Iterator[pa.RecordBatch]:
    """Turn input batches, sorted by key, into rows of the result. Raises FunctionFailed, and errors of streams."""
    return run_sorted(lambda: ProcessTask(plan, runtime), batches)


class ProcessTask:
    """The streams of a task, for which `close` is called at last, also if the task fails."""

    def __init__(self, plan: ProcessPlan, runtime: Runtime) -> None:
        self._plan = plan
        self._engine, self._chain = segment_engine(plan, runtime), segment_engine(plan, runtime)
        self._before: Before | None = None
        """State and timers of the key in the current chain."""
        self._in_flight: deque[Segments] = deque()
        self._now, self._clock = int(runtime.now() * 1000), runtime.clock

    def run(self, first: pa.RecordBatch, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.process(itertools.chain([first], batches))
        self.finish()

    def process(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The output for rows of whole keys. May be called again, for other keys."""
        self._engine.open(self._plan.segments)
        for step in self._steps(batches):
            if isinstance(step, Segments):
                self._in_flight.append(step)
                yield from self._outputs(self._engine.send(step.batch()))
            else:
                yield step
        yield from self._outputs(self._engine.drain())

    def finish(self) -> None:
        """End the streams and compare the counts. Call it after the output for all rows."""
        self._engine.finish()
        self._chain.finish()

    def close(self) -> None:
        """Cancel the calls in flight. Safe to call twice."""
        with closing(self._engine):
            self._chain.close()

    def _outputs(self, completed: Iterator[Completed]) -> Iterator[pa.RecordBatch]:
        for each in completed:
            segments = self._in_flight[0]
            segments.require_success(each)
            yield from segments.output(each)
            if each.first + len(each.values[0]) == segments.count:
                self._in_flight.popleft()

    def _steps(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Segments | pa.RecordBatch]:
        """Segments of complete keys, and the output of keys in a chain, which are processed on the way."""
        bounds = self._engine.bundles()
        if not self._plan.by_key:
            for table in tables_of(batches, lambda: bounds.size, bounds.allow_latency, clock=self._clock):
                yield self._segments(table, np.arange(0, table.num_rows, ROWS_PER_SEGMENT), ends=False)
            return
        for rows in rows_by_key(batches, self._plan.keys, bounds, clock=self._clock):
            if rows.is_part:
                yield from self._part(rows.table, ends=rows.ends)
            else:
                yield self._segments(rows.table, rows.starts, ends=True)

    def _segments(self, table: pa.Table, starts: Integers, *, ends: bool) -> Segments:
        advance_to = END_OF_INPUT if ends and self._plan.bounded else None
        return Segments(self._plan, table, starts, self._now, self._before, advance_to)

    def _part(self, table: pa.Table, *, ends: bool) -> Iterator[pa.RecordBatch]:
        """The output for a part of the key in the current chain, or in a new one."""
        segments = self._segments(table, np.zeros(1, np.int64), ends=ends)
        # A batch of one segment is one piece.
        (completed,) = self._chain.exchange_pieces(segments.batch())
        segments.require_success(completed)
        self._before = None if ends else after(completed.values[0])
        yield from segments.output(completed)


@dataclass(frozen=True)
class ArrowTableFunction:
    """A function with one table. `call` has no arguments yet; `schema` has the columns of the result."""

    call: ProcessTableCall
    schema: pa.Schema

    @property
    def table(self) -> TableArgument:
        """The table argument."""
        assert self.call.spec.process is not None
        return self.call.spec.process.tables[0]

    def given(
        self, arguments: Sequence[object], named: Mapping[str, object]
    ) -> tuple[pa.RecordBatch, dict[str, object]]:
        """The rows of the table, and the scalar arguments, which Spark repeats for each row. Raises PlanError."""
        spec, table = self.call.spec, self.table.name
        order = [parameter.name for parameter in spec.parameters]
        if len(arguments) > len(order):
            raise PlanError(f"function {spec.key} takes {len(order)} arguments: {spec.signature}")
        known = {name.casefold(): name for name in order}
        passed = dict(zip(order, arguments, strict=False))
        passed |= {known.get(name.casefold(), name): value for name, value in named.items()}
        rows = passed.pop(table, None)
        if not isinstance(rows, pa.RecordBatch):
            raise PlanError(f"function {spec.key}: Argument {table!r} expects a table to be passed: {spec.signature}")
        return rows, {name: value[0].as_py() for name, value in passed.items() if isinstance(value, pa.Array)}

    def plan(self, columns: pa.Schema, scalars: Mapping[str, object]) -> ProcessPlan:
        """What a task needs to process rows of these columns. Raises PlanError if the function does not take them."""
        spec = self.call.spec
        assert spec.process is not None
        # Spark has grouped the rows and does not tell by what, so the function gets a table without PARTITION BY.
        table = replace(self.table, traits=self.table.traits | {ArgumentTrait.OPTIONAL_PARTITION_BY})
        free = replace(spec, process=replace(spec.process, tables=(table,)))
        try:
            process = plan_process_call(free, {table.name: TableGiven(columns)}, scalars)
        except InvalidCall as error:
            raise PlanError(str(error)) from None
        return ProcessPlan(
            call=replace(self.call, process=process), keys=(), key_names=(), table=None, row_kind=None, time=None,
            rows=(0,), output=tuple((OutputSource.VALUE, index) for index in range(len(self.schema))),
            schema=self.schema, by_key=table.has_set_semantics,
        )  # fmt: skip


class _Streams:
    """The streams of a Spark task, on which its keys follow each other."""

    def __init__(self, plan: ProcessPlan) -> None:
        self._task = ProcessTask(plan, RUNTIME)
        self._is_whole = True

    def processed(self, batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The result for the rows of a key, or for any rows of a table with row semantics."""
        self._is_whole = False
        rows = (pa.StructArray.from_arrays(batch.columns, fields=list(batch.schema)) for batch in batches)
        yield from self._task.process(pa.RecordBatch.from_arrays([each], ["row"]) for each in rows)
        self._is_whole = True

    def end(self) -> None:
        """End the streams; if the task failed, cancel them."""
        with closing(self._task):
            if self._is_whole:
                self._task.finish()


def handler_of(function: ArrowTableFunction) -> type:
    """The class of which Spark's worker makes an object for each key, and one for a task without keys or rows."""

    # No module has this class, so it is sent to workers by its contents.
    class Handler:
        streams: ClassVar[_Streams | None] = None
        """Those of the task, for all its keys. The scalar arguments are those of its first row."""

        def __init__(self) -> None:
            self.batches: list[pa.RecordBatch] = []

        def eval(self, *arguments: object, **named: object) -> Iterator[pa.RecordBatch]:
            batch, scalars = function.given(arguments, named)
            self.batches.append(batch)
            if Handler.streams is None:
                Handler.streams = _Streams(function.plan(batch.schema, scalars))
            if not function.table.has_set_semantics:
                yield from self.terminate()

        def terminate(self) -> Iterator[pa.RecordBatch]:
            batches, self.batches = self.batches, []
            if batches and Handler.streams is not None:
                yield from Handler.streams.processed(batches)

        def cleanup(self) -> None:
            streams, Handler.streams = Handler.streams, None
            if streams is not None:
                streams.end()

    return Handler
