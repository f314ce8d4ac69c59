"""SmallRequests checks the size of requests to the health and reflection services, and parses them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

__all__ = ["SmallRequests"]

MOST_BYTES = 64 << 10
"""Maximum size of a request to these services, which contains only names. It does not apply to Execute."""


class SmallRequests(aio.ServerInterceptor):  # type: ignore[misc] # its module has no types
    """Refuses requests that are too large, which protobuf may parse for seconds, or that are not valid messages.

    gRPC itself treats an error of its parser as an error of the server, and logs it with a traceback.
    """

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        parse = handler.request_deserializer
        if handler.request_streaming:
            changed = {"stream_stream": _of_many(handler.stream_stream, parse)}
        elif handler.response_streaming:
            changed = {"unary_stream": _of_one(handler.unary_stream, parse)}
        else:
            changed = {"unary_unary": _of_one(handler.unary_unary, parse)}
        return handler._replace(request_deserializer=None, **changed)


def _of_one(serve: Any, parse: Callable[[bytes], Any]) -> Any:
    async def served(request: bytes, context: Any) -> Any:
        return await serve(await _parsed(request, parse, context), context)

    return served


def _of_many(serve: Any, parse: Callable[[bytes], Any]) -> Any:
    async def requests(given: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async for request in given:
            yield await _parsed(request, parse, context)

    async def served(given: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        async for answer in serve(requests(given, context), context):
            yield answer

    return served


async def _parsed(request: bytes, parse: Callable[[bytes], Any], context: Any) -> Any:
    if len(request) > MOST_BYTES:
        why = f"a request of {len(request)} bytes; at most {MOST_BYTES}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
    try:
        return parse(request)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a request of this method: {error}")
