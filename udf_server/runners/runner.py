"""Runner is the base class of the runners, which call one function for the rows of one stream."""

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random

import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.arrow import read_columns
from remote_udf.durations import format_seconds
from remote_udf.effective_options import ScalarOptions
from remote_udf.errors import ErrorCode
from remote_udf.outcomes import RowError
from remote_udf.raw_texts import raw
from udf_server.base.call_scope import EmptyResult
from udf_server.base.context import CallContext, StreamContext
from udf_server.base.fairness import Party
from udf_server.base.metrics import FunctionMetrics
from udf_server.declaring.functions import Function
from udf_server.hosting.hosted_function import HostedFunction
from udf_server.runners.batches import RowBatch
from udf_server.runners.outputs import Emit, OutputWriter
from udf_server.runners.retries import Attempts, RetryPolicy
from udf_server.runners.room import Room
from udf_server.runners.selection import Selection
from udf_server.values.codecs import Codec

__all__ = ["FLUSH_SECONDS", "Arguments", "InputBatch", "Runner", "RunnerSetup", "cast_columns", "timeout_error"]

FLUSH_SECONDS = 0.01
"""How long completed rows wait to be sent together with others, unless the stream has another time."""
TICKS_PER_TIMEOUT = 20
"""Deadlines are checked this many times per timeout, so a row may exceed its deadline by that fraction of it."""
TRACEBACKS_PER_BATCH = 3
"""Number of failed rows of a batch that have a traceback. Formatting one costs as much as many calls."""


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One Batch message. `data` has the Arrow bytes; it is None if the function is called without arguments."""

    first_row: int
    rows: int
    data: memoryview | None
    waited: float = 0.0
    selection: Selection | None = None
    """The rows to call; None for all of them. It replaces `data`."""

    @property
    def calls(self) -> int:
        """Number of rows to call."""
        return self.rows if self.selection is None else len(self.selection.called)


@dataclass(frozen=True)
class Arguments:
    """The schema of a stream's batches, and the type that each column is converted to."""

    schema: pa.Schema
    targets: Sequence[pa.DataType]

    def columns(self, batch: InputBatch) -> list[pa.Array]:
        """The batch's columns in the types that the function declares. Raises ProtocolViolation.

        A column that has a text that is not UTF-8 has RAW in place of string.
        """
        if batch.selection is not None:
            return list(batch.selection.columns)
        if batch.data is None:
            return []
        return cast_columns(read_columns(batch.data, self.schema, batch.rows, raw_texts=True), self.targets)


def cast_columns(columns: Sequence[pa.Array], targets: Sequence[pa.DataType]) -> list[pa.Array]:
    """The columns in wider types, as defined by `remote_udf.types.accepts`."""
    return [
        column if column.type == target else _cast(column, target)
        for column, target in zip(columns, targets, strict=True)
    ]


def _cast(column: pa.Array, target: pa.DataType) -> pa.Array:
    # Spark's own implicit cast of a bigint to floating point also rounds.
    try:
        return pc.cast(column, options=pc.CastOptions(target_type=target, allow_float_truncate=True))
    except pa.ArrowInvalid:
        # Nothing else of a column that was read fails: it has a text that is not UTF-8.
        return pc.cast(column, options=pc.CastOptions(target_type=raw(target), allow_float_truncate=True))


@dataclass(frozen=True)
class RunnerSetup:
    """What a runner needs to know about its stream."""

    hosted: HostedFunction
    function: Function
    """The function to call: the hosted one, or one that was bound for this stream."""
    context: StreamContext
    options: ScalarOptions
    arguments: Arguments
    writer: OutputWriter
    emit: Emit
    fail: Callable[[BaseException], None]
    """Ends the stream. Call it for an error of the server or the peer, not of a row."""
    post: Callable[..., None]
    """Calls a function on the server's event loop, from any thread."""
    spawn: Callable[[Coroutine[None, None, None]], object]
    """Runs a coroutine on the server's event loop until the stream ends."""
    metrics: FunctionMetrics
    room: Room = field(default_factory=Room)
    """The bytes of unsent results. If it is full, no new row or call may begin."""
    takes_parts: bool = False
    """Whether results of functions that emit may be sent in parts while their call runs."""
    flush_seconds: Callable[[], float] = lambda: FLUSH_SECONDS
    """With unordered output, completed rows wait about this time to be sent with others. Safe to call on any thread."""
    clock: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=Random)
    party: Party = field(default_factory=Party)
    """The party that the stream belongs to, for fairness."""
    began: Callable[[int], None] = lambda first_row: None
    """Call it when this thread or task calls the function for rows of the batch that begins at `first_row`.

    It may be called several times per batch.
    """
    retried: Callable[[int, int, int, BaseException], None] = lambda batch, row, attempts, error: None
    """Call it, from any thread, before a row of the batch is called again; `attempts` counts the failed attempts."""

    def call_context(
        self, row: int, rows: int, attempt: int, deadline: float, columns: Sequence[pa.Array], offset: int
    ) -> CallContext:
        """The context of a call for `rows` rows from position `row` on; its arguments begin at `offset`."""
        return CallContext(self.context, row, rows, attempt, deadline, self.clock, columns, offset)

    def timeout_error(self, attempts: int, last: str = "") -> RowError:
        """The outcome of a row whose deadline passed during or after this many calls."""
        return timeout_error(self.options.timeout, attempts, last)


