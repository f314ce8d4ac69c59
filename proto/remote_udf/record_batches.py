"""Incoming record batch messages of Arrow. What each announces is checked before anything is allocated for it.

Arrow trusts what a message announces: a compressed body expands to any size, arrays of types that take no
memory, such as `null`, have any length, and any number of views refer to the same text. With a few bytes, the sender
of such a message could make this process allocate gigabytes. Accepted messages take no more memory than their size.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from remote_udf.errors import ProtocolViolation
from remote_udf.raw_texts import replaced

__all__ = ["read_batches"]

MOST_BATCHES = 1_000
"""Maximum number of batches of one message. Ours have one, or a few if a column takes more than two gigabytes."""
MOST_EMPTY = 1 << 20
"""Maximum number of elements of a nested array that take no memory, as in `array<void>`. Rows are bounded elsewhere."""
_HEADER = 2
"""The field of Message, in Arrow's format/Message.fbs, that holds the table RecordBatch."""
_LENGTH, _NODES, _COMPRESSION, _VARIADIC = 0, 1, 3, 4
"""Fields of RecordBatch."""


def read_batches(
    data: bytes | memoryview | pa.Buffer, schema: pa.Schema, rows: int, *, raw_texts: bool = False
) -> list[pa.RecordBatch]:
    """Read the consecutive record batches in `data` and validate them in full. Their columns refer to `data`.

    With `raw_texts`, batches with a text that is not UTF-8 are read too. All texts are then binaries.

    Raises ProtocolViolation if they are compressed, or do not have this schema or, together, this number of rows.
    """
    try:
        return _read(data, schema, rows)
    except ProtocolViolation:
        fields = [field.with_type(replaced(field.type, pa.string(), pa.binary())) for field in schema]
        if not raw_texts or fields == list(schema):
            raise
        return _read(data, pa.schema(fields), rows)


def _read(data: bytes | memoryview | pa.Buffer, schema: pa.Schema, rows: int) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = []
    found = 0
    try:
        for message in _messages(data):
            announced = _announced(message.metadata)
            found += announced.rows
            if announced.rows < 0 or found > rows:
                break
            if len(batches) == MOST_BATCHES:
                raise ProtocolViolation(f"more than {MOST_BATCHES} record batches in a message")
            batch = pa.ipc.read_record_batch(message, schema)
            if announced.longest > MOST_EMPTY:
                for column in batch.columns:
                    _check_empty(column)
            # Full validation is needed: with wrong offsets Arrow would read other memory, which may crash the
            # process. It costs a few nanoseconds per string and nothing for numbers.
            batch.validate(full=True)
            batches.append(batch)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise ProtocolViolation(f"no batch of schema ({', '.join(map(str, schema))}): {error}") from error
    if found != rows or not batches:
        raise ProtocolViolation(f"a batch announced with {rows} rows has {found}")
    return batches


def _messages(data: bytes | memoryview | pa.Buffer) -> Iterator[pa.Message]:
    reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


class _Announced(NamedTuple):
    rows: int
    longest: int
    """Number of elements of its longest array, at any depth."""


def _announced(metadata: pa.Buffer) -> _Announced:
    """Read what a record batch announces from the message's flatbuffer, which Arrow has verified.

    Raises ProtocolViolation if it may take more memory than its message, and struct.error or ValueError for
    positions outside of the message.
    """
    view = memoryview(metadata)
    message = _uint32(view, 0)
    header = _field(view, message, _HEADER)
    if not header:
        return _Announced(0, 0)  # Arrow raises an error, because it is not a record batch
    batch = header + _uint32(view, header)
    if _field(view, batch, _COMPRESSION):
        raise ProtocolViolation("a compressed record batch; record batches are sent uncompressed")
    if (counts := _field(view, batch, _VARIADIC)) and _uint32(view, counts + _uint32(view, counts)):
        raise ProtocolViolation("a column of views; texts and binaries are sent as string and binary")
    length = _field(view, batch, _LENGTH)
    rows = struct.unpack_from("<q", view, length)[0] if length else 0
    longest = 0
    if nodes := _field(view, batch, _NODES):
        vector = nodes + _uint32(view, nodes)
        # The vector consists of pairs: the length of an array and its number of nulls.
        pairs = np.frombuffer(view, np.int64, 2 * _uint32(view, vector), vector + 4)
        longest = int(pairs[::2].max(initial=0))
    return _Announced(rows, longest)


def _field(view: memoryview, table: int, number: int) -> int:
    """The position of a field of a table; 0 if it is absent."""
    vtable = table - struct.unpack_from("<i", view, table)[0]
    entry = 4 + 2 * number
    if vtable < 0 or entry >= struct.unpack_from("<H", view, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", view, vtable + entry)[0]
    return table + offset if offset else 0


def _uint32(view: memoryview, position: int) -> int:
    number: int = struct.unpack_from("<I", view, position)[0]
    return number


def _inner(type_: pa.DataType) -> list[pa.DataType]:
    return [type_.field(index).type for index in range(type_.num_fields)]


def _is_empty(type_: pa.DataType) -> bool:
    """Whether an element takes no memory on the wire, or at most one bit."""
    if pa.types.is_fixed_size_list(type_):
        return type_.list_size == 0 or _is_empty(type_.value_type)
    return pa.types.is_null(type_) or (pa.types.is_struct(type_) and all(map(_is_empty, _inner(type_))))


def _check_empty(array: pa.Array) -> None:
    """Raises ProtocolViolation if nested arrays have too many elements that take no byte each."""
    type_ = array.type
    if pa.types.is_struct(type_) or pa.types.is_union(type_):
        inner = [array.field(index) for index in range(type_.num_fields)]
    elif pa.types.is_map(type_):
        inner = [array.keys, array.items]
    elif hasattr(array, "values"):
        inner = [array.values]
    else:
        return
    for each in inner:
        if _is_empty(each.type) and len(each) > MOST_EMPTY:
            raise ProtocolViolation(f"{len(each)} elements of type {each.type} in a column; at most {MOST_EMPTY}")
        _check_empty(each)
