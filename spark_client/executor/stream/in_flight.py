"""What one stream has in flight: MessageSizing says how much may be, ChunksInFlight finds what a result answers."""

import bisect
from collections.abc import Callable, Collection, Mapping

import numpy as np
import pyarrow as pa

from remote_udf.arrow import read_columns
from remote_udf.errors import ProtocolViolation
from remote_udf.functions import Execution
from remote_udf.options import DEFAULT_CAPACITY
from remote_udf.outcomes import RowError, read_errors
from remote_udf.v1 import message_pb2 as pb
from spark_client.executor.stream.chunks import Answer, Chunk, IntArray, Parts, Rows

__all__ = ["MESSAGES_IN_FLIGHT", "ChunksInFlight", "MessageSizing"]

MESSAGES_IN_FLIGHT = 4
"""One message in flight has 60 % of the throughput of four; sixteen have little more."""
ROWS_SECONDS = 0.05
"""Seconds of work in one message to a row-wise function, once its pace is known. Results are then available
early, and the cost of a message is negligible."""
VECTORIZED_SECONDS = 1.0
"""The same for a vectorized function, which may be faster if it gets more rows per call."""
MESSAGE_BYTES = 4 << 20
ADAPT_SECONDS = 0.01
VECTORIZED_FIRST = 10_000
"""Rows of the first message to a vectorized function: the number of rows that Spark passes at a time."""
GROWTH = 4


