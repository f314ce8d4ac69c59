"""Arrow schemas and batches as bytes. One place, so that a copy saved is saved everywhere."""

from collections.abc import Sequence

import pyarrow as pa

from remote_udf.errors import ProtocolViolation

__all__ = ["batch_from", "read_batch", "read_schema", "write_batch", "write_schema"]


def write_schema(schema: pa.Schema) -> bytes:
    """An Arrow IPC schema message."""
    return schema.serialize().to_pybytes()


def read_schema(data: bytes | memoryview) -> pa.Schema:
    """The schema of an Arrow IPC schema message. Raises ProtocolViolation if it is none."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ProtocolViolation(f"not an Arrow schema: {error}") from error


def write_batch(batch: pa.RecordBatch) -> pa.Buffer:
    """An Arrow IPC record batch message, without the schema."""
    return batch.serialize()


def read_batch(data: bytes | memoryview, schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """The batch of an IPC record batch message; its buffers refer to `data`, nothing is copied.

    Raises ProtocolViolation if the bytes are no batch of that schema, or one of another length.
    """
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ProtocolViolation(f"not a batch of schema ({', '.join(map(str, schema))}): {error}") from error
    if batch.num_rows != rows:
        raise ProtocolViolation(f"a batch announced with {rows} rows has {batch.num_rows}")
    return batch


def batch_from(columns: Sequence[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """The batch, or UnsupportedType's cousin ArrowInvalid if a column is not of its type."""
    return pa.RecordBatch.from_arrays(list(columns), schema=schema)
