"""The entrance of a server with groups: where a stream goes whose function another process may have."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError
from remote_udf.messages import encode, read_request
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.metrics import ServerMetrics
from udf_server.security.access import Caller
from udf_server.streams.relay import Relay, RelayedStream, StreamedContext, is_at_port
from udf_server.streams.routes import require_route
from udf_server.streams.stream_reports import error_message, stream_refused

__all__ = ["Entrance"]


class Entrance:
    """Reads the first message of streams that may be for another process of the server."""

    def __init__(self, relay: Relay | None, route: str, metrics: ServerMetrics, open_seconds: float) -> None:
        """A relay knows the functions of other processes; `route` is that of a process of a group.

        A client may take `open_seconds` to send its first message.
        """
        self._relay, self._route, self._metrics, self._open_seconds = relay, route, metrics, open_seconds

    async def entered(
        self, requests: AsyncIterator[bytes], context: StreamedContext, caller: Caller,
        write: Callable[[bytes], Awaitable[None]],
    ) -> AsyncIterator[bytes] | RelayedStream | None:  # fmt: skip
        """The messages of a stream that this process is to serve, or the stream that it is to pass on.

        None if the stream has ended: it was refused, or sent to another port.
        """
        if self._relay is None and not (self._route and is_at_port(context)):
            return requests
        wanted = ""
        try:
            requests, opened = await _opened_stream(requests, self._open_seconds)
            wanted = opened.function
            if self._relay is None:
                require_route(self._route, opened.route)
                # The client learns that it has reached this process, however long the function takes to open.
                await write(encode(pb.ExecuteResponse(progress=pb.Progress())))
                return requests
            group = self._relay.group_of(opened, caller)
        except StreamError as error:
            self._metrics.rejected.labels(error.code).inc()
            stream_refused(caller, wanted, error)
            await write(encode(error_message(error)))
            return None
        if group is None:
            return requests
        if (elsewhere := self._relay.elsewhere(group, opened, caller)) is None:
            return self._relay.stream(group, requests, context, write)
        await write(encode(pb.ExecuteResponse(elsewhere=elsewhere)))
        return None


async def _opened_stream(messages: AsyncIterator[bytes], seconds: float) -> tuple[AsyncIterator[bytes], pb.Open]:
    """Read the first message of a stream. Raises StreamError if none comes within `seconds`.

    Returns all messages, the first one included, and its request, which is empty if it is no valid Open.
    """
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
    return _Again(first, messages), request


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
