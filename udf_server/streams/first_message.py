"""The first message of a stream, read where it is not certain yet which process of a server serves the stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError
from remote_udf.messages import read_request
from remote_udf.v1 import message_pb2 as pb

__all__ = ["OpenedStream", "opened_stream"]


class OpenedStream(NamedTuple):
    """A stream whose first message was read."""

    messages: AsyncIterator[bytes]
    """All of them, the first one included."""
    request: pb.Open
    """Empty if the first message is no valid Open."""


async def opened_stream(messages: AsyncIterator[bytes], seconds: float) -> OpenedStream:
    """Read the first message of a stream. Raises StreamError if none comes within `seconds`."""
    messages = aiter(messages)
    try:
        async with asyncio.timeout(seconds):
            first = await anext(messages, None)
    except TimeoutError:
        raise StreamError(
            ErrorKind.WORKER, ErrorCode.IDLE, f"the stream is idle: no message for {seconds:g} s", retryable=True
        ) from None
    try:
        request = read_request(first or b"").envelope.open
    except (ProtocolViolation, UnicodeDecodeError):
        request = pb.Open()
    return OpenedStream(_Again(first, messages), request)


class _Again:
    """Messages, the first of which was read already."""

    def __init__(self, first: bytes | None, others: AsyncIterator[bytes]) -> None:
        self._first, self._others = first, others

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if self._first is None:
            return await anext(self._others)
        first, self._first = self._first, None
        return first
