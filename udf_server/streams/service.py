"""The gRPC service passes streams to ExecuteStream and lists functions."""

import asyncio
import collections
import uuid
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import NoReturn, Protocol, TypeVar, cast

import grpc

from remote_udf.errors import ErrorCode, ErrorKind, StreamError, capped
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2, service_pb2
from remote_udf.version import PROTOCOL_VERSION, __version__
from udf_server.hosting.load import ReportedLoad
from udf_server.limits.open_streams import OpenStreams
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.security.access import Access, Caller
from udf_server.security.callers import OTHERS
from udf_server.streams.entrance import Entrance
from udf_server.streams.execute_stream import ExecuteStream
from udf_server.streams.relay import Relay, RelayedStream, RequestContext, StreamedContext, is_at_port, origin_of
from udf_server.streams.services import StreamServices
from udf_server.streams.stream_reports import SessionProgress, add_other_process, audit, error_message

__all__ = ["SERVICE_NAME", "UdfService", "UnaryContext", "WritingContext"]

OPEN_SECONDS = 30.0
"""How long a client may take to send Open, at most. The client of this project sends it immediately."""
LISTS_AT_ONCE = 16
"""Number of lists of functions that a caller may leave unread. They can be large, and no stream counts them."""
LONGEST_DETAILS = 2_000
"""Characters of an error that gRPC sends as a header, whose size clients limit."""
RETRY_SECONDS = 1.0
"""When a client may ask again for a stream that this server did not take."""
SERVICE_NAME = service_pb2.DESCRIPTOR.services_by_name["UdfService"].full_name


StreamT = TypeVar("StreamT")


class WritingContext(RequestContext, Protocol):
    """gRPC's context of a stream."""

    def write(self, message: bytes, /) -> Awaitable[None]: ...


class UnaryContext(RequestContext, Protocol):
    """gRPC's context of a call with one answer."""

    async def abort(self, code: grpc.StatusCode, details: str, /) -> NoReturn: ...
    def add_done_callback(self, callback: "Callable[[UnaryContext], None]", /) -> None: ...


