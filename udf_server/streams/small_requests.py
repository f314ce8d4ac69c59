"""SmallRequests checks the size of requests to the health and reflection services, and parses them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

__all__ = ["SmallRequests"]

MOST_BYTES = 64 << 10
"""Maximum size of a request to these services, which contains only names. It does not apply to Execute."""

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


class _Aborting(Protocol):
    async def abort(self, code: grpc.StatusCode, details: str, /) -> NoReturn: ...


class SmallRequests(aio.ServerInterceptor):
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
    serve: Callable[[AsyncIterator[RequestT], _Aborting], AsyncIterator[ResponseT]], parse: Callable[[bytes], RequestT]
) -> Callable[[AsyncIterator[bytes], _Aborting], AsyncIterator[ResponseT]]:
    async def requests(given: AsyncIterator[bytes], context: _Aborting) -> AsyncIterator[RequestT]:
        async for request in given:
            yield await _parsed(request, parse, context)

    async def served(given: AsyncIterator[bytes], context: _Aborting) -> AsyncIterator[ResponseT]:
        async for answer in serve(requests(given, context), context):
            yield answer

    return served


async def _parsed(request: bytes, parse: Callable[[bytes], RequestT], context: _Aborting) -> RequestT:
    if len(request) > MOST_BYTES:
        why = f"a request of {len(request)} bytes; at most {MOST_BYTES}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, why)
    try:
        return parse(request)
    except DecodeError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a request of this method: {error}")
