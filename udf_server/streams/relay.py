"""Relay passes streams on, unread, to the process of a server that has their function.

A server with groups of plugins has one address, at which the processes of the default group listen. Processes of other
groups listen on Unix sockets, which only the user of the server can open. There they trust what the relaying process
says of the caller: its address and the names of its certificate. They may listen on a port of their own too; then a
client that can open its stream there is told the port.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import grpc
from grpc import aio

from remote_udf.spans import Headers
from remote_udf.v1 import message_pb2 as pb
from remote_udf.v1 import service_pb2
from udf_server.declaring.functions import Function
from udf_server.hosting.registry import Catalog, Registry
from udf_server.security.access import Caller
from udf_server.security.files import WatchedFiles
from udf_server.streams.routes import GroupFunction, Route, name_of_route

__all__ = [
    "Relay",
    "RelayedStream",
    "RequestContext",
    "Routes",
    "StreamedContext",
    "is_at_port",
    "origin_of",
]

_SERVICE = service_pb2.DESCRIPTOR.services_by_name["UdfService"].full_name
_PEER, _CERTIFICATE = "udf-relayed-peer", "udf-relayed-certificate-bin"
_NOT_PASSED_ON = (":", "grpc-", "udf-relayed-")
"""Beginnings of the keys of metadata that belong to one connection."""
PROGRESS_SECONDS = 2.0
"""A process that does not say in this time what it has answered is missing in the sum."""
_OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # A group that has crashed is there again within seconds.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
]
Routes = WatchedFiles[tuple[list[GroupFunction], Mapping[str, Route]]]


class RequestContext(Protocol):
    """What gRPC says of who makes a request."""

    def invocation_metadata(self) -> Headers | None: ...
    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...
    def peer(self) -> str: ...


class StreamedContext(RequestContext, Protocol):
    """gRPC's context of a stream that is passed on."""

    def time_remaining(self) -> float | None: ...
    def set_code(self, code: grpc.StatusCode, /) -> None: ...
    def set_details(self, details: str, /) -> None: ...
    def set_trailing_metadata(self, metadata: Headers, /) -> None: ...


def is_at_port(context: RequestContext) -> bool:
    """Whether a request has come to a port, and not over a Unix socket or from the web UI."""
    return context.peer().startswith(("ipv4:", "ipv6:"))


def origin_of(context: RequestContext) -> tuple[str, Mapping[str, Iterable[bytes]]]:
    """The address and the certificates of who called the process that has passed a request on, or this process."""
    if is_at_port(context):
        return context.peer(), context.auth_context()
    metadata = context.invocation_metadata() or ()
    peer = next((str(value) for key, value in metadata if key == _PEER), context.peer())
    names = [value if isinstance(value, bytes) else value.encode() for key, value in metadata if key == _CERTIFICATE]
    return peer, {"x509_common_name": names}


def _passed_on(context: RequestContext) -> Sequence[tuple[str, str | bytes]]:
    """The metadata of the caller, its token included, and what the connection says of it."""
    auth = context.auth_context()
    names = [*auth.get("x509_common_name", ()), *auth.get("peer_dns", ())]
    given = [
        (key, value)
        for key, value in context.invocation_metadata() or ()
        if not key.startswith(_NOT_PASSED_ON) and key != "user-agent"
    ]
    return (*given, (_PEER, context.peer()), *((_CERTIFICATE, name) for name in names))


class Relay:
    """Knows which group has a function, and passes streams on to it. Use it on one event loop."""

    def __init__(self, routes: Routes, own: Registry, count: Callable[[str], object] = lambda group: None) -> None:
        """`own` are the functions of this process. `count` is called with the group of each stream."""
        self._routes, self._own, self._count = routes, own, count
        self._known: list[GroupFunction] = []
        self._catalog: Catalog[Function | GroupFunction] = Catalog(own)
        self._channels: dict[str, _GroupProcess] = {}
        """By socket."""
        self._leaving: dict[asyncio.Task[None], _GroupProcess] = {}
        """Processes that were replaced, each with what waits for the end of its last call."""

    @property
    def catalog(self) -> Catalog[Function | GroupFunction]:
        """The functions of this process and of all groups."""
        self._current()
        return self._catalog

    def _current(self) -> Mapping[str, Route]:
        """The routes by group. Processes that are no longer listed are left."""
        known, routes = self._routes.current()
        if known is not self._known:
            self._known, self._catalog = known, Catalog([*self._own, *known])
            for socket in self._channels.keys() - {socket for each in routes.values() for socket in each["sockets"]}:
                channel = self._channels.pop(socket)
                self._leaving[leaving := asyncio.create_task(channel.leave())] = channel
                leaving.add_done_callback(self._leaving.pop)
        return routes

    def group_of(self, request: pb.Open, caller: Caller) -> str | None:
        """The group that has the function; None if this process has it, or is to refuse the stream.

        Raises StreamError if no group has it.
        """
        if not request.function or not caller.may_call(request.function):
            return None
        found = self.catalog.find(request.function, request.version, may_see=caller.may_call)
        return found.group if isinstance(found, GroupFunction) else None

    def elsewhere(self, group: str, request: pb.Open, caller: Caller) -> pb.Elsewhere | None:
        """Where the client opens its stream of the group; None if the stream is to be passed on."""
        route = self._current()[group]
        port = route.get("port", 0)
        if not request.takes_port or not port:
            return None
        return pb.Elsewhere(port=port, route=name_of_route(Path(route["sockets"][0])))

    def stream(
        self, group: str, messages: AsyncIterator[bytes], context: StreamedContext,
        write: Callable[[bytes], Awaitable[None]],
    ) -> "RelayedStream":  # fmt: skip
        """The stream, to be passed on to the group. `write` sends a message to its client."""
        self._count(group)
        return RelayedStream(self._channel_of(group), group, messages, context, write)

    async def progress(
        self, request: service_pb2.GetProgressRequest, context: RequestContext
    ) -> Sequence[service_pb2.GetProgressResponse | None]:
        """What each process of other groups says; None for one that does not answer."""
        metadata, message = _passed_on(context), request.SerializeToString()
        found = [self._channel(socket) for each in self._current().values() for socket in each["sockets"]]
        return await asyncio.gather(*(channel.progress(message, metadata) for channel in found))

    async def close(self) -> None:
        """Close the connections. Safe to call twice."""
        channels, self._channels = [*self._channels.values(), *self._leaving.values()], {}
        for leaving in self._leaving:
            leaving.cancel()
        for channel in channels:
            await channel.connection.close()

    def _channel_of(self, group: str) -> "_GroupProcess":
        """The process of the group that has the fewest streams, among those that seem to be there."""
        channels = map(self._channel, self._current()[group]["sockets"])
        return min(channels, key=lambda channel: (channel.is_lost, channel.calls))

    def _channel(self, socket: str) -> "_GroupProcess":
        if socket not in self._channels:
            self._channels[socket] = _GroupProcess(socket)
        return self._channels[socket]


