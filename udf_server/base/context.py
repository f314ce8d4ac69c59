"""The context that a function can get for each call."""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from remote_udf.raw_texts import read_texts
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.call_scope import StreamSpending, spend

__all__ = ["BatchContext", "CallContext", "StreamContext", "function_logger"]


def function_logger(function: str, version: str, **fields: object) -> "logging.LoggerAdapter[logging.Logger]":
    """The logger of a function, which adds the function and these fields to its messages."""
    named = {"function": f"{function}@{version}", **fields}
    return logging.LoggerAdapter(logging.getLogger(f"udf.{function}"), named)


@dataclass(frozen=True, slots=True)
class StreamContext:
    """The origin of the rows of one stream. It is the same for all of them.

    `operation_id` is the same in every task of a job and in every retry of a task. `micro_batch` is
    -1 outside of streaming queries.
    """

    function: str
    version: str
    operation_id: str = ""
    job: str = ""
    stage: int = -1
    partition: int = -1
    task_attempt: int = -1
    micro_batch: int = -1
    spending: StreamSpending = field(default_factory=StreamSpending, repr=False, compare=False)
    """What its calls have spent."""

    @classmethod
    def from_proto(
        cls, function: str, version: str, message: pb.CallContext, spending: StreamSpending
    ) -> "StreamContext":  # fmt: skip
        return cls(
            function,
            version,
            operation_id=message.operation_id,
            job=message.job,
            stage=message.stage,
            partition=message.partition,
            task_attempt=message.task_attempt,
            micro_batch=message.micro_batch,
            spending=spending,
        )


class _Call(Protocol):
    @property
    def function(self) -> str: ...

    @property
    def version(self) -> str: ...

    deadline: float

    @property
    def clock(self) -> Callable[[], float]: ...

    def _shares(self) -> Mapping[StreamSpending, float]: ...


class _CallMethods:
    """What contexts of one row and of many have."""

    __slots__ = ()

    @property
    def remaining(self: _Call) -> float:
        """The seconds until the deadline; negative after it."""
        return self.deadline - self.clock()

    def spend(self: _Call, **amounts: float) -> None:
        """Report what this call has really cost, by unit, such as `context.spend(tokens=812)`.

        `remote.summary` of the job, the web UI and the metric `udf_spent_total` show the sums. If a rate of the
        function's guard counts the unit, the amount replaces the estimate of `cost` when the call ends. Amounts of
        several reports are added. Call it within the call, also from its tasks and `asyncio.to_thread`.

        Args:
            **amounts: Amounts of at least 0. If a call has rows of several jobs, each bears the share of its rows.

        Raises:
            InvalidCost: An amount is not a number of at least 0.
        """
        spend(f"function {self.function}@{self.version}", amounts, self._shares())


# It is not frozen, because that takes four times as long to create, and there is one per row.
@dataclass(slots=True, eq=False)
class CallContext(_CallMethods):
    """The context of a call. Declare a parameter of this type to get it, and do not change it.

    `row` is the position of the row in its task's input; a vectorized call has `rows` rows, of which it is the first.
    `attempt` counts from 1. `deadline` is a reading of time.monotonic().
    """

    stream: StreamContext
    row: int
    rows: int
    attempt: int
    deadline: float
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    columns: Sequence[pa.Array] = field(default=(), repr=False)
    """The arguments of this call and of other calls, in the declared types."""
    offset: int = field(default=0, repr=False)
    """The position in `columns` at which this call's rows begin."""

    @property
    def function(self) -> str:
        return self.stream.function

    @property
    def version(self) -> str:
        return self.stream.version

    def _shares(self) -> Mapping[StreamSpending, float]:
        """What share of this call each stream bears."""
        return {self.stream.spending: 1.0}

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt of this row, also by retries, replays and repeated tasks.

        It differs between rows, and between calls of the same function with other arguments or in
        another stage. Equal calls of the same row may share a key, as they may share their
        effect. If `coalesce` comes after the call, a task has rows of several partitions: rows with equal
        arguments and the same position in their partitions then have one key, so use `repartition`. The key
        is stable if a repeated task gets its input in the same order, which Spark guarantees
        except after a shuffle without a sort. Computing it takes microseconds per row.
        """
        stream = self.stream
        place = f"{stream.stage}/{stream.micro_batch}/{stream.partition}/{self.row}"
        return f"{stream.operation_id}/{place}/{self.arguments_digest}"

    @property
    def arguments_digest(self) -> str:
        """A hexadecimal hash of the values of the arguments; equal values of equal types have the same hash."""
        hashed = hashlib.blake2b(digest_size=8)
        for column in self.columns:
            # Python values are hashed, because the bytes of an Arrow array under a null are not defined.
            array, _ = read_texts(column.slice(self.offset, self.rows))
            hashed.update(f"{array.type}{array.to_pylist()!r}".encode(errors="surrogatepass"))
        return hashed.hexdigest()

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that adds function, stage, partition and attempt of this call to its messages."""
        stream = self.stream
        return function_logger(
            stream.function, stream.version, job=stream.job, stage=stream.stage, partition=stream.partition,
            task_attempt=stream.task_attempt, row=self.row, attempt=self.attempt,
        )  # fmt: skip


class _Rows(Sequence[CallContext]):
    """The contexts of the rows of a call. Each is made when it is read."""

    def __init__(self, count: int, make: Callable[[int], CallContext]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self._make(each) for each in range(self._count)[place]]
        return self._make(range(self._count)[place])

    def __iter__(self) -> Iterator[CallContext]:
        return map(self._make, range(self._count))


@dataclass(slots=True, eq=False)
class BatchContext(_CallMethods):
    """The context of a call for many rows of one or several tasks. Declare a parameter of this type to get it.

    `rows` has the CallContext of each row: its task, job, stage, partition and idempotency key. `attempt` counts from
    1. `deadline` is a reading of time.monotonic(): the latest deadline of the rows.
    """

    function: str
    version: str
    rows: Sequence[CallContext]
    attempt: int
    deadline: float
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _borne: Mapping[StreamSpending, float] | Callable[[], Mapping[StreamSpending, float]] = field(
        default_factory=dict, repr=False
    )
    """What share of this call each stream bears, or what computes it when it is needed first."""

    @classmethod
    def of(
        cls, stream: StreamContext, rows: int, attempt: int, deadline: float, clock: Callable[[], float],
        make: Callable[[int], CallContext], shares: Callable[[], Mapping[StreamSpending, float]] | None = None,
    ) -> "BatchContext":  # fmt: skip
        """`make` returns the context of the row at a position in the call.

        `shares` computes what share of the call each stream bears; without it, `stream` bears all of it.
        """
        borne = {stream.spending: 1.0} if shares is None else shares
        return cls(stream.function, stream.version, _Rows(rows, make), attempt, deadline, clock, borne)

    def _shares(self) -> Mapping[StreamSpending, float]:
        if callable(self._borne):
            self._borne = self._borne()
        return self._borne

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that adds function, number of rows and attempt of this call to its messages."""
        return function_logger(self.function, self.version, rows=len(self.rows), attempt=self.attempt)
