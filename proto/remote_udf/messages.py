"""The envelope of the Execute stream, written and read without copying its payload through protobuf.

The bytes are exactly those of `ExecuteRequest` and `ExecuteResponse` in message.proto: any protobuf
implementation reads what this module writes, and the other way round. Writing puts `data`, the last
field, behind the serialized rest; reading walks the top-level fields, hands the small ones to
protobuf, and returns `data` as a view into the message.
"""

from typing import Generic, NamedTuple, TypeVar

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
"""Wire type to bytes."""
_PADDING_TAG = 14 << 3 | _LENGTH_DELIMITED
_DATA_TAG = 15 << 3 | _LENGTH_DELIMITED
_ALIGNMENT = 16
"""Arrow buffers inside `data` then start where Arrow and numpy like them: bytes objects are themselves
aligned to 16."""

EnvelopeT = TypeVar("EnvelopeT", pb.ExecuteRequest, pb.ExecuteResponse)


class Message(NamedTuple, Generic[EnvelopeT]):
    """An envelope without its `data`, and `data` beside it; None where the field is absent."""

    envelope: EnvelopeT
    data: memoryview | None


def encode(
    envelope: pb.ExecuteRequest | pb.ExecuteResponse, data: Buffers | None = None, shared: SharedMemory | None = None
) -> bytes:
    """The message's bytes. `envelope.data` and `envelope.padding` must not be set; `data` is copied once, here.

    With `shared` memory it goes there, if it is worth it and there is room: then `envelope.shared` is set.
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
    """`data` may stand in `shared` memory. Raises ProtocolViolation if the bytes are no ExecuteRequest."""
    return _with_shared(_read(message, pb.ExecuteRequest), shared)


def read_response(message: bytes, shared: SharedMemory | None = None) -> Message[pb.ExecuteResponse]:
    """`data` may stand in `shared` memory. Raises ProtocolViolation if the bytes are no ExecuteResponse."""
    return _with_shared(_read(message, pb.ExecuteResponse), shared)


def read_error(error: pb.Error) -> StreamError:
    """The exception that an Error message stands for. Codes of a newer server are kept.

    Raises ProtocolViolation for a code that is no word in capitals.
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
        raise ProtocolViolation("data in shared memory, where none was agreed on, or beside data in the message")
    return Message(message.envelope, shared.take(message.envelope.shared))


def _read(message: bytes, kind: type[EnvelopeT]) -> Message[EnvelopeT]:
    view = memoryview(message)
    position, data = 0, None
    kept: list[memoryview] = []
    try:
        while position < len(view):
            start = position
            tag, position = _read_varint(view, position)
            length, position = _length(tag & 7, view, position)
            end = position + length
            if end > len(view):
                raise ProtocolViolation(f"{kind.__name__}: field {tag >> 3} is cut short")
            if tag == _DATA_TAG:
                data = view[position:end]
            elif tag != _PADDING_TAG:
                kept.append(view[start:end])
            position = end
        return Message(kind.FromString(b"".join(kept)), data)
    except (IndexError, DecodeError) as error:
        raise ProtocolViolation(f"not a {kind.__name__}: {error}") from error


def _length(wire_type: int, view: memoryview, position: int) -> tuple[int, int]:
    """Bytes of a field's value and where it begins. Numbers are fields of a newer protocol, which protobuf skips."""
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
