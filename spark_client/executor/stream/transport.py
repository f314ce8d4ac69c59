"""GrpcTransport connects to the servers of a target by gRPC."""

import contextlib
import queue
import random
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TypeAlias, TypeVar

import grpc
from google.protobuf.message import Message

from remote_udf.spans import Headers
from remote_udf.v1 import service_pb2
from spark_client.base.config import ClientConfig
from spark_client.base.errors import AccessDenied, EmbeddedServerFailed, NotARemoteUdfServer, ServerUnavailable
from spark_client.base.server_load import ServerLoad
from spark_client.base.transport import Place, Question, Responses, Transport, TransportLost
from spark_client.executor.stream.balancing import LoadCall, LoadQuestion
from spark_client.executor.stream.channels import Channel, Channels, FutureAnswer, GrpcStream, process_channels
from spark_client.executor.stream.endpoints import Endpoint, Endpoints, process_endpoints

__all__ = ["GrpcTransport", "NoGrpcServer", "translated", "transport_for"]

SERVICE_NAME = service_pb2.DESCRIPTOR.services_by_name["UdfService"].full_name

MOST_ASKED = 16
"""Maximum number of servers of a target that are asked for their functions. If there are more, they are sampled."""
LOAD_SECONDS = 2.0
"""How long a server may take to tell its load."""
PATIENCE_SECONDS = 1.0
"""How long the other servers may take to answer once one has answered or failed."""

_LOST = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DEADLINE_EXCEEDED,
    }
)
"""Status codes after which the rows in flight are sent again: the server or the network has failed."""

_NO_HTTP2 = ("Failed parsing HTTP/2 (Expected SETTINGS", "Trying to connect an http1.x server", "WRONG_VERSION_NUMBER")
"""Texts of gRPC that show that the peer does not speak HTTP/2, or not TLS. They have no status code of their own."""


_Call: TypeAlias = FutureAnswer[service_pb2.ListFunctionsResponse]
Response = TypeVar("Response")


class NoGrpcServer(TransportLost):
    """The peer does not speak HTTP/2, or only one side uses TLS. It may be a proxy whose server is not available."""


class GrpcTransport:
    """Streams over the process's channels, to the endpoints of the target in turn."""

    def __init__(
        self,
        config: ClientConfig,
        headers: Headers = (),
        *,
        endpoints: Endpoints | None = None,
        channels: Channels | None = None,
    ) -> None:
        """`headers` are sent with every stream. By default, endpoints and channels are those of the process."""
        self._headers = tuple(headers)
        self._security = config.security
        self._endpoints = endpoints or process_endpoints(config.target)
        self._channels = channels or process_channels()

    def servers(self) -> Sequence[str]:
        return [endpoint.address for endpoint in self._listed()]

    def execute(self, requests: Iterator[bytes], avoid: Container[str] = (), place: Place | None = None) -> Responses:
        self._listed()
        endpoint = self._endpoints.pick(avoid, place)
        metadata = (*(self._security.metadata() or ()), *self._headers)

        def begin(channel: grpc.Channel) -> GrpcStream[bytes]:
            method: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(f"/{SERVICE_NAME}/Execute")
            return method(requests, metadata=metadata)

        channel, call = self._channels.start(endpoint.at(place), self._security, begin)
        return _GrpcResponses(call, channel, self._channels, endpoint, self._endpoints)

    def list_functions(self, seconds: float) -> Sequence[service_pb2.ListFunctionsResponse]:
        listed = self._listed()
        asked = random.sample(listed, min(len(listed), MOST_ASKED))
        done: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        calls: dict[_Call, tuple[Endpoint, Channel]] = {}
        request, response = service_pb2.ListFunctionsRequest(), service_pb2.ListFunctionsResponse
        begin = self._unary("ListFunctions", request, response.FromString, seconds)
        for endpoint in asked:
            channel, call = self._channels.start(endpoint, self._security, begin)
            call.add_done_callback(done.put)
            calls[call] = endpoint, channel
        answers: list[service_pb2.ListFunctionsResponse] = []
        problems: list[Exception] = []
        while calls:
            try:
                # After the first answer or failure, the wait is short, so that no plan waits for a server that hangs.
                call = done.get(timeout=PATIENCE_SECONDS if answers or problems else None)
            except queue.Empty:
                break
            endpoint, channel = calls.pop(call)
            try:
                answers.append(call.result())
                self._endpoints.succeeded(endpoint)
            except grpc.RpcError as error:
                self._endpoints.failed(endpoint)
                self._channels.failed(channel)
                problems.append(translated(error, endpoint.address))
        for call, (endpoint, channel) in calls.items():
            call.cancel()
            self._endpoints.failed(endpoint)
            self._channels.failed(channel)
        if not answers:
            # A refusal is more informative than a server that cannot be reached.
            raise min(problems, key=lambda problem: isinstance(problem, TransportLost))
        return answers

    def heard_load(self, server: str, load: ServerLoad) -> None:
        self._endpoints.heard(server, load)

    def ask_loads(self, server: str) -> Question | None:
        try:
            other = self._endpoints.other(server)
            mine = next((endpoint for endpoint in self._endpoints.listed() if endpoint.address == server), None)
            if mine is None or other is None:
                return None
            begin = self._asks()
            started = {each.address: self._channels.start(each, self._security, begin) for each in (mine, other)}
        except (OSError, AccessDenied):
            return None  # the stream goes on, and needs neither names nor credentials

        def ended(loads: Mapping[str, ServerLoad]) -> None:
            for address, load in loads.items():
                self._endpoints.heard(address, load)
            self._channels.unneeded(started[other.address][0])

        return LoadQuestion({address: call for address, (_, call) in started.items()}, ended)

    def _asks(self, session: str = "", seconds: float = LOAD_SECONDS) -> Callable[[grpc.Channel], LoadCall]:
        """What begins a call of GetProgress on a channel."""
        request, response = service_pb2.GetProgressRequest(session=session), service_pb2.GetProgressResponse
        return self._unary("GetProgress", request, response.FromString, seconds)

    def _unary(
        self, method: str, request: Message, read: Callable[[bytes], Response], seconds: float
    ) -> Callable[[grpc.Channel], FutureAnswer[Response]]:
        """What begins a call of this method on a channel."""
        metadata = self._security.metadata()

        def begin(channel: grpc.Channel) -> FutureAnswer[Response]:
            call = channel.unary_unary(
                f"/{SERVICE_NAME}/{method}", request_serializer=type(request).SerializeToString,
                response_deserializer=read,
            )  # fmt: skip
            return call.future(request, timeout=seconds, metadata=metadata)

        return begin

    def progress(
        self, session: str, seconds: float, servers: Container[str]
    ) -> Mapping[str, service_pb2.GetProgressResponse]:
        """What each of the servers that answers within `seconds` has answered for the session, by address.

        Raises TransportLost.
        """
        begin = self._asks(session, seconds)
        asked = [endpoint for endpoint in self._listed() if endpoint.address in servers]
        calls = {endpoint.address: self._channels.start(endpoint, self._security, begin)[1] for endpoint in asked}
        answers = {}
        for address, call in calls.items():
            with contextlib.suppress(grpc.RpcError):  # an older server, or one that is gone
                answers[address] = call.result()
        return answers

    def _listed(self) -> Sequence[Endpoint]:
        try:
            return self._endpoints.listed()
        except OSError as error:
            raise TransportLost(f"the name cannot be resolved: {error}") from error


