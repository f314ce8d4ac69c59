"""Outcomes of rows as Result messages, cut so that each fits."""

import collections
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from remote_udf.arrow import BatchWriter
from remote_udf.errors import ErrorCode
from remote_udf.functions import VALUE
from remote_udf.messages import encode
from remote_udf.outcomes import RowError, write_errors
from remote_udf.shared_memory import SharedMemory
from remote_udf.v1 import message_pb2 as pb

__all__ = ["Emit", "Output", "OutputWriter"]

ROW = "row"
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

    @property
    def failed(self) -> int:
        return sum(self.codes.values())


Emit = Callable[[Output], None]
"""Takes an output on the server's event loop."""


class OutputWriter:
    """Writes Results of one stream, from any thread."""

    def __init__(
        self, result: pa.DataType, *, ordered: bool, max_message_bytes: int, shared: SharedMemory | None = None
    ) -> None:
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
    ) -> list[Output]:
        """The Results of some rows of the batch that starts at `first_row`.

        `values` has one entry per row, null where it failed; `errors` is indexed like it. With
        unordered output `rows` are the positions of the rows in the stream; otherwise they are all
        rows of the batch. A value too large for a message becomes an error.
        """
        return self._write(first_row, first_row, values, errors, skipped, rows)

    def _write(
        self,
        batch: int,
        first_row: int,
        values: pa.Array,
        errors: Mapping[int, RowError],
        skipped: int,
        rows: Sequence[int] | None,
    ) -> list[Output]:
        columns = [values] if self._ordered else [pa.array(rows, pa.int64()), values]
        data = self._writer.write(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        failed = write_errors(errors) if errors else b""
        count, size = len(values), sum(map(len, data))
        if size + len(failed) > self._limit:
            if count > 1:
                return self._halves(batch, first_row, values, errors, skipped, rows)
            if not errors:
                error = RowError(ErrorCode.RESULT_TOO_LARGE, self._too_large(size), attempts=1)
                return self._write(batch, first_row, pa.nulls(1, values.type), {0: error}, skipped, rows)
        result = pb.Result(first_row=first_row, rows=count, skipped=skipped)
        codes: dict[str, int] = {}
        if errors:
            result.errors = failed
            codes = dict(collections.Counter(error.code.value for error in errors.values()))
        response = pb.ExecuteResponse(result=result)
        message = encode(response, data, self._shared)
        return [Output(message, batch, count, skipped, codes, len(message) + response.shared.bytes)]

    def _halves(
        self,
        batch: int,
        first_row: int,
        values: pa.Array,
        errors: Mapping[int, RowError],
        skipped: int,
        rows: Sequence[int] | None,
    ) -> list[Output]:
        half = len(values) // 2
        low = {row: error for row, error in errors.items() if row < half}
        high = {row - half: error for row, error in errors.items() if row >= half}
        # Only the sum of `skipped` matters; it stays with the first part.
        return [
            *self._write(batch, first_row, values.slice(0, half), low, skipped, rows and rows[:half]),
            *self._write(batch, first_row + half, values.slice(half), high, 0, rows and rows[half:]),
        ]

    def _too_large(self, size: int) -> str:
        return f"the value of this row takes {size} bytes; a message holds {self._limit}"
