"""Writes outcomes of rows as Result messages, each of which is within the message limit."""

import collections
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from remote_udf.arrow import BatchWriter
from remote_udf.errors import ErrorCode
from remote_udf.functions import VALUE
from remote_udf.messages import encode
from remote_udf.outcomes import RowError, write_errors
from remote_udf.shared_memory import SharedMemory
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.call_scope import StreamSpending
from udf_server.runners.room import Room

__all__ = ["Emit", "Mask", "Output", "OutputWriter", "Taken", "error_bytes"]

ROW = "row"
NOTHING = (0, 0, 0)
ERROR_BYTES = 100
TEXT = 200
"""Characters of a message that are shown to operators."""
_HEADROOM = 4096
"""Bytes left for the envelope when a payload is measured against the message limit. Most of it is for what calls have
spent: MOST_UNITS amounts and one more, whose names have UNIT_BYTES."""


@dataclass(frozen=True, slots=True)
class Output:
    """One encoded Result message and what it accounts for: rows of one batch."""

    message: bytes
    batch: int
    """First row of the batch."""
    rows: int
    skipped: int
    codes: Mapping[str, int]
    """Failed rows by error code."""
    size: int
    """Size in bytes, including bytes in shared memory."""
    calls: int = 0
    """Calls of the function that led to these outcomes and are in no earlier output."""
    retries: int = 0
    """The number of those calls that repeat a call that failed."""
    cached: tuple[int, int, int] = NOTHING
    """Rows of the cache: hits, misses, and those that share the call of an equal row."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """The begin of the last message of each error code."""

    @property
    def failed(self) -> int:
        return sum(self.codes.values())


Emit = Callable[[Output], None]
"""Takes an output on the server's event loop."""
Mask = NDArray[np.bool_]


def error_bytes(error: RowError) -> int:
    """The approximate size of an error in bytes."""
    return ERROR_BYTES + len(error.message) + len(error.traceback)


