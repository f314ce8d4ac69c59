"""The gRPC service: hands streams to ExecuteStream and lists functions. Translates, decides nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
from grpc import aio

from remote_udf.errors import ErrorCode
from remote_udf.messages import encode
from remote_udf.v1 import message_pb2, service_pb2
from remote_udf.version import __version__
from udf_server.accounting import StreamLimits
from udf_server.hosting import FunctionHost
from udf_server.metrics import ServerMetrics
from udf_server.session import PROTOCOL_VERSION
from udf_server.stream import ExecuteStream

__all__ = ["SERVICE_NAME", "UdfService"]

SERVICE_NAME = service_pb2.DESCRIPTOR.services_by_name["UdfService"].full_name


class UdfService:
    """The methods of `remote_udf.v1.UdfService`. While draining it refuses new streams."""

    def __init__(self, host: FunctionHost, metrics: ServerMetrics, limits: StreamLimits, max_streams: int) -> None:
        self._host = host
        self._metrics = metrics
        self._limits = limits
        self._max_streams = max_streams
        self._streams = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @property
    def streams(self) -> int:
        """Streams open now."""
        return self._streams

    async def wait_idle(self) -> None:
        """Returns when no stream is open."""
        await self._idle.wait()

    def handler(self) -> grpc.GenericRpcHandler:
        """What to add to a gRPC server. Execute's messages stay bytes: see remote_udf.messages."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Execute": grpc.stream_stream_rpc_method_handler(self.execute),
                "ListFunctions": grpc.unary_unary_rpc_method_handler(
                    self.list_functions,
                    request_deserializer=service_pb2.ListFunctionsRequest.FromString,
                    response_serializer=service_pb2.ListFunctionsResponse.SerializeToString,
                ),
            },
        )

    async def execute(self, requests: AsyncIterator[bytes], context: aio.ServicerContext[Any, Any]) -> None:
        """One stream; see message.proto."""
        refusal = self._refusal()
        if refusal is not None:
            self._metrics.rejected.labels(refusal.code).inc()
            await context.write(encode(message_pb2.ExecuteResponse(error=refusal)))
            return
        self._streams += 1
        self._idle.clear()
        try:
            await ExecuteStream(self._host, self._metrics, self._limits).run(requests, context.write)
        finally:
            self._streams -= 1
            if not self._streams:
                self._idle.set()

    async def list_functions(
        self, request: service_pb2.ListFunctionsRequest, context: aio.ServicerContext[Any, Any]
    ) -> service_pb2.ListFunctionsResponse:
        """Every function in every version."""
        return service_pb2.ListFunctionsResponse(
            functions=[function.spec.to_proto() for function in self._host.registry],
            server_version=__version__,
            protocol_versions=[PROTOCOL_VERSION],
        )

    def _refusal(self) -> message_pb2.Error | None:
        if self.draining:
            code, message = ErrorCode.SHUTTING_DOWN, "the server is shutting down"
        elif self._streams >= self._max_streams:
            code, message = ErrorCode.OVERLOADED, f"the server has {self._streams} streams open and takes no more"
        else:
            return None
        error = message_pb2.Error(kind=message_pb2.Error.KIND_WORKER, code=code, message=message, retryable=True)
        error.retry_after.FromSeconds(1)
        return error