class MessageSizing:
    """Sizes the messages of one stream by the pace of its answers.

    A message of a row-wise function has at least as many rows as may be in flight on the server, so
    that four of them keep it busy. If rows are cheap, it has more. Only unanswered rows count:
    with ordered output, rows after a slow row are processed while the engine has room for their outcomes.
    """

    def __init__(self, execution: Execution, capacity: int | None, batch_rows: int, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._most = batch_rows
        self._seconds = VECTORIZED_SECONDS if execution.by_batch else ROWS_SECONDS
        self._least = min(batch_rows, 1 if execution.by_batch else capacity or DEFAULT_CAPACITY)
        self.rows = min(batch_rows, VECTORIZED_FIRST) if execution.by_batch else self._least
        """Number of rows that the next message should have."""
        self._answered = 0
        self._since = clock()

    def has_room(self, unanswered_rows: int, unanswered_bytes: int) -> bool:
        """Whether another message may be sent."""
        full = unanswered_rows >= self.rows * MESSAGES_IN_FLIGHT
        return not unanswered_rows or not (full or unanswered_bytes >= MESSAGE_BYTES * MESSAGES_IN_FLIGHT)

    def next_rows(self, available: int, bytes_per_row: float) -> int:
        """Rows of the next message, at least one."""
        by_bytes = int(min(MESSAGE_BYTES / bytes_per_row, available)) if bytes_per_row else available
        return max(1, min(available, self.rows, by_bytes))

    def answered(self, rows: int) -> None:
        """Adapt to the pace. Call when results for this many rows were received."""
        self._answered += rows
        elapsed = self._clock() - self._since
        if elapsed < ADAPT_SECONDS and self._answered < self.rows:
            return
        wanted = self._answered / max(elapsed, 1e-6) * self._seconds
        self.rows = int(min(max(min(wanted, self.rows * GROWTH), self._least), self._most))
        self._answered, self._since = 0, self._clock()


class ChunksInFlight:
    """Chunks by their position in the stream. If a row is answered twice, the server violates the protocol."""

    def __init__(self, answered: Callable[[Chunk], object] = lambda chunk: None) -> None:
        """`answered` is called with each chunk whose last row was answered."""
        self._answered = answered
        self.rows = 0
        """Number of unanswered rows."""
        self.bytes = 0
        """Approximate bytes of the chunks."""
        self._chunks: dict[int, Chunk] = {}
        """First row in the stream to the chunk, in order."""
        self._starts: list[int] = []
        """The keys of `_chunks`."""

    def add(self, chunk: Chunk) -> None:
        """Add a chunk that was sent after all others."""
        self._chunks[chunk.first_row] = chunk
        self._starts.append(chunk.first_row)
        self.rows += len(chunk.rows)
        self.bytes += chunk.bytes

    def rest(self) -> list[Chunk]:
        """The unanswered rows, as chunks to be sent again."""
        return [chunk.rest() for chunk in self._chunks.values()]

    def close(self) -> None:
        """Discard the parts of incomplete values. Safe to call twice."""
        for chunk in list(self._chunks.values()):
            chunk.forget_parts(range(len(chunk.rows)))

    def add_part(self, row: int, number: int, data: memoryview, schema: pa.Schema) -> None:
        """Add a part of a value. Raises ProtocolViolation if the row is not awaited or the part is not the next one."""
        chunk = self._chunk_at(row)
        inside = row - chunk.first_row
        if not chunk.awaits(inside):
            raise _not_awaited(row)
        if number == 1:
            chunk.forget_parts(range(inside, inside + 1))
            chunk.parts[inside] = Parts(schema)
        if inside not in chunk.parts:
            raise ProtocolViolation(f"part {number} of row {row} came without those before it")
        chunk.parts[inside].add(number, data)

    def read(
        self, result: pb.Result, data: memoryview | None, schema: pa.Schema, *, ordered: bool
    ) -> tuple[list[Answer], Collection[RowError]]:
        """The outcomes of a result that is not a part of a value, and the errors of the rows that failed.

        Raises ProtocolViolation if it is malformed or answers rows that are not awaited.
        """
        if data is None:
            raise ProtocolViolation("a result without data")
        columns = read_columns(data, schema, result.rows)
        errors = read_errors(result.errors) if result.errors else {}
        if errors and not 0 <= min(errors) <= max(errors) < result.rows:
            raise ProtocolViolation(f"an error for row {max(errors)} of a result of {result.rows} rows")
        if ordered:
            return self.answer(result.first_row, columns[-1], errors, result.parts), errors.values()
        return self.answer_scattered(columns[0].to_numpy(), columns[-1], errors), errors.values()

    def answer(self, first_row: int, values: pa.Array, errors: Mapping[int, RowError], parts: int = 0) -> list[Answer]:
        """Outcomes of consecutive rows of one chunk; `parts` is the number of parts of the first.

        Raises ProtocolViolation if they are not awaited, or if the number of parts is not the number received.
        """
        if not len(values):
            return []
        chunk = self._chunk_at(first_row)
        first = first_row - chunk.first_row
        if first + len(values) > len(chunk.rows):
            raise ProtocolViolation(f"a result for {len(values)} rows from {first_row} on exceeds its batch")
        kept: dict[int, Parts] = {}
        if parts and 0 not in errors:
            found = chunk.parts.pop(first, None)
            if found is None or found.count != parts:
                came = 0 if found is None else found.count
                raise ProtocolViolation(f"the value of row {first_row} has {parts} parts, but {came} came")
            kept[0] = found
        return [self._answer(chunk, range(first, first + len(values)), values, errors, kept)]

    def answer_scattered(self, rows: IntArray, values: pa.Array, errors: Mapping[int, RowError]) -> list[Answer]:
        """Outcomes of rows of several chunks in any order, one Answer per chunk. Raises as `answer`."""
        if self._are_of_one_chunk(rows):
            # Most results are of consecutive rows, for which this is much cheaper.
            return self.answer(int(rows[0]), values, errors)
        places = np.searchsorted(self._starts, rows, side="right") - 1
        answers = []
        # The order is descending, because an answered chunk is removed from the list.
        for place in sorted(set(places.tolist()), reverse=True):
            chosen = np.flatnonzero(places == place)
            chunk = self._chunk_at(int(rows[chosen[0]]))
            inside = rows[chosen] - chunk.first_row
            if inside.max() >= len(chunk.rows):
                raise _not_awaited(rows[chosen].max())
            own = {at: errors[index] for at, index in enumerate(chosen.tolist()) if index in errors} if errors else {}
            part = values if len(chosen) == len(rows) else values.take(pa.array(chosen))
            answers.append(self._answer(chunk, inside, part, own))
        return answers

    def _are_of_one_chunk(self, rows: IntArray) -> bool:
        """Whether rows are consecutive, and of one chunk."""
        if not len(rows) or int(rows[-1] - rows[0]) != len(rows) - 1 or (np.diff(rows) != 1).any():
            return False
        chunk = self._chunk_at(int(rows[0]))
        return int(rows[-1]) < chunk.first_row + len(chunk.rows)

    def _chunk_at(self, row: int) -> Chunk:
        place = bisect.bisect_right(self._starts, row) - 1
        if place < 0:
            raise _not_awaited(row)
        return self._chunks[self._starts[place]]

    def _answer(
        self, chunk: Chunk, inside: Rows, values: pa.Array, errors: Mapping[int, RowError],
        parts: Mapping[int, Parts] | None = None,
    ) -> Answer:  # fmt: skip
        rows = chunk.answer(inside)
        if chunk.parts:
            chunk.forget_parts(inside)
        self.rows -= len(rows)
        if chunk.unanswered:
            self.bytes -= chunk.compact()
        else:
            del self._chunks[chunk.first_row]
            self._starts.remove(chunk.first_row)
            self.bytes -= chunk.bytes
            self._answered(chunk)
        return Answer(chunk.owner, rows, values, errors, parts or {})


def _not_awaited(row: int) -> ProtocolViolation:
    return ProtocolViolation(f"a result for row {row}, which was answered or never sent")