def timeout_error(timeout: float, attempts: int, last: str = "") -> RowError:
    """The outcome of a row whose deadline passed during or after this many calls."""
    if not attempts:
        message = f"timed out: the guard or the budget of the function allowed no call within {format_seconds(timeout)}"
        return RowError(ErrorCode.TIMEOUT, message, 0, True)
    after = f" after {attempts} attempts" if attempts > 1 else ""
    because = f"; the last one failed with {last}" if last else ""
    limit = format_seconds(timeout)
    return RowError(ErrorCode.TIMEOUT, f"timed out: no result within {limit}{after}{because}", attempts, True)


class Runner(ABC):
    """Calls the function for the rows passed to `feed`, under the stream's options.

    Call the methods on the server's event loop; they never block. Every row leads to exactly one
    row in an Output, unless the stream fails or is cancelled. The runner does not limit its input: the
    stream feeds no more than its limits allow. `setup.room` limits the unsent results.
    """

    def __init__(self, setup: RunnerSetup) -> None:
        self.setup = setup
        self.function = setup.function
        self.options = setup.options
        self.retry = RetryPolicy(setup.options, setup.random)
        self.tick_seconds = min(max(setup.options.timeout / TICKS_PER_TIMEOUT, 0.001), 0.25)
        """Call `tick` at this interval while rows are unfinished."""

    @abstractmethod
    def feed(self, batch: InputBatch) -> None:
        """Accept rows. Their outcomes are emitted as they become available."""

    @abstractmethod
    def tick(self) -> None:
        """Check deadlines."""

    @abstractmethod
    def cancel(self) -> None:
        """Start no more calls, cancel what can be cancelled and emit nothing more. Safe to call twice."""

    def drop_waiting(self) -> None:  # noqa: B027 - most runners have nothing to do
        """Discard the rows that have not begun. Their selections were dropped.

        Runners that take each row from its selection need do nothing: they find none.
        """

    @functools.cached_property
    def _codecs(self) -> list[Codec]:
        """The codecs of the arguments, for functions that are called row by row."""
        return [self.function.codec_for(*target) for target in enumerate(self.setup.arguments.targets)]

    def timeout_of(self, batch: InputBatch) -> float:
        """Seconds left for the rows of the batch. The time spent on a server that was lost is subtracted."""
        return self.options.timeout - batch.waited

    def row_batch(self, batch: InputBatch) -> RowBatch:
        """The rows of the batch with decoded arguments. Raises ProtocolViolation."""
        columns = self.setup.arguments.columns(batch)
        return RowBatch(
            self.function,
            self._codecs,
            columns,
            batch.first_row,
            batch.rows,
            self.timeout_of(batch),
            self.setup.room,
            batch.selection,
        )

    def attempts(self, batch: RowBatch, began: float) -> Attempts:
        """The attempts at a row of the batch; the first attempt began at `began`."""
        return Attempts(self.retry, began + batch.timeout, self.setup.clock, self.setup.timeout_error)

    def delay(self, batch: RowBatch, index: int, attempts: Attempts, error: BaseException) -> float | None:
        """Seconds until the next attempt at the row; None if there is none, because it has its outcome now."""
        after = attempts.after(error, with_traceback=batch.failed < TRACEBACKS_PER_BATCH)
        if isinstance(after, RowError):
            batch.fail(index, after)
        elif isinstance(after, EmptyResult):
            batch.values[index] = after.value
        else:
            return after
        return None

    def begin_attempt(self, batch: RowBatch, index: int, attempts: Attempts, error: BaseException) -> None:
        """Count one more attempt at the row, after one that failed."""
        self.setup.retried(batch.first_row, batch.first_row + index, attempts.made, error)
        attempts.made += 1
        batch.attempts[index] = attempts.made
