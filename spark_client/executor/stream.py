"""CallStream: one call's rows on their way to a server and back, whatever happens to the server."""

import bisect
import functools
import random
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from remote_udf.arrow import read_columns
from remote_udf.errors import ErrorCode, ProtocolViolation, StreamError
from remote_udf.outcomes import RowError, read_errors
from remote_udf.v1 import message_pb2 as pb
from spark_client.calls import ScalarCall
from spark_client.errors import AccountingMismatch, ServerUnavailable
from spark_client.executor.chunks import Answer, Chunk, IntArray, Rows
from spark_client.executor.connection import Connection
from spark_client.executor.silence import process_watch
from spark_client.executor.task import TaskInfo
from spark_client.executor.transport import Transport, TransportLost
from spark_client.executor.window import Window

__all__ = ["CallStream"]

BACKOFF_SECONDS = (0.05, 2.0)
"""First and longest wait between attempts to reach a server."""


class CallStream:
    """Sends chunks of rows, gives back their outcomes, and sends again what a lost server left unanswered.

    The caller asks `has_room` before `submit`, so that no more rows are under way than the window
    allows. One thread may submit while another receives.
    """

    def __init__(
        self,
        call: ScalarCall,
        arguments: pa.Schema,
        task: TaskInfo,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Connects and opens. Raises StreamError if the server refuses, ServerUnavailable if none answers in time."""
        self.call = call
        self.replays = 0
        """Times that rows were sent again."""
        self._connector: Callable[[], Connection] = functools.partial(
            Connection, call, arguments, task, transport, clock
        )
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.RLock()
        self._pending: dict[int, Chunk] = {}
        """First row in the stream to the chunk, in order."""
        self._starts: list[int] = []
        """The keys of `_pending`."""
        self._unanswered_rows = 0
        self._unanswered_bytes = 0
        self._finishing = False
        self._done = False
        self._lost_at: float | None = None
        """When the server was lost and no result has come since; None while all is well."""
        self._counts = pb.StreamCounts()
        self._connection = self._connect(clock() + call.config.connect_seconds)
        options = self._connection.options
        self._window = Window(call.spec.execution, options.buffer_capacity, options.batch_rows, clock)
        process_watch().add(self)

    @property
    def ordered(self) -> bool:
        """Whether results of one chunk come in order; as agreed with the server."""
        return self._connection.ordered

    @property
    def unanswered(self) -> int:
        """Rows submitted and not answered."""
        return self._unanswered_rows

    @property
    def message_rows(self) -> int:
        """Rows the next message should have, if there are as many."""
        return self._window.rows

    def has_room(self) -> bool:
        """Whether `submit` may be called now."""
        return self._window.has_room(self._unanswered_rows, self._unanswered_bytes)

    def next_rows(self, available: int, bytes_per_row: float) -> int:
        """How many of the available rows the next chunk should have."""
        return self._window.next_rows(available, bytes_per_row)

    def submit(self, chunk: Chunk) -> list[Answer]:
        """Sends a chunk.

        Returns the outcomes of rows that cannot be sent, because they are too large; mostly none.
        """
        with self._lock:
            return self._send(chunk)

    def receive(self) -> list[Answer]:
        """Waits for outcomes. Empty only if no row is unanswered.

        Raises StreamError when the server ends the stream for good, AccountingMismatch, or
        ProtocolViolation. A server that is lost is replaced; where that fails until the deadline, the
        rows under way get the error SERVER_UNAVAILABLE.
        """
        while self._unanswered_rows:
            answers = self._receive_one()
            if answers:
                return answers
        return []

    def finish(self) -> pb.StreamCounts:
        """Ends the stream after the last answer and compares the server's counts with this end's.

        Raises AccountingMismatch if they differ.
        """
        with self._lock:
            self._finishing = True
            self._connection.send_finish()
        try:
            while not self._done:
                self._receive_one()
            return self._counts
        finally:
            self.close()

    def close(self) -> None:
        """Gives up whatever is under way. Safe to call twice."""
        process_watch().discard(self)
        self._connection.close(cancel=not self._done)
        self._done = True

    def check_silence(self, now: float) -> None:
        """Called by the watch: ends the connection if the server owes results and says nothing."""
        self._connection.check_silence(now)

    # Sending.

    def _send(self, chunk: Chunk, waited: float = 0.0) -> list[Answer]:
        connection = self._connection
        payload = connection.payload(chunk)
        if payload is not None and (size := sum(map(len, payload))) > connection.payload_bytes:
            return self._send_halves(chunk, size, waited)
        connection.send(chunk, payload, waited)
        self._pending[chunk.first_row] = chunk
        self._starts.append(chunk.first_row)
        self._unanswered_rows += len(chunk.rows)
        self._unanswered_bytes += chunk.bytes
        return []

    def _send_halves(self, chunk: Chunk, size: int, waited: float) -> list[Answer]:
        rows = len(chunk.rows)
        if rows == 1:
            most = self._connection.payload_bytes
            message = f"the arguments of this row take {size} bytes; a message holds {most}"
            return [self._refused(chunk, RowError(ErrorCode.ARGUMENT_TOO_LARGE, message, attempts=0))]
        half = rows // 2
        parts = (chunk.part(0, half), chunk.part(half, rows - half))
        return [answer for part in parts for answer in self._send(part, waited)]

    def _refused(self, chunk: Chunk, error: RowError) -> Answer:
        """The same error for every row of a chunk that is not on its way."""
        count = len(chunk.rows)
        nulls = pa.nulls(count, self.call.spec.result)
        return Answer(chunk.owner, chunk.rows, nulls, dict.fromkeys(range(count), error))

    # Receiving.

    def _receive_one(self) -> list[Answer]:
        """The outcomes in the next message; none in most kinds of message."""
        try:
            envelope, data = self._connection.read()
        except TransportLost as lost:
            return [] if self._done else self._recover(lost, 0.0)
        except StreamError as error:
            if not error.retryable:
                raise
            return self._recover(error, error.retry_after or 0.0)
        kind = envelope.WhichOneof("response")
        if kind == "result":
            with self._lock:
                return self._take(envelope.result, data)
        if kind == "finished":
            self._check_counts(envelope.finished.counts)
            self._done = True
        elif kind != "progress":
            raise ProtocolViolation(f"the server sent {kind} in the middle of the stream")
        return []

    def _take(self, result: pb.Result, data: memoryview | None) -> list[Answer]:
        if data is None:
            raise ProtocolViolation("a result without data")
        columns = read_columns(data, self._connection.schema, result.rows)
        values = columns[-1]
        errors = read_errors(result.errors) if result.errors else {}
        self._lost_at = None
        self._window.answered(result.rows)
        counts = self._counts
        counts.rows_ok += result.rows - len(errors) - result.skipped
        counts.rows_failed += len(errors)
        counts.rows_skipped += result.skipped
        if not self.ordered:
            return self._scattered(columns[0].to_numpy(), values, errors)
        chunk = self._chunk_at(result.first_row)
        first = result.first_row - chunk.first_row
        if first + result.rows > len(chunk.rows):
            raise ProtocolViolation(f"a result for {result.rows} rows from {result.first_row} on exceeds its batch")
        return [self._answer(chunk, range(first, first + result.rows), values, errors)]

    def _scattered(self, rows: IntArray, values: pa.Array, errors: dict[int, RowError]) -> list[Answer]:
        """Rows of several chunks in any order, sorted out by chunk."""
        places = np.searchsorted(self._starts, rows, side="right") - 1
        answers = []
        # From the last, since an answered chunk leaves the list.
        for place in sorted(set(places.tolist()), reverse=True):
            chosen = np.flatnonzero(places == place)
            chunk = self._chunk_at(int(rows[chosen[0]]))
            inside = rows[chosen] - chunk.first_row
            if inside.max() >= len(chunk.rows):
                raise ProtocolViolation(f"a result for row {rows[chosen].max()}, which was answered or never sent")
            own = {at: errors[index] for at, index in enumerate(chosen.tolist()) if index in errors}
            part = values if len(chosen) == len(rows) else values.take(pa.array(chosen))
            answers.append(self._answer(chunk, inside, part, own))
        return answers

    def _chunk_at(self, row: int) -> Chunk:
        place = bisect.bisect_right(self._starts, row) - 1
        if place < 0:
            raise ProtocolViolation(f"a result for row {row}, which was answered or never sent")
        return self._pending[self._starts[place]]

    def _answer(self, chunk: Chunk, inside: Rows, values: pa.Array, errors: dict[int, RowError]) -> Answer:
        rows = chunk.answer(inside)
        self._unanswered_rows -= len(rows)
        if chunk.unanswered:
            self._unanswered_bytes -= chunk.compact()
        else:
            del self._pending[chunk.first_row]
            self._starts.remove(chunk.first_row)
            self._unanswered_bytes -= chunk.bytes
        return Answer(chunk.owner, rows, values, errors)

    def _check_counts(self, theirs: pb.StreamCounts) -> None:
        ours = self._counts
        ours.rows_in, ours.retries = self._connection.rows_sent, theirs.retries
        if self._unanswered_rows or ours != theirs:
            raise AccountingMismatch(
                f"function {self.call.spec.key}: rows do not add up; sent and received here: {_shown(ours)}, "
                f"unanswered {self._unanswered_rows}; the server says: {_shown(theirs)}"
            )

    # Losing a server and finding one.

    def _connect(self, deadline: float) -> Connection:
        """Opens a stream. Raises ServerUnavailable after the deadline, StreamError if refused for good."""
        wait, longest = BACKOFF_SECONDS
        while True:
            hint = 0.0
            try:
                return self._connector()
            except TransportLost as lost:
                problem: Exception = lost
            except StreamError as error:
                if not error.retryable:
                    raise
                problem, hint = error, error.retry_after or 0.0
            # Jitter, so that the tasks of a job do not come back all at once.
            pause = max(wait * random.uniform(0.5, 1.0), hint)
            if self._clock() + pause > deadline:
                raise ServerUnavailable(
                    f"function {self.call.spec.key}: no server at {self.call.config.target}: {problem}"
                ) from problem
            self._sleep(pause)
            wait = min(wait * 2, longest)

    def _recover(self, problem: Exception, pause: float) -> list[Answer]:
        """Sends what is unanswered again, on a new stream, until the deadline that began with the loss."""
        with self._lock:
            now = self._clock()
            self._lost_at = self._lost_at or now
            deadline = self._lost_at + self._connection.options.timeout
            rest = [chunk.rest() for chunk in self._pending.values()]
            self._connection.close(cancel=True)
            self._forget_pending()
            try:
                if now + pause >= deadline:
                    raise ServerUnavailable(f"function {self.call.spec.key}: {problem}")
                self._sleep(pause)
                self._connection = self._connect(deadline)
            except ServerUnavailable as unavailable:
                return self._give_up(rest, f"{unavailable} (server lost: {problem})")
            self.replays += 1
            waited = self._clock() - now
            answers = [answer for chunk in rest for answer in self._send(chunk, waited)]
            if self._finishing:
                self._connection.send_finish()
            return answers

    def _forget_pending(self) -> None:
        self._pending, self._starts = {}, []
        self._unanswered_rows = self._unanswered_bytes = 0
        self._counts = pb.StreamCounts()

    def _give_up(self, rest: Sequence[Chunk], problem: str) -> list[Answer]:
        """The deadline has passed without a server: the rows under way fail, and the next ones try anew."""
        self._lost_at = None
        # While finishing every row was answered; only the counts of the lost stream are missing.
        self._done = self._finishing
        error = RowError(ErrorCode.SERVER_UNAVAILABLE, problem, attempts=0, retryable=True)
        return [self._refused(chunk, error) for chunk in rest]


def _shown(counts: pb.StreamCounts) -> str:
    return f"in {counts.rows_in}, ok {counts.rows_ok}, failed {counts.rows_failed}, skipped {counts.rows_skipped}"
