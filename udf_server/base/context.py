"""What a function can know about the call it answers."""

import hashlib
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from remote_udf.v1 import message_pb2 as pb

__all__ = ["CallContext", "StreamContext"]


@dataclass(frozen=True, slots=True)
class StreamContext:
    """Where the rows of one stream come from; the same for all of them.

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

    @classmethod
    def from_proto(cls, function: str, version: str, message: pb.CallContext) -> "StreamContext":
        return cls(
            function,
            version,
            operation_id=message.operation_id,
            job=message.job,
            stage=message.stage,
            partition=message.partition,
            task_attempt=message.task_attempt,
            micro_batch=message.micro_batch,
        )


# Not frozen: that would quadruple the time it takes to make one, and one is made for every row.
@dataclass(slots=True, eq=False)
class CallContext:
    """One call of a function: declare a parameter of this type to get it. Made for reading only.

    `row` is the position of the row in its task's input, or of the first row of a vectorized call,
    which has `rows` of them. `attempt` counts from 1. `deadline` is a reading of time.monotonic().
    """

    stream: StreamContext
    row: int
    rows: int
    attempt: int
    deadline: float
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    columns: Sequence[pa.Array] = field(default=(), repr=False)
    """The arguments of this call and of others beside it, in the types the function declared."""
    offset: int = field(default=0, repr=False)
    """Where in `columns` this call's rows begin."""

    @property
    def function(self) -> str:
        return self.stream.function

    @property
    def version(self) -> str:
        return self.stream.version

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this row: retries, replays on another server, repeated tasks.

        Different for another row, and for a call of the same function with other arguments or in
        another stage. So an equal call of the same row may share its key, as it may share its
        effect. It holds as long as a repeated task sees its input in the same order, which Spark keeps
        for everything but a shuffle without a sort. Making it takes microseconds per row.
        """
        stream = self.stream
        place = f"{stream.stage}/{stream.micro_batch}/{stream.partition}/{self.row}"
        return f"{stream.operation_id}/{place}/{self.arguments_digest}"

    @property
    def arguments_digest(self) -> str:
        """Hexadecimal hash over the values of the arguments: equal for equal values of equal types."""
        hashed = hashlib.blake2b(digest_size=8)
        for column in self.columns:
            # As Python values: Arrow's own bytes differ with what happens to stand under a null.
            values = column.slice(self.offset, self.rows).to_pylist()
            hashed.update(f"{column.type}{values!r}".encode(errors="surrogatepass"))
        return hashed.hexdigest()

    @property
    def remaining(self) -> float:
        """Seconds until the deadline; negative after it."""
        return self.deadline - self.clock()

    @property
    def logger(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger that knows function, stage, partition and attempt of this call."""
        stream = self.stream
        fields = {
            "function": f"{stream.function}@{stream.version}",
            "job": stream.job,
            "stage": stream.stage,
            "partition": stream.partition,
            "task_attempt": stream.task_attempt,
            "row": self.row,
            "attempt": self.attempt,
        }
        return logging.LoggerAdapter(logging.getLogger(f"udf.{stream.function}"), fields)
