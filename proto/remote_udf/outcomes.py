"""Outcomes of rows: a value, or a RowError; and how many rows may fail.

If there are errors, they are sent as a separate small Arrow batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from remote_udf.arrow import read_columns
from remote_udf.errors import ErrorCode, ProtocolViolation, capped
from remote_udf.option_values import percent

__all__ = ["ERROR_SCHEMA", "MESSAGE_LIMIT", "RATE_FROM_ROWS", "ErrorBudget", "RowError", "read_errors", "write_errors"]

MESSAGE_LIMIT = 1_000
"""Maximum number of characters of a row's error message."""

ERROR_SCHEMA = pa.schema(
    [
        pa.field("row", pa.int64(), nullable=False),
        pa.field("code", pa.string(), nullable=False),
        pa.field("message", pa.string(), nullable=False),
        pa.field("attempts", pa.int32(), nullable=False),
        pa.field("retryable", pa.bool_(), nullable=False),
        pa.field("traceback", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class RowError:
    """Why a row has no value.

    `attempts` counts the calls of the function for this row; 0 means that it was never called. `retryable`
    says whether the same row may succeed later, regardless of the options.
    """

    code: ErrorCode
    message: str
    attempts: int
    retryable: bool = False
    traceback: str = ""


def write_errors(errors: Mapping[int, RowError]) -> bytes:
    """Serialize errors by row to Arrow IPC bytes, rows ascending. Long messages and tracebacks are cut."""
    rows = sorted(errors)
    chosen = [errors[row] for row in rows]
    columns = [
        pa.array(rows, pa.int64()),
        pa.array([error.code.value for error in chosen], pa.string()),
        pa.array([_encodable(capped(error.message, MESSAGE_LIMIT)) for error in chosen], pa.string()),
        pa.array([error.attempts for error in chosen], pa.int32()),
        pa.array([error.retryable for error in chosen], pa.bool_()),
        pa.array([_encodable(capped(error.traceback)) for error in chosen], pa.string()),
    ]
    # The reader checks the batch against the count in front.
    batch = pa.RecordBatch.from_arrays(columns, schema=ERROR_SCHEMA)
    return len(rows).to_bytes(8, "little") + batch.serialize().to_pybytes()


def read_errors(data: bytes | memoryview) -> dict[int, RowError]:
    """Read errors by row. Raises ProtocolViolation if the bytes are not those that write_errors makes."""
    view = memoryview(data)
    columns = read_columns(view[8:], ERROR_SCHEMA, int.from_bytes(view[:8], "little"))
    try:
        return {
            row: RowError(ErrorCode(code), message, attempts, retryable, traceback)
            for row, code, message, attempts, retryable, traceback in zip(
                *(column.to_pylist() for column in columns), strict=True
            )
        }
    except ValueError as error:
        raise ProtocolViolation(f"an error code of a result is malformed: {error}") from error


def _encodable(text: str) -> str:
    """Escape lone surrogates, which UTF-8 cannot encode; the message of an exception may contain them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


RATE_FROM_ROWS = 100
"""With fewer rows, a share is not meaningful."""


@dataclass(frozen=True)
class ErrorBudget:
    """How many rows may fail: a number of rows, a share of them, or both.

    The client counts the rows of one task, servers those of a job.
    """

    most: float | None = None
    share: float | None = None

    def exceeded(self, failed: int, rows: int, *, complete: bool = False) -> str:
        """What is allowed, such as "3" or "5 %", if more of the rows have failed; otherwise an empty text.

        The share is compared from RATE_FROM_ROWS on, or if the rows are `complete`.
        """
        if self.most is not None and failed > self.most:
            return f"{self.most:,.6g}"
        if self.share is not None and (complete or rows >= RATE_FROM_ROWS) and failed > self.share * rows:
            return percent(self.share)
        return ""
