"""The entrance of a server: whether it serves a stream in this process, in one of a group, or in a fresh one."""

import asyncio
import collections
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from remote_udf.errors import ErrorCode, ErrorKind, ProtocolViolation, StreamError
from remote_udf.messages import encode, read_request
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.metrics import ServerMetrics
from udf_server.plugins.sources import Sources
from udf_server.security.access import Caller
from udf_server.streams.relay import Relay, RelayedStream, StreamedContext, is_at_port
from udf_server.streams.routes import require_route
from udf_server.streams.stream_reports import error_message, stream_refused

__all__ = ["Edits", "Entrance"]

MOST_RUNS = 1_000
"""Runs of queries that are remembered."""


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


class Edits:
    """Decides whether this process takes a stream. If the files were edited, a fresh process has to.

    The tasks of a query that runs keep the code with which it began, as long as no other query needs newer code. Use it
    on the event loop.
    """

    def __init__(
        self, sources: Sources, replace: Callable[[], Awaitable[str]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`replace` starts a fresh process, and returns an empty text once that takes streams, or else why it fails."""
        self.code = sources.identity
        """Identifies the code of this process."""
        self._sources, self._replace, self._clock = sources, replace, clock
        self._runs: collections.OrderedDict[tuple[str, str], None] = collections.OrderedDict()
        self._lock = asyncio.Lock()
        self._replaced = False
        self._failure, self._failed_at = "", -1.0
        """Why the last fresh process failed, and when it was started."""

    def replaced(self) -> None:
        """Take only further streams of queries that began here, because another process takes all others."""
        self._replaced = True

    async def require_current(self, session: str = "", run: str = "") -> None:
        """Return if this process takes a stream of this run of a query in this session, or tells its functions.

        Raises StreamError: SHUTTING_DOWN if another process has the current code, PLUGIN_FAILED if that does not start.
        """
        key, came = (session, run), self._clock()
        if not (run and key in self._runs):
            async with self._lock:
                await self._require_unedited(came)
        if run:
            self._runs[key] = None
            self._runs.move_to_end(key)
            if len(self._runs) > MOST_RUNS:
                self._runs.popitem(last=False)

    async def _require_unedited(self, came: float) -> None:
        if not self._replaced:
            if not await asyncio.get_running_loop().run_in_executor(None, self._sources.edited):
                return
            if came > self._failed_at:  # what fails is tried again: a file may be repaired that nothing could import
                self._failed_at = self._clock()
                self._failure = await self._replace()
                self._replaced = self._replaced or not self._failure
            if self._failure:
                raise StreamError(ErrorKind.USER, ErrorCode.PLUGIN_FAILED, f"after an edit, {self._failure}")
        raise StreamError(
            ErrorKind.WORKER, ErrorCode.SHUTTING_DOWN, "a plugin was edited, so a fresh process serves it",
            retryable=True,
        )  # fmt: skip