class UdfService:
    """The methods of `remote_udf.v1.UdfService`. While it drains, it refuses new streams."""

    def __init__(
        self, services: StreamServices, access: Access | None = None, *, alone: bool = True,
        weights: Mapping[str, float] | None = None, load: ReportedLoad | None = None,
        relay: Relay | None = None, route: str = "", coordinator: Coordinator | None = None,
    ) -> None:  # fmt: skip
        """`alone` is False if other processes serve the same address. `weights` has shares of jobs by
        `name@version`. A relay knows functions of other processes. With a `route`, streams come from such a relay,
        or are opened for this route at the port that it tells. A coordinator counts streams with other processes.
        """
        self._relay, self._route = relay, route
        self._alone, self._id = alone, uuid.uuid4().hex
        self._progress = SessionProgress()
        self._load = load or ReportedLoad()
        self._access = access or Access(None)
        self.weights = weights or {}
        self.services = services
        self._host, self._metrics, self.admission = services.host, services.metrics, services.admission
        seconds = min(OPEN_SECONDS, self.admission.limits.idle_seconds)
        self._entrance = Entrance(relay, route, self._metrics, seconds)
        self._open: dict[ExecuteStream, None] = {}
        self._relayed: dict[RelayedStream, None] = {}
        self.open_streams = OpenStreams(self.admission.limits.streams, coordinator)
        self._lists: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()
        """By caller, while it has any."""
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return len(self._open) + len(self._relayed)

    def drain(self) -> None:
        """Refuse new streams and ask the clients of open ones to change servers. Safe to call twice.

        Streams that were passed on are asked by the processes that have their functions.
        """
        self.draining = True
        for stream in self._open:
            stream.drain()

    def end_idle_streams(self) -> None:
        """End the streams whose clients are idle, and forget idle callers. Call about once a second."""
        self.open_streams.sweep()
        idle = self.admission.limits.idle_seconds
        for stream in list(self._open):
            stream.end_if_idle(min(OPEN_SECONDS, idle), idle)

    def observe(self) -> None:
        """Update the metrics of what the streams hold. Call about once a second."""
        held: collections.Counter[str] = collections.Counter()
        for stream in self._open:
            hosted, size = stream.results_held
            if hosted is not None:
                held[hosted.spec.key] += size
        for hosted in self._host.hosted():
            metrics = self._metrics.function(hosted.spec.name, hosted.spec.version)
            metrics.show("result_bytes", held[hosted.spec.key])
        self._metrics.held_bytes.set(self.admission.bytes)
        waits = (stream.waiting_seconds for stream in self._open)
        crowded = any(hosted.crowded for hosted in self._host.hosted())
        self._load.look(self.streams, crowded, (seconds for seconds in waits if seconds is not None))
        self._metrics.load.set(self._load.load(self.streams))
        for name in self._access.settings:
            if name != OTHERS:
                self._metrics.caller_holds(name, self.open_streams.of(name), self.admission.rows_of(name))

    async def wait_idle(self) -> None:
        """Wait until no stream is open."""
        await self._idle.wait()

    def handler(self) -> grpc.GenericRpcHandler:
        """The handler to add to a gRPC server. Execute gets its messages as bytes: see remote_udf.messages.

        ListFunctionsRequest is not parsed, because it has no fields.
        """
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Execute": grpc.stream_stream_rpc_method_handler(self.execute),
                "ListFunctions": grpc.unary_unary_rpc_method_handler(
                    self.list_functions,
                    response_serializer=service_pb2.ListFunctionsResponse.SerializeToString,
                ),
                "GetProgress": grpc.unary_unary_rpc_method_handler(
                    self.get_progress,
                    request_deserializer=service_pb2.GetProgressRequest.FromString,
                    response_serializer=service_pb2.GetProgressResponse.SerializeToString,
                ),
            },
        )

    async def execute(self, requests: AsyncIterator[bytes], context: WritingContext) -> None:
        """Serve one stream; see message.proto."""
        answers = _AnswerWriter(context)
        try:
            caller = self._identify(context)
            counted = await self._enter(context, caller)
        except StreamError as error:
            # The caller is refused before any message of the stream is read.
            await answers.write(encode(error_message(error)))
            return
        who = caller.identity
        try:
            await self._serve(requests, context, caller, answers)
            # A client that does not read still counts as a stream, and holds the message that gRPC has: no other one.
            with self.admission.rooms.holding(answers.unsent, who):
                await answers.sent()
        finally:
            if counted:
                self.open_streams.leave(who)

    async def _serve(
        self, requests: AsyncIterator[bytes], context: WritingContext, caller: Caller, answers: "_AnswerWriter"
    ) -> None:
        entered = await self._entrance.entered(requests, cast("StreamedContext", context), caller, answers.write)
        if isinstance(entered, RelayedStream):
            await self._run(self._relayed, entered, entered.run())
        if entered is None or isinstance(entered, RelayedStream):
            return
        stream = ExecuteStream(
            self.services, caller=caller, headers=context.invocation_metadata() or (), load=self._told_load
        )
        try:
            await self._run(self._open, stream, stream.run(entered, answers.write))
        finally:
            self._progress.ended(stream.progress)

    async def _run(self, running: dict[StreamT, None], stream: StreamT, run: Coroutine[None, None, None]) -> None:
        running[stream] = None
        self._idle.clear()
        try:
            await run
        finally:
            running.pop(stream, None)
            if not self.streams:
                self._idle.set()

    async def list_functions(self, request: bytes, context: UnaryContext) -> service_pb2.ListFunctionsResponse:
        """List every version of every function that the caller may call."""
        try:
            caller = self._identify(context)
        except StreamError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        edits = self.services.edits
        try:
            if edits is not None:
                await edits.require_current()
        except StreamError as error:
            status = grpc.StatusCode.UNAVAILABLE if error.retryable else grpc.StatusCode.FAILED_PRECONDITION
            await context.abort(status, capped(error.message, LONGEST_DETAILS))
        lists = self._lists.setdefault(caller.identity, asyncio.Semaphore(LISTS_AT_ONCE))
        await lists.acquire()
        context.add_done_callback(lambda _: lists.release())  # the client has read it, or has left
        catalog = self._host.registry if self._relay is None else self._relay.catalog
        specs = [function.spec for function in catalog if caller.may_call(function.spec.name)]
        return service_pb2.ListFunctionsResponse(
            functions=[spec.to_proto() for spec in specs],
            server_version=__version__,
            protocol_versions=[PROTOCOL_VERSION],
            weights={spec.key: self.weights[spec.key] for spec in specs if spec.key in self.weights},
            budget="" if self.services.budgets is None else self.services.budgets.identity,
            code="" if edits is None else edits.code,
        )

    async def get_progress(
        self, request: service_pb2.GetProgressRequest, context: UnaryContext
    ) -> service_pb2.GetProgressResponse:
        """Return the load, and what was answered for a session, whose id only its driver and tasks know."""
        try:
            self._identify(context)
        except StreamError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, error.message)
        streams = self._open if request.session else ()  # who asks for the load only asks often
        response = self._progress.of(request.session, (stream.progress for stream in streams))
        response.partial, response.server = not self._alone, self._id
        if (load := self._told_load()) is not None:
            response.load.CopyFrom(load)
        for other in () if self._relay is None else await self._relay.progress(request, context):
            add_other_process(response, other)
        return response

    def _told_load(self) -> message_pb2.Load | None:
        """None while it drains: then no client should choose it."""
        return None if self.draining else self._load.message(self.streams)

    def _identify(self, context: RequestContext) -> Caller:
        """Identify the caller. Raises StreamError UNAUTHENTICATED, after writing it to the audit log."""
        metadata = context.invocation_metadata() or ()
        peer, auth = origin_of(context) if self._route else (context.peer(), context.auth_context())
        try:
            return self._access.identify(metadata, auth, peer)
        except StreamError as error:
            self._metrics.rejected.labels(error.code).inc()
            audit.warning("caller refused", extra={"peer": peer, "why": error.message})
            raise

    async def _enter(self, context: RequestContext, caller: Caller) -> bool:
        """Count a stream, unless the process that has passed it on counts it. Returns whether it was counted here.

        Raises StreamError, after counting it, if the caller gets no further stream now.
        """
        most = caller.settings.max_streams or self.admission.limits.streams_per_caller
        counted = not self._route or is_at_port(context)
        code, message = ErrorCode.SHUTTING_DOWN, "the server is shutting down"
        if not self.draining:
            code, message = ErrorCode.OVERLOADED, ""
            if counted:
                message = await self.open_streams.enter(caller.identity, most)
            if not message:
                return counted
        self._metrics.rejected.labels(code).inc()
        raise StreamError(ErrorKind.WORKER, code, message, retryable=True, retry_after=RETRY_SECONDS)


class _AnswerWriter:
    """Writes the messages of a handler to its client. Create it in the handler's task.

    If the client is gone, it cancels the handler. gRPC does so too, but later, or not at all.
    """

    def __init__(self, context: WritingContext) -> None:
        self._context = context
        self._handler = asyncio.current_task()
        self._in_flight: asyncio.Future[None] | None = None
        self._size = 0

    @property
    def unsent(self) -> int:
        """The bytes of the message that the client has not read."""
        return 0 if self._in_flight is None or self._in_flight.done() else self._size

    async def write(self, message: bytes) -> None:
        self._size = len(message)
        # If the caller is cancelled, the write continues, because gRPC cannot cancel it.
        self._in_flight = asyncio.ensure_future(self._write(message))
        await asyncio.shield(self._in_flight)

    async def sent(self) -> None:
        """Wait until no write is in flight. If the handler ended earlier, gRPC could not end its stream any more."""
        if self._in_flight is not None:
            await self._in_flight

    async def _write(self, message: bytes) -> None:
        try:
            await self._context.write(message)
        except Exception:  # gRPC's own class is private
            assert self._handler is not None
            self._handler.cancel()
            raise asyncio.CancelledError from None
