"""Outcomes of rows: a value, or a RowError. Errors travel as their own small Arrow batch, only when there are any."""

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from remote_udf.arrow import read_columns
from remote_udf.errors import ErrorCode, ProtocolViolation, capped

__all__ = ["ERROR_SCHEMA", "MESSAGE_LIMIT", "RowError", "read_errors", "write_errors"]

MESSAGE_LIMIT = 1_000
"""Characters of a row's error message that travel."""

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

    `attempts` counts calls of the function for this row; 0 means it was never called. `retryable`
    says whether the same row may succeed later, whatever the options allowed.
    """

    code: ErrorCode
    message: str
    attempts: int
    retryable: bool = False
    traceback: str = ""


def write_errors(errors: Mapping[int, RowError]) -> bytes:
    """The errors by row as Arrow IPC bytes, rows ascending; messages and tracebacks are cut here."""
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
    # The count in front lets the reader check the batch against it.
    batch = pa.RecordBatch.from_arrays(columns, schema=ERROR_SCHEMA)
    return len(rows).to_bytes(8, "little") + batch.serialize().to_pybytes()


def read_errors(data: bytes | memoryview) -> dict[int, RowError]:
    """The errors by row. Raises ProtocolViolation if the bytes are not what write_errors makes."""
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
    """Lone surrogates, which an exception may well quote, cannot be UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
