"""Outcomes of rows as Result messages, cut so that each fits."""

import collections
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from remote_udf.arrow import BatchWriter
from remote_udf.errors import ErrorCode
from remote_udf.functions import VALUE
from remote_udf.messages import encode
from remote_udf.outcomes import RowError, write_errors
from remote_udf.shared_memory import SharedMemory
from remote_udf.v1 import message_pb2 as pb

__all__ = ["Emit", "Output", "OutputWriter", "Taken"]

ROW = "row"
NOTHING = (0, 0, 0)
_HEADROOM = 4096
"""Bytes left for the envelope when a payload is measured against the message limit."""


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
    """Bytes, of which some may be in shared memory."""
    calls: int = 0
    """Calls of the function that led to these outcomes and are in no earlier output."""
    retries: int = 0
    """Those of them that repeat a call that failed."""
    early: bool = False
    """It leaves before its call returns, and takes room that the function waits for."""

    @property
    def failed(self) -> int:
        return sum(self.codes.values())


Emit = Callable[[Output], None]
"""Takes an output on the server's event loop."""


class Taken(NamedTuple):
    """Outcomes of consecutive rows that are sent. Errors and parts are indexed like the values."""

    first: int
    values: pa.Array
    errors: Mapping[int, RowError]
    parts: Mapping[int, int]
    """Row to the number of parts of its value that were sent before."""
    calls: int = 0
    retries: int = 0
    """As in Output."""


class OutputWriter:
    """Writes Results of one stream, from any thread."""

    def __init__(
        self, result: pa.DataType, *, ordered: bool, max_message_bytes: int, shared: SharedMemory | None = None,
        what: str = "the value of this row takes",
    ) -> None:  # fmt: skip
        self._what = what
        self._ordered = ordered
        self._shared = shared
        self._limit = max_message_bytes - _HEADROOM
        value = pa.field(VALUE, result)
        self._schema = pa.schema([value] if ordered else [pa.field(ROW, pa.int64(), nullable=False), value])
        self._writer = BatchWriter(self._schema)

    def write(
        self,
        first_row: int,
        values: pa.Array,
        errors: Mapping[int, RowError],
        skipped: int,
        rows: Sequence[int] | None = None,
        *,
        calls: int = 0,
        retries: int = 0,
    ) -> list[Output]:
        """The Results of some rows of the batch that starts at `first_row`.

        `values` has one entry per row, null where it failed; `errors` is indexed like it. With
        unordered output `rows` are the positions of the rows in the stream; otherwise they are all
        rows of the batch. A value too large for a message becomes an error.
        """
        return self.write_taken(first_row, Taken(0, values, errors, {}, calls, retries), skipped, rows)

    def write_taken(
        self, batch: int, taken: Taken, skipped: int = 0, rows: Sequence[int] | None = None, *, early: bool = False
    ) -> list[Output]:
        """The same for rows that do not begin where their batch does. A row with parts begins a Result."""
        outputs = []
        starts = sorted({0, *taken.parts})
        for start, end in itertools.pairwise([*starts, len(taken.values)]):
            errors = {row - start: error for row, error in taken.errors.items() if start <= row < end}
            counts = (skipped, taken.calls, taken.retries) if start == 0 else NOTHING
            outputs += self._write(
                _Piece(
                    batch, batch + taken.first + start, taken.values.slice(start, end - start), errors,
                    counts, rows and rows[start:end], taken.parts.get(start, 0), early,
                )
            )  # fmt: skip
        return outputs

    def write_part(self, batch: int, row: int, part: int, value: pa.Array) -> Output | None:
        """A part of the value of one row of the batch; None if it is too large for a message."""
        data = self._writer.write(pa.RecordBatch.from_arrays([value], schema=self._schema))
        if sum(map(len, data)) > self._limit:
            return None
        response = pb.ExecuteResponse(result=pb.Result(first_row=row, part=part))
        message = encode(response, data, self._shared)
        return Output(message, batch, 0, 0, {}, len(message) + response.shared.bytes, early=True)

    @property
    def limit(self) -> int:
        """What the data of one message may take."""
        return self._limit

    def _write(self, piece: "_Piece") -> list[Output]:
        values, errors = piece.values, piece.errors
        columns = [values] if self._ordered else [pa.array(piece.rows, pa.int64()), values]
        data = self._writer.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        failed = write_errors(errors) if errors else b""
        count, size = len(values), sum(map(len, data))
        if size + len(failed) > self._limit:
            if count > 1:
                low, high = piece.halves()
                return [*self._write(low), *self._write(high)]
            if not errors:
                error = RowError(ErrorCode.RESULT_TOO_LARGE, self._too_large(size), attempts=1)
                return self._write(replace(piece, values=pa.nulls(1, values.type), errors={0: error}))
        skipped, calls, retries = piece.counts
        result = pb.Result(
            first_row=piece.first_row, rows=count, skipped=skipped, parts=piece.parts, calls=calls, retries=retries
        )
        codes: dict[str, int] = {}
        if errors:
            result.errors = failed
            codes = dict(collections.Counter(error.code.value for error in errors.values()))
        response = pb.ExecuteResponse(result=result)
        message = encode(response, data, self._shared)
        size = len(message) + response.shared.bytes
        return [Output(message, piece.batch, count, skipped, codes, size, calls, retries, piece.early)]

    def _too_large(self, size: int) -> str:
        return f"{self._what} {size} bytes; a message holds {self._limit}"


@dataclass(frozen=True, slots=True)
class _Piece:
    """Outcomes of consecutive rows of one batch."""

    batch: int
    first_row: int
    values: pa.Array
    errors: Mapping[int, RowError]
    counts: tuple[int, int, int]
    """Skipped rows, calls, retries. Only their sums matter; they stay with the first half, as the parts of the first
    row do."""
    rows: Sequence[int] | None
    parts: int
    early: bool

    def halves(self) -> "tuple[_Piece, _Piece]":
        half = len(self.values) // 2
        low = {row: error for row, error in self.errors.items() if row < half}
        high = {row - half: error for row, error in self.errors.items() if row >= half}
        return (
            replace(self, values=self.values.slice(0, half), errors=low, rows=self.rows and self.rows[:half]),
            replace(
                self, first_row=self.first_row + half, values=self.values.slice(half), errors=high, counts=NOTHING,
                rows=self.rows and self.rows[half:], parts=0,
            ),
        )  # fmt: skip