class _GroupProcess:
    """The connection to a process of another group."""

    def __init__(self, socket: str) -> None:
        self.connection = aio.insecure_channel(f"unix:{socket}", _OPTIONS)
        self.calls = 0
        """Number of streams and questions that have not ended."""
        self._unused = asyncio.Event()
        self._unused.set()
        self.execute: aio.StreamStreamMultiCallable[bytes, bytes] = self.connection.stream_stream(
            f"/{_SERVICE}/Execute"
        )
        self._ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = self.connection.unary_unary(f"/{_SERVICE}/GetProgress")

    @property
    def is_lost(self) -> bool:
        return self.connection.get_state() is grpc.ChannelConnectivity.TRANSIENT_FAILURE

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keep the connection for a call."""
        self.calls += 1
        self._unused.clear()
        try:
            yield
        finally:
            self.calls -= 1
            if not self.calls:
                self._unused.set()

    async def leave(self) -> None:
        """Close the connection once its last call has ended."""
        await self._unused.wait()
        await self.connection.close()

    async def progress(
        self, request: bytes, metadata: Sequence[tuple[str, str | bytes]]
    ) -> service_pb2.GetProgressResponse | None:
        try:
            with self.used():
                answer = await self._ask(request, timeout=PROGRESS_SECONDS, metadata=metadata)
        except aio.AioRpcError:
            return None
        return service_pb2.GetProgressResponse.FromString(answer)


class RelayedStream:
    """A stream between a client and the process of another group. Call `run` once."""

    def __init__(
        self,
        channel: _GroupProcess,
        group: str,
        messages: AsyncIterator[bytes],
        context: StreamedContext,
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        self._channel, self._group, self._messages = channel, group, messages
        self._context, self._write = context, write

    async def run(self) -> None:
        """Pass on messages, metadata, deadline, cancellation and status, until the stream has ended.

        A message is read only after the one before was sent, so the back-pressure of both ends is kept.
        """
        with self._channel.used():
            await self._pass_on()

    async def _pass_on(self) -> None:
        context = self._context
        call = self._channel.execute(timeout=context.time_remaining(), metadata=_passed_on(context))
        sending = asyncio.create_task(self._send(call))
        heard, message = False, None
        try:
            with contextlib.suppress(aio.AioRpcError):  # the status of the call says why
                while (message := await call.read()) is not aio.EOF:
                    heard = True
                    await self._write(cast("bytes", message))
            await self._end(call, heard=heard)
        finally:
            # A task that was cancelled keeps its exception, which keeps this frame: the message would be in a cycle.
            message = None
            sending.cancel()
            call.cancel()

    async def _send(self, call: "aio.StreamStreamCall[bytes, bytes]") -> None:
        message = b""
        try:
            async for message in self._messages:
                await call.write(message)
            await call.done_writing()
        except (aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the call has ended, and reading it says why
        finally:
            message = b""

    async def _end(self, call: "aio.StreamStreamCall[bytes, bytes]", *, heard: bool) -> None:
        code, details = await call.code(), await call.details()
        if code is grpc.StatusCode.OK:
            return
        if code is grpc.StatusCode.UNAVAILABLE:
            # The details of gRPC have the path of the socket.
            details = f"group {self._group!r} {'was lost' if heard else 'does not answer'}"
        self._context.set_trailing_metadata(tuple(await call.trailing_metadata()))
        self._context.set_code(code)
        self._context.set_details(details or "")
