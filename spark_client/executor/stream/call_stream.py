"""CallStream sends one call's rows to a server and receives their outcomes, also if the server is lost."""

import contextlib
import functools
import random
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from remote_udf.effective_options import AggregateOptions
from remote_udf.errors import ErrorCode, ProtocolViolation, StreamError
from remote_udf.outcomes import RowError
from remote_udf.spans import NO_SPAN, Span
from remote_udf.threads import THREADS, Threads
from remote_udf.v1 import message_pb2 as pb
from spark_client.base.calls import ScalarCall
from spark_client.base.errors import AccountingMismatch, BudgetExceeded, ServerUnavailable
from spark_client.base.transport import Transport, TransportLost
from spark_client.executor.stream.accounts import Accounts
from spark_client.executor.stream.balancing import Reconnecting
from spark_client.executor.stream.chunks import Answer, Chunk
from spark_client.executor.stream.connecting import Connector, backoff
from spark_client.executor.stream.connection import Connection
from spark_client.executor.stream.in_flight import ChunksInFlight, MessageSizing
from spark_client.executor.stream.silence import SilenceWatch
from spark_client.executor.stream.task import TaskInfo

__all__ = ["CallStream"]


class CallStream:
    """Sends chunks of rows, returns their outcomes, and sends the rows again that a lost server did not answer.

    Call `has_room` before `submit`, so that no more rows are in flight than the window
    allows. One thread may submit while another receives; any thread may close.
    """

    def __init__(
        self,
        call: ScalarCall,
        arguments: pa.Schema,
        task: TaskInfo,
        transport: Transport,
        *,
        clock: Callable[[], float] = time.monotonic,
        span: Span = NO_SPAN,
        threads: Threads = THREADS,
        watch: SilenceWatch | None = None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """Connect and open. Raises StreamError if the server refuses, ServerUnavailable if none answers in time.

        A function's `open` hook may take as long as a row may. Pauses are waits for an event of `threads`, which
        `close` sets. `span` ends with the stream. `watch` finds servers that are unresponsive. `uniform` draws jitter.
        """
        self._span = span
        self.call = call
        self._accounts = Accounts(call, task, span, clock, threads)
        self.statistics = self._accounts.statistics
        """The statistics so far."""
        self._clock = clock
        self._uniform = uniform
        self._closed = threads.event()
        connect = functools.partial(Connection, call, arguments, task, transport, clock, threads=threads, watch=watch)
        self._connector = Connector(call, connect, transport.servers, clock, self._closed.wait, span, uniform)
        self._lock = threads.lock()
        self._pending = ChunksInFlight(self._answered)
        self._finishing = False
        self._done = False
        self._lost_at: float | None = None
        """When the server was lost; None if a result was received since."""
        self._losses = 0
        """Number of times that a server was lost since then."""
        self._reconnecting = Reconnecting(
            transport, clock, uniform, call.config.max_stream_seconds, self._connector.may_change
        )
        seconds, timeout = call.config.connect_seconds, call.timeout
        try:
            self._connection = self._connector.connect(clock() + seconds, clock() + max(seconds, timeout))
        except BaseException as error:
            self._accounts.end_span(type(error).__name__)
            raise
        self._reconnecting.connected(self._connection)
        options = self._connection.options
        self.statistics.lowered |= self._connection.lowered
        self._sizing = MessageSizing(call.spec.execution, options.buffer_capacity, self._connection.message_rows, clock)

    @property
    def ordered(self) -> bool:
        """Whether results of one chunk are in order, as agreed with the server."""
        return self._connection.ordered

    @property
    def unanswered(self) -> int:
        """Number of rows that were submitted and not answered."""
        return self._pending.rows

    @property
    def bundles(self) -> AggregateOptions | None:
        """The options for bundling rows, as agreed with the server; None for a scalar function."""
        return self._connection.bundles

    @property
    def message_bytes(self) -> int:
        """Maximum bytes of the rows of one message, as agreed with the server."""
        return self._connection.payload_bytes

    @property
    def message_rows(self) -> int:
        """Number of rows that the next message should have, if that many are available."""
        return self._sizing.rows

    def has_room(self) -> bool:
        """Whether `submit` may be called now."""
        if self._reconnecting.hold_rows(self._pending.rows):
            return False
        return self._sizing.has_room(self._pending.rows, self._pending.bytes)

    def next_rows(self, available: int, bytes_per_row: float) -> int:
        """Number of the available rows that the next chunk should have."""
        return self._sizing.next_rows(available, bytes_per_row)

    def submit(self, chunk: Chunk) -> list[Answer]:
        """Send a chunk. Returns the outcomes of rows that are too large to be sent."""
        with self._lock:
            while self._reconnecting.wanted and not self._pending.rows:
                if (refused := self._reconnect(chunk)) is not None:
                    return [refused]
            return self._send(chunk)

    def receive(self) -> list[Answer]:
        """Wait for outcomes. The result is empty only if no row is unanswered or the stream was closed.

        Raises StreamError if the server ends the stream permanently, BudgetExceeded, AccountingMismatch, or
        ProtocolViolation. If a server is lost, it is replaced. If that fails until the deadline, the
        rows in flight get the error SERVER_UNAVAILABLE.
        """
        while self._pending.rows and not self._done:
            answers = self._receive_one()
            if answers:
                self._require_budget(answers)
                return answers
        return []

    def _require_budget(self, answers: Sequence[Answer]) -> None:
        """Raise BudgetExceeded if a row was not called because the budget is spent, and the session wants that."""
        budget = self.call.config.budget
        if budget is None or not budget.fails:
            return
        for answer in answers:
            for error in answer.errors.values():
                if error.code is ErrorCode.BUDGET_SPENT:
                    raise BudgetExceeded(f"function {self.call.spec.key}: {error.message}")

    def finish(self) -> pb.StreamCounts:
        """End the stream after the last answer and compare the server's counts with those of the client.

        Raises AccountingMismatch if they differ. If the server is lost now, only this comparison is skipped.
        """
        if self._pending.rows:
            raise AccountingMismatch(f"function {self.call.spec.key}: {self._pending.rows} rows without an outcome")
        with self._lock:
            self._finishing = True
            self._connection.send_finish()
        try:
            while not self._done:
                self._receive_one()
            return self._accounts.counts
        finally:
            self.close()

    def report(self, spark_seconds: float) -> None:
        """Pass the statistics to the plan's reporter, once. `spark_seconds` is the time the task spent in Spark."""
        self._accounts.report(spark_seconds)

    def close(self) -> None:
        """Close the stream and give up the rows in flight. Safe to call twice."""
        done, self._done = self._done, True
        self._closed.set()
        self._connector.close()
        self._reconnecting.stop()
        self._connection.close(cancel=not done)
        self._pending.close()
        self._accounts.end_span("" if done or not self._pending.rows else "closed with rows in flight")

    # The methods below send.

    def _send(self, chunk: Chunk, waited: float = 0.0) -> list[Answer]:
        connection = self._connection
        payload = connection.payload(chunk)
        size = sum(map(len, payload)) if payload is not None else 0
        if size > connection.payload_bytes or len(chunk.rows) > connection.message_rows:
            return self._send_halves(chunk, size, waited)
        self.statistics.bytes_out += size
        chunk.sent_at = chunk.sent_at or self._clock()
        connection.send(chunk, payload, waited)
        self._pending.add(chunk)
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
        """The same error for every row of a chunk that is not in flight."""
        count = len(chunk.rows)
        self._accounts.refused(count)
        nulls = pa.nulls(count, self.call.result_type)
        return Answer(chunk.owner, chunk.rows, nulls, dict.fromkeys(range(count), error))

    # The methods below receive.

    def _receive_one(self) -> list[Answer]:
        """Receive one message and return its outcomes. Only results have some."""
        asked = self._clock()
        try:
            envelope, data = self._connection.read()
        except TransportLost as lost:
            return self._recover(lost, 0.0)
        except StreamError as error:
            if not error.retryable:
                raise
            return self._recover(error, error.retry_after or 0.0)
        finally:
            self.statistics.waiting_seconds += self._clock() - asked
        kind = envelope.WhichOneof("response")
        if kind == "progress":
            self._reconnecting.heard(envelope.progress)
            if envelope.progress.draining:
                self._connection.distrust()
        if kind == "result":
            with self._lock:
                return self._take(envelope.result, data)
        if kind == "finished":
            self._check_finished(envelope.finished)
            self._done = True
        elif kind != "progress":
            raise ProtocolViolation(f"the server sent {kind} in the middle of the stream")
        return []

    def _take(self, result: pb.Result, data: memoryview | None) -> list[Answer]:
        if data is not None and result.part:
            return self._take_part(result, data)
        answers, errors = self._pending.read(result, data, self._connection.schema, ordered=self.ordered)
        assert data is not None
        self._lost_at, self._losses = None, 0
        self._sizing.answered(result.rows)
        self._accounts.received(result, errors, len(data))
        return answers

    def _take_part(self, result: pb.Result, data: memoryview) -> list[Answer]:
        """Keep a part of a value until its answer. Only the answer resets the time since a server was lost."""
        if not self.call.takes_parts or not self.ordered or result.rows or result.errors or result.skipped:
            raise ProtocolViolation("a part of a value that was not asked for, or that answers rows")
        self.statistics.bytes_in += len(data)
        self._pending.add_part(result.first_row, result.part, data, self._connection.schema)
        return []

    def _answered(self, chunk: Chunk) -> None:
        self.statistics.answered(self._clock() - chunk.sent_at)

    def _check_finished(self, finished: pb.Finished) -> None:
        self._accounts.finish_connection(finished, self._connection.rows_sent, self._pending.rows)

    # The methods below change servers.

    def _reconnect(self, chunk: Chunk) -> Answer | None:
        """End a connection without rows in flight and open another, on the preferred server or the next one.

        Returns None on success, otherwise the refusal of `chunk`.
        """
        # If the server is lost now, only the comparison of counts is skipped.
        with contextlib.suppress(TransportLost, StreamError):
            self._end_connection()
        now = self._clock()
        opened = now + max(self.call.config.connect_seconds, self.call.timeout)
        try:
            connection = self._connector.connect(
                now + self._connection.options.timeout, opened, self._reconnecting.preferred
            )
        except (ServerUnavailable, StreamError) as problem:
            error = RowError(_code_of(problem), str(problem), attempts=0, retryable=True)
            return self._refused(chunk, error)
        self._connection = connection
        self._reconnecting.connected(connection)
        self._accounts.start_connection()
        self.statistics.reconnects += 1
        self._span.event("reconnect")
        return None

    def _end_connection(self) -> None:
        """Finish the connection and compare counts, as `finish` does for the last one. Safe to call twice."""
        connection = self._connection
        if connection.finished:
            return
        connection.send_finish()
        ended = False
        try:
            while not ended:
                envelope, _ = connection.read()
                if ended := envelope.HasField("finished"):
                    self._check_finished(envelope.finished)
        finally:
            connection.close(cancel=not ended)

    def _recover(self, problem: Exception, hint: float) -> list[Answer]:
        """Send the unanswered rows again on a new stream. The deadline is the timeout after the loss."""
        if self._done or self._finishing:
            self._done = True
            return []
        with self._lock:
            now = self._clock()
            self._lost_at = now if self._lost_at is None else self._lost_at
            deadline = self._lost_at + self._connection.options.timeout
            # The first time there is no pause. A server that accepts streams and then fails needs one.
            delay = 0.0 if self._connector.may_change() else hint
            pause = max(delay, backoff(self._losses - 1, self._uniform) if self._losses else 0.0)
            self._losses += 1
            self._span.event("server lost", rows=self._pending.rows, error=type(problem).__name__, pause=pause)
            self._connection.distrust(hint)
            self._connection.close(cancel=True)
            if now + pause >= deadline:
                return self._give_up(f"function {self.call.spec.key}: the server was lost: {problem}")
            try:
                self._closed.wait(pause)
                self._connection = self._connector.connect(deadline, deadline)
            except (ServerUnavailable, StreamError) as final:
                code = _code_of(final)
                return [] if self._done else self._give_up(f"{final} (the server was lost: {problem})", code)
            if self._done:  # closed meanwhile
                self._connection.close(cancel=True)
                return []
            self.statistics.replays += 1
            self._reconnecting.connected(self._connection, waiting=True)
            waited = self._clock() - self._lost_at
            self._span.event("replay", rows=self._pending.rows, waited=waited)
            return [answer for chunk in self._start_anew() for answer in self._send_again(chunk, waited, problem)]

    def _send_again(self, chunk: Chunk, waited: float, problem: Exception) -> list[Answer]:
        """Send rows of a lost server to the next one, unless they were replayed more than `max_replays` times."""
        most = self.call.config.max_replays
        if chunk.replays <= most:
            return self._send(chunk, waited)
        message = (
            f"function {self.call.spec.key}: the server was lost {chunk.replays} times with these rows in flight, and "
            f"max_replays is {most}; one of the rows may crash the server. The last error: {problem}"
        )
        return [self._refused(chunk, RowError(ErrorCode.SERVER_UNAVAILABLE, message, attempts=0, retryable=False))]

    def _give_up(self, problem: str, code: ErrorCode = ErrorCode.SERVER_UNAVAILABLE) -> list[Answer]:
        """Fail the rows in flight, because the deadline has passed without a server. The next rows try again."""
        self._lost_at, self._losses = None, 0
        self._span.event("gave up", rows=self._pending.rows)
        error = RowError(code, problem, attempts=0, retryable=True)
        return [self._refused(chunk, error) for chunk in self._start_anew()]

    def _start_anew(self) -> list[Chunk]:
        """Remove and return the chunks in flight.

        Call this only once there is a server or the rows have failed: until then, has_room() must not be true.
        """
        rest = self._pending.rest()
        self._pending = ChunksInFlight(self._answered)
        self._accounts.start_connection()
        return rest


def _code_of(problem: Exception) -> ErrorCode:
    """The code of rows for which there is no stream. Raises a refusal that is final."""
    if not isinstance(problem, StreamError):
        return ErrorCode.SERVER_UNAVAILABLE
    if not problem.retryable:
        raise problem
    return problem.code
