"""The envelope of the Execute stream, written and read without copying its payload through protobuf.

The bytes are exactly those of `ExecuteRequest` and `ExecuteResponse` in message.proto: any protobuf
implementation reads what this module writes, and vice versa. Writing appends `data`, the last
field, to the serialized rest; reading walks the top-level fields, passes the small ones to
protobuf, and returns `data` as a view into the message.

The object that protobuf creates for a field, known or unknown, takes more memory than the field and more time than
sending its bytes. So fields are counted before they are parsed.
"""

from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError

from remote_udf.arrow import Buffers
from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError
from remote_udf.shared_memory import SharedMemory
from remote_udf.v1 import message_pb2 as pb

__all__ = ["Message", "encode", "read_error", "read_request", "read_response"]

_KINDS = {pb.Error.KIND_USER: ErrorKind.USER, pb.Error.KIND_WORKER: ErrorKind.WORKER}
_VARINT = 0
_LENGTH_DELIMITED = 2
_FIXED = {1: 8, 5: 4}
"""Number of bytes by wire type."""
_PADDING_TAG = 14 << 3 | _LENGTH_DELIMITED
_DATA_TAG = 15 << 3 | _LENGTH_DELIMITED
_ALIGNMENT = 16
"""With this alignment, Arrow buffers inside `data` are aligned as Arrow and numpy prefer: bytes objects are themselves
aligned to 16."""

MOST_FIELDS = 64
"""Maximum number of fields of an envelope itself; ours have at most four."""
SMALL_BYTES = 4 << 10
"""Up to this size, without Arrow data, an envelope is parsed without counting its fields; batches are far smaller."""
MOST_NESTED, MOST_TEXT = 10_000, 1 << 20
"""Maximum number of fields of a larger envelope at any depth, and of bytes in fields without Arrow data."""

EnvelopeT = TypeVar("EnvelopeT", pb.ExecuteRequest, pb.ExecuteResponse)


class Message(NamedTuple, Generic[EnvelopeT]):
    """An envelope without its `data`, and `data` separately; None if the field is absent."""

    envelope: EnvelopeT
    data: memoryview | None


def encode(
    envelope: pb.ExecuteRequest | pb.ExecuteResponse, data: Buffers | None = None, shared: SharedMemory | None = None
) -> bytes:
    """Encode a message. `envelope.data` and `envelope.padding` must not be set; `data` is copied once, here.

    If `data` is large enough and `shared` memory has room, it is written there, and `envelope.shared` is set.
    """
    if shared is not None and data is not None and (place := shared.put(data)) is not None:
        envelope.shared.CopyFrom(place)
        data = None
    head = envelope.SerializeToString()
    if data is None:
        return head
    tail = bytes((_DATA_TAG,)) + _varint(sum(map(len, data)))
    gap = -(len(head) + 2 + len(tail)) % _ALIGNMENT
    return b"".join((head, bytes((_PADDING_TAG, gap)), bytes(gap), tail, *data))


def read_request(message: bytes, shared: SharedMemory | None = None) -> Message[pb.ExecuteRequest]:
    """Read an ExecuteRequest, whose `data` may be in `shared` memory. Raises ProtocolViolation if it is not one."""
    return _with_shared(_read(message, pb.ExecuteRequest), shared)


def read_response(message: bytes, shared: SharedMemory | None = None) -> Message[pb.ExecuteResponse]:
    """Read an ExecuteResponse, whose `data` may be in `shared` memory. Raises ProtocolViolation if it is not one."""
    return _with_shared(_read(message, pb.ExecuteResponse), shared)


def read_error(error: pb.Error) -> StreamError:
    """Return the exception for an Error message. Codes of a newer server are kept.

    Raises ProtocolViolation if the code is not a word in capitals.
    """
    try:
        code = ErrorCode(error.code)
    except ValueError as malformed:
        raise ProtocolViolation(f"the code of an Error message is malformed: {malformed}") from malformed
    return StreamError(
        _KINDS.get(error.kind, ErrorKind.PROTOCOL),
        code,
        f"{error.message}\n{error.traceback}" if error.traceback else error.message,
        traceback=error.traceback,
        retryable=error.retryable,
        retry_after=error.retry_after.ToNanoseconds() / 1e9 if error.HasField("retry_after") else None,
    )


def _with_shared(message: Message[EnvelopeT], shared: SharedMemory | None) -> Message[EnvelopeT]:
    if not message.envelope.HasField("shared"):
        return message
    if shared is None or message.data is not None:
        raise ProtocolViolation("data in shared memory that was not negotiated, or in addition to data in the message")
    return Message(message.envelope, shared.take(message.envelope.shared))


def _read(message: bytes, kind: type[EnvelopeT]) -> Message[EnvelopeT]:
    view = memoryview(message)
    start, data = 0, None
    kept: list[memoryview] = []
    try:
        for count, (tag, position, end) in enumerate(_fields(view, kind.__name__)):
            if count == MOST_FIELDS:
                raise ProtocolViolation(f"{kind.__name__}: more than {MOST_FIELDS} fields")
            if tag == _DATA_TAG:
                data = view[position:end]
            elif tag != _PADDING_TAG:
                kept.append(view[start:end])
            start = end
        if sum(map(len, kept)) > SMALL_BYTES:
            room = _Allowance(kind.__name__)
            for field in kept:
                _count(field, kind.DESCRIPTOR, room)
        return Message(kind.FromString(b"".join(kept)), data)
    except (IndexError, DecodeError) as error:
        raise ProtocolViolation(f"not a {kind.__name__}: {error}") from error


def _fields(view: memoryview, name: str) -> Iterator[tuple[int, int, int]]:
    """Yield the tag of each field of a message, and where its value begins and ends."""
    position = 0
    while position < len(view):
        tag, position = _read_varint(view, position)
        length, position = _length(tag & 7, view, position)
        end = position + length
        if end > len(view):
            raise ProtocolViolation(f"{name}: field {tag >> 3} is truncated")
        yield tag, position, end
        position = end


class _Allowance:
    """The remaining allowance of one envelope."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fields, self.text = MOST_NESTED, MOST_TEXT


def _count(view: memoryview, descriptor: Any, room: _Allowance) -> None:
    """Count the fields of a message and of the messages in it. Raises ProtocolViolation if there are too many.

    `descriptor` is protobuf's descriptor of the message; its class depends on the implementation.
    """
    for tag, position, end in _fields(view, room.name):
        field = descriptor.fields_by_number.get(tag >> 3)
        room.fields -= 1
        if field is not None and field.message_type is not None and tag & 7 == _LENGTH_DELIMITED:
            _count(view[position:end], field.message_type, room)
        elif field is None or field.type != FieldDescriptor.TYPE_BYTES:
            room.text -= end - position
        if room.fields < 0 or room.text < 0:
            raise ProtocolViolation(f"{room.name}: more than {MOST_NESTED} fields or {MOST_TEXT} bytes in them")


def _length(wire_type: int, view: memoryview, position: int) -> tuple[int, int]:
    """Length and start of a field's value. Numbers are fields of a newer protocol, which protobuf skips."""
    if wire_type == _LENGTH_DELIMITED:
        return _read_varint(view, position)
    if wire_type == _VARINT:
        return _read_varint(view, position)[1] - position, position
    if wire_type in _FIXED:
        return _FIXED[wire_type], position
    raise ProtocolViolation(f"a field of wire type {wire_type}, which proto3 does not have")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(view: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = view[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
        if shift > 63:
            raise ProtocolViolation("a number of more than 64 bits")
