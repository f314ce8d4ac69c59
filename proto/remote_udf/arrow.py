"""Arrow schemas and batches as bytes. All code uses this module, so a copy avoided here is avoided everywhere."""

import threading

import pyarrow as pa

from remote_udf.errors import ProtocolViolation
from remote_udf.record_batches import read_batches

__all__ = ["BatchWriter", "Buffers", "read_columns", "read_row", "read_schema", "write_schema"]

Buffers = list[bytes | pa.Buffer]
"""Parts of one message. They are joined only when they are copied into the message."""
SCHEMA_BYTES = 1 << 20
"""Larger schemas are not read. They have thousands of columns, each of which takes longer to check than to send."""


def write_schema(schema: pa.Schema) -> bytes:
    """An Arrow IPC schema message."""
    return schema.serialize().to_pybytes()


def read_schema(data: bytes | memoryview) -> pa.Schema:
    """Read the schema of an Arrow IPC schema message. Raises ProtocolViolation if it is not one, or too large."""
    if len(data) > SCHEMA_BYTES:
        raise ProtocolViolation(f"a schema of {len(data)} bytes; at most {SCHEMA_BYTES}")
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise ProtocolViolation(f"not an Arrow schema: {error}") from error


class BatchWriter:
    """Writes tables of one schema as Arrow IPC record batch messages, without copying their values.

    Arrow's own serialize() copies everything into new memory, from which it would be copied again into the message.
    This class is thread-safe.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = _BufferFile()
        self._lock = threading.Lock()
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, mode="w"), schema)
        # The writer puts the schema, which the other end knows, before its first batch.
        self._writer.write(pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema))
        self._sink.take()

    def write(self, table: pa.Table | pa.RecordBatch) -> Buffers:
        """The table as consecutive messages, one per chunk. The buffers refer to the table's memory."""
        with self._lock:
            self._writer.write(table)
            return self._sink.take()


class _BufferFile:
    """The methods of a Python file that Arrow's writer calls."""

    closed = False

    def __init__(self) -> None:
        self._parts: Buffers = []

    def write(self, part: bytes | pa.Buffer) -> int:
        self._parts.append(part)
        return len(part)

    def take(self) -> Buffers:
        parts, self._parts = self._parts, []
        return parts

    def writable(self) -> bool:
        return True

    def flush(self) -> None: ...

    def close(self) -> None: ...


def read_columns(data: bytes | memoryview, schema: pa.Schema, rows: int, *, raw_texts: bool = False) -> list[pa.Array]:
    """Read the columns of consecutive IPC record batch messages, each column in one piece.

    If there is one message, the columns refer to `data`. With `raw_texts`, a text that is not UTF-8 is no error: all
    texts of the message are then binaries. Raises ProtocolViolation if the bytes are not batches of
    that schema, or do not hold `rows` rows.
    """
    batches = read_batches(data, schema, rows, raw_texts=raw_texts)
    if len(batches) == 1:
        columns = list(batches[0].columns)
    else:
        columns = [pa.concat_arrays([batch.column(index) for batch in batches]) for index in range(len(schema))]
    for field, column in zip(schema, columns, strict=True):
        if column.null_count and not field.nullable:
            raise ProtocolViolation(f"a null in column {field.name!r}, which is not nullable")
    return columns


def read_row(data: bytes) -> pa.RecordBatch:
    """Read the only row of an Arrow IPC stream. Raises ProtocolViolation if it is not a stream of one row."""
    stream = pa.BufferReader(data)
    try:
        message = pa.ipc.read_message(stream)
        schema = read_schema(message.serialize())
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise ProtocolViolation(f"not an Arrow stream: {error}") from error
    batches = read_batches(memoryview(data)[stream.tell() :], schema, 1)
    if len(batches) != 1:
        raise ProtocolViolation(f"expected one record batch, got {len(batches)}")
    return batches[0]