class Taken(NamedTuple):
    """Outcomes of consecutive rows, to be sent. Errors and parts have the indexes of the values."""

    first: int
    values: pa.Array
    errors: Mapping[int, RowError]
    parts: Mapping[int, int]
    """Row to the number of parts of its value that were sent before."""
    calls: int = 0
    retries: int = 0
    """As in Output."""
    skipped: Mask | None = None
    """True for rows that were not called; None if all were called."""
    cached: tuple[int, int, int] = NOTHING
    """As in Output."""

    def between(self, start: int, end: int) -> "Taken":
        """Some of the rows. Only sums of calls, retries and rows of the cache matter: the first row has them all."""
        if start == 0 and end == len(self.values):
            return self
        if len(self.errors) < end - start:
            failed = [row for row in self.errors if start <= row < end]
        else:
            failed = [row for row in range(start, end) if row in self.errors]
        return Taken(
            self.first + start, self.values.slice(start, end - start),
            {row - start: self.errors[row] for row in failed},
            {row - start: count for row, count in self.parts.items() if start <= row < end},
            0 if start else self.calls, 0 if start else self.retries,
            None if self.skipped is None else self.skipped[start:end], NOTHING if start else self.cached,
        )  # fmt: skip

    def cut(self, size: int) -> "Iterator[Taken]":
        """The same outcomes in pieces of about `size` bytes, in order."""
        rows = len(self.values)
        held = self.values.nbytes + sum(map(error_bytes, self.errors.values()))
        step = max(rows * size // max(held, 1), 1)
        if rows <= step:
            yield self
            return
        for start in range(0, rows, step):
            yield self.between(start, min(start + step, rows))


class OutputWriter:
    """Writes Results of one stream, from any thread.

    Each Result takes its bytes from the stream's room; code that sends or discards it must return them.
    """

    def __init__(
        self, result: pa.DataType, *, ordered: bool, max_message_bytes: int, room: Room | None = None,
        shared: SharedMemory | None = None, what: str = "the value of this row takes",
        spending: StreamSpending | None = None,
    ) -> None:  # fmt: skip
        """`spending` has what the calls of the stream spend. Results report it."""
        self._what = what
        self._spending = spending or StreamSpending()
        self._room = room or Room()
        self.ordered = ordered
        self._shared = shared
        self.limit = max_message_bytes - _HEADROOM
        """Maximum size of the data of one message, in bytes."""
        self.piece_bytes = min(self._room.piece_bytes, self.limit // 2)
        """The approximate number of bytes to send together."""
        value = pa.field(VALUE, result)
        self._schema = pa.schema([value] if ordered else [pa.field(ROW, pa.int64(), nullable=False), value])
        self._writer = BatchWriter(self._schema)

    def write(self, batch: int, taken: Taken, rows: Sequence[int] | None = None) -> list[Output]:
        """The Results of some rows of the batch that starts at `batch`.

        Values have one entry per row, which is null if the row failed. With unordered output, `rows` has the positions
        of the rows in the stream; otherwise they are consecutive. If a row has parts, a new Result begins with it. If
        a value is too large for a message, its row gets an error.
        """
        starts = sorted({0, *taken.parts})
        return self._write_between(batch, taken, rows, [*starts, len(taken.values)])

    def write_pieces(self, batch: int, taken: Taken, rows: Sequence[int] | None = None) -> Iterator[Output]:
        """The Results as `write` makes them, one piece of `piece_bytes` after the other."""
        done = 0
        for piece in taken.cut(self.piece_bytes):
            start, done = done, done + len(piece.values)
            yield from self.write(batch, piece, rows and rows[start:done])

    def write_part(self, batch: int, row: int, part: int, value: pa.Array) -> Output | None:
        """A part of the value of one row of the batch; None if it is too large for a message."""
        data = self._writer.write(pa.RecordBatch.from_arrays([value], schema=self._schema))
        if sum(map(len, data)) > self.limit:
            return None
        response = pb.ExecuteResponse(result=pb.Result(first_row=row, part=part))
        message = encode(response, data, self._shared)
        return self._counted(Output(message, batch, 0, 0, {}, len(message) + response.shared.bytes))

    def _write_between(self, batch: int, taken: Taken, rows: Sequence[int] | None, ends: Sequence[int]) -> list[Output]:
        outputs = []
        for start, end in itertools.pairwise(ends):
            outputs += self._write(batch, taken.between(start, end), rows and rows[start:end])
        return outputs

    def _write(self, batch: int, taken: Taken, rows: Sequence[int] | None) -> list[Output]:
        values, errors = taken.values, taken.errors
        columns = [values] if self.ordered else [_positions(rows), values]
        data = self._writer.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        failed = write_errors(errors) if errors else b""
        count, size = len(values), sum(map(len, data))
        if size + len(failed) > self.limit:
            if count > 1:
                return self._write_between(batch, taken, rows, [0, count // 2, count])
            if not errors:
                why = f"{self._what} {size} bytes; a message holds {self.limit}"
                error = RowError(ErrorCode.RESULT_TOO_LARGE, why, attempts=1)
                return self._write(batch, taken._replace(values=pa.nulls(1, values.type), errors={0: error}), rows)
        calls, retries, cached = taken.calls, taken.retries, taken.cached
        skipped = 0 if taken.skipped is None else int(np.count_nonzero(taken.skipped))
        result = pb.Result(
            first_row=batch + taken.first, rows=count, skipped=skipped, parts=taken.parts.get(0, 0), calls=calls,
            retries=retries,
        )  # fmt: skip
        if any(cached):
            result.cache_hits, result.cache_misses, result.cache_shared = cached
        for unit, amount in self._spending.take().items():
            result.spent[unit] = amount
        codes: dict[str, int] = {}
        texts: dict[str, str] = {}
        if errors:
            result.errors = failed
            codes = dict(collections.Counter(error.code.value for error in errors.values()))
            texts = {error.code.value: error.message[:TEXT] for error in errors.values()}
        response = pb.ExecuteResponse(result=result)
        message = encode(response, data, self._shared)
        size = len(message) + response.shared.bytes
        return [self._counted(Output(message, batch, count, skipped, codes, size, calls, retries, cached, texts))]

    def _counted(self, output: Output) -> Output:
        self._room.take(output.size)
        return output


def _positions(rows: Sequence[int] | None) -> pa.Array:
    # Arrow would read a range number by number.
    return pa.array(np.arange(rows.start, rows.stop) if isinstance(rows, range) else rows, pa.int64())
