"""Process table functions inside mapInArrow: rows are sorted by key, and bundles have rows of many keys.

Keys that end within a bundle are separate segments, and many bundles are in flight at once. A key with more rows than a
bundle continues in a chain: each part receives the state and timers of the previous part, so memory does not grow with
the size of a key. At the end of the input, the watermark moves to the end of time.
"""

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa

from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.pieces import Integers
from spark_client.executor.process.plan import ProcessPlan
from spark_client.executor.process.segment_batches import Before, Segments, after, segment_engine
from spark_client.executor.segments.cutting import rows_by_key, run_sorted, tables_of
from spark_client.executor.stream.runtime import RUNTIME, Runtime

__all__ = ["END_OF_INPUT", "ProcessTask", "map_processed"]

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
