"""Runner: calls one function for the rows of one stream. What all of them share."""

import functools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from remote_udf.arrow import read_columns
from remote_udf.durations import format_seconds
from remote_udf.errors import ErrorCode
from remote_udf.options import ScalarOptions
from remote_udf.outcomes import RowError
from udf_server.base.context import CallContext, StreamContext
from udf_server.base.fairness import Party
from udf_server.base.functions import Function
from udf_server.base.metrics import FunctionMetrics
from udf_server.base.values import Codec
from udf_server.hosting.function_host import HostedFunction
from udf_server.runners.batches import RowBatch
from udf_server.runners.outputs import Emit, OutputWriter
from udf_server.runners.retries import Attempts, RetryPolicy
from udf_server.runners.room import Room

__all__ = ["Arguments", "InputBatch", "Runner", "RunnerSetup", "cast_columns"]

TICKS_PER_TIMEOUT = 20
"""How finely deadlines are watched: a row may outlive its own by one part in this many."""
TRACEBACKS_PER_BATCH = 3
"""Failed rows of a batch that carry a traceback; formatting one costs as much as many calls."""


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One Batch message: `data` is the Arrow bytes, or None for a function called without arguments."""

    first_row: int
    rows: int
    data: memoryview | None
    waited: float = 0.0


@dataclass(frozen=True)
class Arguments:
    """What a stream sends: the schema of its batches, and the type each column is converted to."""

    schema: pa.Schema
    targets: Sequence[pa.DataType]

    def columns(self, batch: InputBatch) -> list[pa.Array]:
        """The batch's columns in the types the function declared. Raises ProtocolViolation."""
        if batch.data is None:
            return []
        return cast_columns(read_columns(batch.data, self.schema, batch.rows), self.targets)


def cast_columns(columns: Sequence[pa.Array], targets: Sequence[pa.DataType]) -> list[pa.Array]:
    """Columns in wider types; `remote_udf.types.accepts` says which those are."""
    return [
        # Not "safe" towards floating point: Spark's own implicit cast of a bigint rounds as well.
        column if column.type == target else pc.cast(column, target, safe=not pa.types.is_floating(target))
        for column, target in zip(columns, targets, strict=True)
    ]


@dataclass(frozen=True)
class RunnerSetup:
    """Everything a runner needs to know about its stream."""

    hosted: HostedFunction
    function: Function
    """What is called for each row: the hosted function, or one made of it for this stream."""
    context: StreamContext
    options: ScalarOptions
    arguments: Arguments
    writer: OutputWriter
    emit: Emit
    fail: Callable[[BaseException], None]
    """Ends the stream: the server or the peer is at fault, not a row."""
    post: Callable[..., None]
    """Calls something on the server's event loop, from any thread."""
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    """Runs a coroutine on the server's event loop for as long as the stream lives."""
    metrics: FunctionMetrics
    room: Room = field(default_factory=Room)
    """What results take that were not sent. Whoever makes more of them waits for room."""
    takes_parts: bool = False
    """Results of functions that emit may leave while their call runs, in parts."""
    clock: Callable[[], float] = time.monotonic
    random: Random = field(default_factory=Random)
    party: Party = field(default_factory=Party)
    """Who the stream works for."""
    began: Callable[[int], None] = lambda first_row: None
    """This thread, or task, calls the function for rows of the batch that begins there; more than once."""
    retried: Callable[[int, int, int, BaseException], None] = lambda batch, row, attempts, error: None
    """A row of that batch is called again after this many attempts, the last of which failed. From any thread."""


class Runner(ABC):
    """Calls the function for the rows it is fed, under the stream's options.

    Methods are called on the server's event loop and never block. Every row fed leads to exactly one
    row in an Output, unless the stream fails or is cancelled. What is fed is not bounded here: the
    stream feeds no more than its limits allow. What it makes of that waits for room in `setup.room`.
    """

    def __init__(self, setup: RunnerSetup) -> None:
        self.setup = setup
        self.function = setup.function
        self.options = setup.options
        self.retry = RetryPolicy(setup.options, setup.random)
        self.tick_seconds = min(max(setup.options.timeout / TICKS_PER_TIMEOUT, 0.001), 0.25)
        """How often `tick` wants to be called while rows are unfinished."""

    @abstractmethod
    def feed(self, batch: InputBatch) -> None:
        """Takes rows; their outcomes are emitted as they are known."""

    @abstractmethod
    def tick(self) -> None:
        """Looks after deadlines."""

    @abstractmethod
    def cancel(self) -> None:
        """Starts no more calls, cancels what can be cancelled and emits nothing any more. Safe to call twice."""

    @functools.cached_property
    def _codecs(self) -> list[Codec]:
        """Of the arguments, for functions that are called row by row."""
        return [self.function.codec_for(*target) for target in enumerate(self.setup.arguments.targets)]

    def timeout_of(self, batch: InputBatch) -> float:
        """Seconds that are left to rows of the batch, which have waited elsewhere before."""
        return self.options.timeout - batch.waited

    def row_batch(self, batch: InputBatch) -> RowBatch:
        """The rows of the batch, their arguments decoded. Raises ProtocolViolation."""
        columns = self.setup.arguments.columns(batch)
        return RowBatch(
            self.function, self._codecs, columns, batch.first_row, batch.rows, self.timeout_of(batch), self.setup.room
        )

    def attempts(self, batch: RowBatch, began: float) -> Attempts:
        """The attempts at a row of the batch whose first one began then."""
        return Attempts(self.retry, began + batch.timeout, self.setup.clock, self.timeout_error)

    def begin_attempt(self, batch: RowBatch, index: int, attempts: Attempts, error: BaseException) -> None:
        """Counts one more attempt at the row, after one that failed."""
        self.setup.retried(batch.first_row, batch.first_row + index, attempts.made, error)
        attempts.made += 1
        batch.attempts[index] = attempts.made

    def call_context(
        self, row: int, rows: int, attempt: int, deadline: float, columns: Sequence[pa.Array], offset: int
    ) -> CallContext:
        """The context of a call for `rows` rows from position `row` on; its arguments begin at `offset`."""
        return CallContext(self.setup.context, row, rows, attempt, deadline, self.setup.clock, columns, offset)

    def timeout_error(self, attempts: int, last: str = "") -> RowError:
        """The outcome of a row whose deadline passed during or after this many calls."""
        limit = format_seconds(self.options.timeout)
        after = f" after {attempts} attempts" if attempts > 1 else ""
        because = f"; the last one failed with {last}" if last else ""
        return RowError(ErrorCode.TIMEOUT, f"timed out: no result within {limit}{after}{because}", attempts, True)
