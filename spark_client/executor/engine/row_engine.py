"""RowEngine sends the rows of a task through its calls and returns them with their outcomes."""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa

from remote_udf.effective_options import AggregateOptions
from spark_client.executor.engine.groups import Completed, Group
from spark_client.executor.engine.messages import Readers, Unsent, merged
from spark_client.executor.engine.nested import Nested, ReadyRows
from spark_client.executor.engine.piecewise import PiecewiseGroup
from spark_client.executor.engine.planned_calls import PlannedCall, equal_calls
from spark_client.executor.engine.policy import blocking_errors
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.chunks import Answer
from spark_client.executor.stream.runtime import Runtime

__all__ = ["PlannedCall", "RowEngine"]

HELD_BYTES = 64 << 20
INNER_SHARE = 5
"""A message to a row-wise function whose values go to another call has this share of the usual rows, so that the other
call begins early. A message is usually 50 ms of work."""


class RowEngine:
    """Makes all calls of a row concurrently, and equal calls of a row once. Calls may have other calls as arguments.

    With `ordered`, rows are returned in input order. Otherwise they are returned as they complete,
    across batches, and a slow row delays no other row.
    """

    def __init__(
        self, calls: Sequence[PlannedCall], runtime: Runtime, *, ordered: bool, merging: bool = True,
        piecewise: bool = False, most_bytes: int | None = None, held_bytes: int = HELD_BYTES,
    ) -> None:  # fmt: skip
        """Without `merging`, an ordered engine returns one Completed for each batch that has rows.

        `piecewise` is for one ordered call without merging: a batch is returned in several pieces, each as soon as it
        and all before it are complete.

        If the values of a call for an ordered batch have more than `most_bytes`, the batch is returned in several
        pieces, once it is complete.

        If input that waits for outcomes and values that were not returned have `held_bytes`, no more input is read.
        """
        self._piecewise = piecewise
        self._most_bytes = most_bytes
        self._most_held = held_bytes
        self._calls = calls
        self._runtime = runtime
        self._ordered = ordered
        self._merging = merging
        self._streams: dict[int, CallStream] = {}
        self._here: dict[Group, Nested] = {}
        """The groups with rows that were not returned, oldest first, and their nested calls."""
        self._unsent: dict[int, deque[Unsent]] = {}
        """Per call, the rows that wait until it has room."""
        self._share: dict[int, int] = {}
        """Per call, the divisor of the rows of its messages."""
        self._touched: dict[Group, None] = {}
        """The groups that got outcomes since rows were last returned."""
        self._held_bytes = 0
        self._readers: Readers | None = None
        self._clock = runtime.clock
        self._left: float | None = None
        """When the task left this engine for Spark; None while it is in the engine."""
        self._away_seconds = 0.0

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Completed]:
        """Process all batches. Streams are opened with the first batch that has rows, and closed at the end.

        Raises what CallStream raises. If the generator is closed early, the calls in flight are cancelled.
        """
        with contextlib.closing(self):
            for table in merged(self._taken(batches), self._wanted_rows, self._clock):
                self.open(table.schema)
                yield from self._handed(self._feed(table))
            yield from self.drain()
            self.finish()

    def send(self, batch: pa.RecordBatch) -> Iterator[Completed]:
        """Send a batch and return the rows that are complete. Call `drain` and `finish` after the last batch."""
        self.open(batch.schema)
        yield from self._handed(self._feed(pa.Table.from_batches([batch])))

    def exchange(self, batch: pa.RecordBatch) -> Completed:
        """Send one batch alone and wait for its outcomes. If this raises, call `close`."""
        (completed,) = self.exchange_pieces(batch)
        return completed

    def exchange_pieces(self, batch: pa.RecordBatch) -> Iterator[Completed]:
        """Do the same for outcomes that are returned in pieces."""
        yield from self.send(batch)
        yield from self.drain()

    def finish(self) -> None:
        """End the streams, if there are any, after the last outcome and compare the counts with the server's."""
        self._come()
        for stream in self._streams.values():
            stream.finish()

    def bundles(self) -> AggregateOptions:
        """The options for bundling rows: the smallest bounds of all calls. Call after `open`."""
        agreed = [stream.bundles for stream in self._streams.values() if stream.bundles is not None]
        return dataclasses.replace(
            agreed[0],
            size=min(options.size for options in agreed),
            allow_latency=min(options.allow_latency for options in agreed),
        )

    def segment_bytes(self) -> int:
        """Maximum bytes of a segment by the average row, so that a segment with wider rows also fits a message."""
        return min(stream.message_bytes for stream in self._streams.values()) // 4

    def drain(self) -> Iterator[Completed]:
        """Wait for the outcomes of all rows that were sent, and return the rows."""
        yield from self._handed(self._drain())

    def _drain(self) -> Iterator[Completed]:
        while self._here:
            self._receive()
            yield from self._ready()

    def _taken(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The input. The time to produce it counts as time in Spark."""
        while True:
            self._leave()
            batch = next(batches, None)
            self._come()
            if batch is None:
                return
            yield batch

    def _handed(self, completed: Iterator[Completed]) -> Iterator[Completed]:
        """The output. The time in which the caller uses it counts as time in Spark."""
        self._come()
        for rows in completed:
            self._leave()
            yield rows
            self._come()
        self._leave()

    def _leave(self) -> None:
        if self._left is None and self._streams:
            self._left = self._clock()

    def _come(self) -> None:
        if self._left is not None:
            self._away_seconds += self._clock() - self._left
            self._left = None

    def _wanted_rows(self) -> int:
        """The largest number of rows that any of the calls accepts in one message."""
        if not self._merging:
            return 0
        return max((stream.message_rows for stream in self._streams.values()), default=1)

    def open(self, schema: pa.Schema) -> None:
        """Open the streams for input of this schema, unless they are open."""
        if self._streams:
            return
        width = len(schema)
        calls = []
        for index, planned in enumerate(self._calls):
            calls.append((planned.call, planned.arguments(schema)))
            self._unsent[index] = deque()
            schema = schema.append(pa.field(f"value_{index}", planned.result_type))
        self._streams = dict(enumerate(self._runtime.open_streams(calls)))
        inner = {call for planned in self._calls for call in planned.inner(width)}
        for index, planned in enumerate(self._calls):
            whole = index not in inner or planned.call.spec.execution.by_batch
            self._share[index] = 1 if whole else INNER_SHARE
        if len(self._streams) > 1 and (inner or not self._ordered):
            self._readers = Readers(self._streams, self._runtime.threads)

    def _feed(self, table: pa.Table) -> Iterator[Completed]:
        """Send a batch to all its calls, as their windows allow."""
        sources = equal_calls(self._calls, table)
        group = PiecewiseGroup(table) if self._piecewise else Group(table, sources, self._most_bytes)
        nested = self._here[group] = Nested(self._calls, sources, table.num_columns)
        if not self._ordered:
            group.track()
        self._held_bytes += group.bytes
        first = nested.independent()
        for index in first:
            columns = [table.column(column) for column in self._calls[index].columns]
            blocked = blocking_errors(table, self._calls[index].errors)
            self._queue(group, ReadyRows(index, range(group.rows), columns, blocked))
        self._submit()
        while waiting := [index for index in first if self._unsent[index]]:
            self._receive(waiting[0])
            yield from self._ready()
        self._take_read()
        yield from self._ready()
        while self._held_bytes > self._most_held and self._here:
            self._receive()
            yield from self._ready()

    def _queue(self, group: Group, ready: ReadyRows) -> None:
        """Queue rows for a call. Rows with an error or the answer of another call get it immediately."""
        self._add(ready.call, ready.settled(group, self._calls[ready.call].call.result_type))
        rows, columns = ready.sent()
        if len(rows):
            self._unsent[ready.call].append(Unsent(group, columns, rows))

    def _submit(self) -> None:
        """Send the queued rows, as the windows of the calls allow."""
        # Calls come after those among their arguments, so one pass also sends the rows that it adds to the queues.
        for index, parts in self._unsent.items():
            stream = self._streams[index]
            while parts and stream.has_room():
                answers = parts[0].submit(stream, self._share[index])
                if not parts[0].left:
                    parts.popleft()
                self._add(index, answers)
                if self._readers is not None:
                    self._readers.wake(index)

    def _receive(self, index: int | None = None) -> None:
        """Wait for outcomes of this call, or of any call with unanswered rows."""
        if self._readers is not None:
            self._add(*self._readers.get())
            self._take_read()
            return
        if index is None:
            index = next(index for index, stream in self._streams.items() if stream.unanswered)
        self._add(index, self._streams[index].receive())
        self._submit()

    def _take_read(self) -> None:
        """Add the outcomes that other threads have already received, without waiting."""
        while self._readers is not None and self._readers.ready():
            self._add(*self._readers.get())
        self._submit()

    def _add(self, index: int, answers: Iterable[Answer]) -> None:
        for answer in answers:
            group: Group = answer.owner
            if self._calls[index].field is not None:
                answer = dataclasses.replace(answer, values=self._calls[index].value_of(answer.values))
            self._held_bytes -= group.bytes
            group.add(index, answer.rows, answer.values, answer.errors, answer.parts)
            self._held_bytes += group.bytes
            self._touched[group] = None
            for ready in self._here[group].ready(index, answer, group):
                self._queue(group, ready)

    def _ready(self) -> Iterator[Completed]:
        """The rows that can be returned now."""
        if self._ordered:
            self._touched.clear()
            while self._here:
                group, before = (oldest := next(iter(self._here))), oldest.bytes
                for front in group.take_front():
                    self._held_bytes += group.bytes - before
                    before = group.bytes
                    yield front
                if not group.done:
                    return
                del self._here[group]
            return
        touched, self._touched = self._touched, {}
        for group in touched:
            self._held_bytes -= group.bytes
            completed = group.take_complete()
            group.compact()
            self._held_bytes += group.bytes
            if group.done:
                del self._here[group]
            if completed is not None:
                yield completed

    def close(self) -> None:
        """Cancel the calls in flight and close the streams. Safe to call twice."""
        if self._readers is not None:
            self._readers.stop()
        self._come()
        for stream in self._streams.values():
            stream.close()
            stream.report(self._away_seconds)