class _GrpcResponses:
    def __init__(
        self, call: GrpcStream[bytes], channel: Channel, channels: Channels, endpoint: Endpoint,
        endpoints: Endpoints,
    ) -> None:  # fmt: skip
        self._call, self._channel, self._channels = call, channel, channels
        self._endpoint, self._endpoints = endpoint, endpoints
        self.same_host = endpoint.same_host
        self.server = endpoint.address
        self._heard = False

    def __next__(self) -> bytes:
        try:
            message = next(self._call)
        except grpc.RpcError as error:
            if error.code() in _LOST:
                self._channels.failed(self._channel)
            raise translated(error, self._endpoint.address) from error
        if not self._heard:
            self._heard = True
            self._endpoints.succeeded(self._endpoint)
        return message

    def cancel(self) -> None:
        self._call.cancel()

    def distrust(self, seconds: float = 0.0, *, leave: bool = False) -> None:
        if leave:
            self._channels.failed(self._channel)
        self._endpoints.failed(self._endpoint, seconds)


def transport_for(config: ClientConfig, headers: Headers = ()) -> Transport:
    """The transport to the configured target: over the network, or in this process for "local:...", as in tests.

    `headers` are sent with every stream over the network.
    """
    scheme, _, plugin = config.target.partition(":")
    # With a port it is a host of that name.
    if config.in_process is not None and scheme == "local" and not plugin.isdigit():
        return config.in_process(plugin)
    return GrpcTransport(config, headers)


def translated(error: grpc.RpcError, target: str) -> Exception:
    """Translate gRPC's status codes to errors of this project."""
    code, details = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return NotARemoteUdfServer(f"the server at {target} offers no {SERVICE_NAME}: {details}")
    if code is grpc.StatusCode.UNAVAILABLE and any(words in details for words in _NO_HTTP2):
        return NoGrpcServer(f"{code.name}: {details}")
    if code is grpc.StatusCode.UNAUTHENTICATED:
        return AccessDenied(f"the server at {target} rejects this caller: {details}")
    if code in _LOST:
        return TransportLost(f"{code.name}: {details}")
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return EmbeddedServerFailed(f"the server at {target} cannot serve its plugins: {details}")
    return ServerUnavailable(f"the server at {target} refused the stream: {code.name}: {details}")
