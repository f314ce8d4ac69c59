"""GrpcServer is the gRPC server of one process: its address, TLS, limits, health service and reflection."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from udf_server.base.errors import InvalidConfig
from udf_server.base.open_files import affordable_connections
from udf_server.security.files import server_credentials
from udf_server.serving.addresses import remove_stale_socket
from udf_server.serving.config import ServerConfig
from udf_server.serving.membership import Membership
from udf_server.streams.service import SERVICE_NAME, UdfService

__all__ = ["GrpcServer"]

HANDSHAKE_SECONDS = 10.0
"""If a connection has not completed its TLS and HTTP/2 handshake in this time, it is closed."""
MOST_WATCHERS = 500
"""Maximum number of streams of gRPC's health service, which does not authenticate callers."""
SMALL_BYTES = 64 << 10
"""Maximum size of a request to these services, which contains only names. It does not apply to Execute."""

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class GrpcServer:
    """Serves functions on one address. Create it on the event loop that it runs on."""

    def __init__(
        self, config: ServerConfig, service: UdfService, *, reflects: bool, share_port: bool,
        on_reload: Callable[[bool], None], loops: int, membership: Membership,
    ) -> None:  # fmt: skip
        """`on_reload` is called after each reload of changed TLS files, with whether they are valid.

        Reflection lists the services to every caller, so set `reflects` only if access is not restricted. With
        `share_port`, other processes may listen on the same port. `loops` is the number of functions that may have an
        event loop. A process of a group listens where its `membership` says: on a socket, for other processes of this
        server, and at a port.
        """
        self._config, self._on_reload, self._membership = config, on_reload, membership
        self._behind = membership.socket is not None
        self._path = membership.socket or (Path(config.unix_socket) if config.unix_socket else None)
        self._server = aio.server(
            interceptors=(_SmallRequests(),),
            options=_options(config, share_port=share_port, loops=loops, behind=self._behind),
        )
        self._server.add_generic_rpc_handlers((service.handler(),))
        self._health = _Health()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if reflects:
            health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
            names = (SERVICE_NAME, health_name, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)

    async def start(self) -> str:
        """Listen. Returns the address for clients. Raises InvalidConfig if that is not possible."""
        target = self._listen()
        await self._server.start()
        return target

    async def set_ready(self, ready: bool) -> None:
        """Tell clients of the health service whether new streams are accepted."""
        serving = health_pb2.HealthCheckResponse
        status = serving.SERVING if ready else serving.NOT_SERVING
        for name in ("", SERVICE_NAME):
            await self._health.set(name, status)

    async def stop(self, grace: float) -> None:
        """Stop listening, and cancel the streams that have not ended after `grace` seconds."""
        await self._server.stop(grace=grace)

    def _listen(self) -> str:
        config, credentials = self._config, self._credentials()
        host = f"[{config.host}]" if ":" in config.host else config.host
        if self._path is None:
            return f"{host}:{self._bind(f'{host}:{config.port}', credentials)}"
        path = self._path.absolute()
        remove_stale_socket(path)
        # The socket must be accessible to its owner only, from its creation on.
        old_mask = os.umask(0o177)
        try:
            self._bind(f"unix:{path}", None if self._behind else credentials)
        finally:
            os.umask(old_mask)
        if self._membership.port is not None:
            self._bind(f"{host}:{self._membership.port}", credentials)
        return f"unix:{path}"

    def _bind(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Bind an address. Returns its port. Raises InvalidConfig."""
        try:
            if credentials is None:
                return self._server.add_insecure_port(address)
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise InvalidConfig(f"cannot listen on {address}: {error}") from error

    def _credentials(self) -> grpc.ServerCredentials | None:
        """The TLS credentials; None without TLS. Raises InvalidConfig."""
        config = self._config
        if not config.tls_certificate or not config.tls_key:
            return None
        client_ca = Path(config.tls_client_ca) if config.tls_client_ca else None
        certificate, key = Path(config.tls_certificate), Path(config.tls_key)
        return server_credentials(certificate, key, client_ca, on_reload=self._on_reload)


class _Health(health_aio.HealthServicer):
    """gRPC's health service, with a limit of the number of Watch streams."""

    def __init__(self) -> None:
        super().__init__()
        self._watching = 0

    async def Watch(  # noqa: N802 - the name of the base class
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> None:
        if self._watching >= MOST_WATCHERS:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{MOST_WATCHERS} watch already; use Check")
        self._watching += 1
        try:
            await super().Watch(request, context)
        finally:
            self._watching -= 1


def _options(config: ServerConfig, *, share_port: bool, loops: int, behind: bool) -> list[tuple[str, int]]:
    keepalive, idle = round(config.keepalive_seconds * 1000), round(config.idle_seconds * 1000)
    return [
        ("grpc.max_receive_message_length", config.max_message_bytes),
        ("grpc.max_send_message_length", config.max_message_bytes),
        ("grpc.so_reuseport", int(share_port)),
        # Clients send keepalive pings while a stream is idle.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
        ("grpc.http2.max_ping_strikes", 0),
        # So does the server: otherwise a client that vanished would keep its streams open for hours.
        ("grpc.keepalive_time_ms", keepalive),
        ("grpc.keepalive_timeout_ms", keepalive),
        ("grpc.http2.ping_timeout_ms", keepalive),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.server_handshake_timeout_ms", round(HANDSHAKE_SECONDS * 1000)),
        ("grpc.max_connection_idle_ms", idle),
        ("grpc.max_allowed_incoming_connections", affordable_connections(config.max_connections, loops)),
        # A connection may also have other calls, such as ListFunctions and health checks. That of a process which
        # passes streams on has those of all callers.
        ("grpc.max_concurrent_streams", (config.max_streams if behind else config.max_streams_per_caller) + 100),
    ]


class _Aborting(Protocol):
    async def abort(self, code: grpc.StatusCode, details: str, /) -> NoReturn: ...


class _SmallRequests(aio.ServerInterceptor):
    """Refuses requests that are too large, which protobuf may parse for seconds, or that are not valid messages.

    gRPC itself treats an error of its parser as an error of the server, and logs it with a traceback.
    """

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], "Awaitable[grpc.RpcMethodHandler[RequestT, ResponseT] | None]"
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "grpc.RpcMethodHandler[RequestT, ResponseT] | None":
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        parse, write = handler.request_deserializer, handler.response_serializer
        serve: Any  # gRPC's types of a handler are those of its blocking API
        if handler.request_streaming:
            serve = handler.stream_stream
            return grpc.stream_stream_rpc_method_handler(_of_many(serve, parse), response_serializer=write)
        if handler.response_streaming:
            serve = handler.unary_stream
            return grpc.unary_stream_rpc_method_handler(_of_one(serve, parse), response_serializer=write)
        serve = handler.unary_unary
        return grpc.unary_unary_rpc_method_handler(_of_one(serve, parse), response_serializer=write)


def _of_one(
    serve: Callable[[RequestT, _Aborting], Awaitable[ResponseT]], parse: Callable[[bytes], RequestT]
) -> Callable[[bytes, _Aborting], Awaitable[ResponseT]]:
    async def served(request: bytes, context: _Aborting) -> ResponseT:
        return await serve(await _parsed(request, parse, context), context)

    return served


def _of_many(
    serve: Callable[[AsyncIterator[RequestT], _Aborting], AsyncIterator[ResponseT]],
    parse: Callable[[bytes], RequestT],
) -> Callable[[AsyncIterator[bytes], _Aborting], AsyncIterator[ResponseT]]:
    async def requests(given: AsyncIterator[bytes], context: _Aborting) -> AsyncIterator[RequestT]:
        async for request in given:
            yield await _parsed(request, parse, context)

    async def served(given: AsyncIterator[bytes], context: _Aborting) -> AsyncIterator[ResponseT]:
        async for answer in serve(requests(given, context), context):
            yield answer

    return served


async def _parsed(request: bytes, parse: Callable[[bytes], RequestT], context: _Aborting) -> RequestT:
    if len(request) > SMALL_BYTES:
        why = f"a request of {len(request)} bytes; at most {SMALL_BYTES}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
    try:
        return parse(request)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a request of this method: {error}")
