"""SmallRequests: bounds the requests that gRPC parses on the event loop, before any code of ours sees them."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

__all__ = ["SmallRequests"]

MOST_BYTES = 64 << 10
"""Of a request to the services for health and reflection, which are names. A stream's messages are read elsewhere."""


class SmallRequests(aio.ServerInterceptor):  # type: ignore[misc] # its module has no types
    """Refuses larger ones, of which protobuf might make seconds of work."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        return handler._replace(request_deserializer=_bounded(handler.request_deserializer))


def _bounded(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def parsed(data: bytes) -> Any:
        if len(data) > MOST_BYTES:
            raise ValueError(f"a request of {len(data)} bytes; at most {MOST_BYTES}")
        return parse(data)

    return parsed
