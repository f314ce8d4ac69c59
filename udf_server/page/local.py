"""LocalSource gets the web UI's contents from this process. A test call is processed like every other call."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType

from remote_udf.errors import ErrorCode, StreamError
from remote_udf.functions import FunctionKind, split_name
from remote_udf.v1 import message_pb2 as pb
from udf_server.base.metrics import ServerMetrics
from udf_server.hosting.registry import Registry
from udf_server.limits.budgets import Budgets
from udf_server.page.catalogue import Catalogue, catalogue
from udf_server.page.site import Credentials, HttpRefusal, Tried
from udf_server.page.texts import argument_columns, with_text_keys
from udf_server.security.access import Access, Caller
from udf_server.streams.in_process import Exchange
from udf_server.streams.service import UdfService

__all__ = ["LocalSource"]

PEER = "http"
"""The peer of these calls in the audit log."""
TRY_SECONDS = 60.0


class LocalSource:
    """Call its methods on the threads of the HTTP server. The service runs on the event loop."""

    def __init__(
        self, registry: Registry, metrics: ServerMetrics, access: Access, service: UdfService,
        loop: asyncio.AbstractEventLoop, ready: Callable[[], bool], *, try_calls: bool, tokens_allowed: bool,
        device: str | None = None, weights: Mapping[str, float] = MappingProxyType({}), budgets: Budgets | None = None,
    ) -> None:  # fmt: skip
        """If `tokens_allowed` is set, tokens are accepted over plain HTTP. `device` is that of the process."""
        self._devices = [] if device is None else [device]
        self._weights, self._budgets = weights, budgets
        self._registry, self._metrics, self._access, self._service = registry, metrics, access, service
        self._loop, self._ready = loop, ready
        self._try_calls, self._tokens_allowed = try_calls, tokens_allowed

    def catalogue(self, credentials: Credentials) -> Catalogue:
        caller = self._caller(credentials)
        return catalogue(
            self._registry, self._metrics, may_see=caller.may_call, ready=self._ready(), try_calls=self._try_calls,
            devices=self._devices, weights=self._weights, budgets=self._budgets,
            # What others spend is for the operator, who has /metrics.
            whose=lambda name: not self._access.restricted or name == caller.name,
        )  # fmt: skip

    def try_call(self, credentials: Credentials, function: str, arguments: list[str]) -> Tried:
        caller = self._caller(credentials)
        caller.require(_split(function)[0])
        in_flight = asyncio.run_coroutine_threadsafe(self._call(credentials, caller, function, arguments), self._loop)
        try:
            return in_flight.result(TRY_SECONDS)
        except StreamError as error:
            if error.code is ErrorCode.ARGUMENT_VALUE:
                raise HttpRefusal(HTTPStatus.BAD_REQUEST, error.message) from error
            return _error(error.code.value, error.message)
        except TimeoutError:
            in_flight.cancel()
            return _error("TIMEOUT", f"no result within {TRY_SECONDS:g} s")

    def _caller(self, credentials: Credentials) -> Caller:
        if self._access.restricted and not self._access.takes_tokens:
            raise HttpRefusal(
                HTTPStatus.FORBIDDEN, "callers are identified by certificates, which this port cannot check without TLS"
            )
        if self._access.restricted and not self._tokens_allowed:
            raise HttpRefusal(
                HTTPStatus.FORBIDDEN,
                "a token would be sent unencrypted: use the server's own machine, or, if a proxy encrypts, set "
                "allow_plaintext=true",
            )
        return self._access.identify(credentials, {}, PEER)

    async def _call(self, credentials: Credentials, caller: Caller, name: str, texts: list[str]) -> Tried:
        """Call the function for one row over one stream, with the limits, guards, metrics and audit of gRPC calls."""
        function = self._registry.find(*_split(name), may_see=caller.may_call)
        if function.spec.kind is not FunctionKind.SCALAR:
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, f"function {function.spec.key} is not a scalar function")
        columns = {f"a{index}": column for index, column in enumerate(argument_columns(function, texts))}
        context = pb.CallContext(operation_id="page", job="page", stage=-1, micro_batch=-1)
        exchange = Exchange(function.spec, columns, 1, context=context, options={"output-mode": "ordered"})
        began = time.monotonic()
        await self._service.execute(exchange.requests(), _Context(credentials, exchange.receive))
        return {**_outcome(exchange), "seconds": time.monotonic() - began}


class _Context:
    """A replacement for the gRPC context of a call."""

    def __init__(self, credentials: Credentials, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._credentials, self.write = credentials, write

    def invocation_metadata(self) -> Credentials:
        return self._credentials

    def auth_context(self) -> Mapping[str, list[bytes]]:
        return {}

    def peer(self) -> str:
        return PEER


def _outcome(exchange: Exchange) -> Tried:
    try:
        if not exchange.answered:
            return _error("CANCELLED", "the stream ended without a result")
    except StreamError as error:
        return _error(error.code.value, error.message)
    values, errors, _ = exchange.outcomes()
    if errors:
        return _error(errors[0].code.value, errors[0].message)
    return {"value": with_text_keys(values.to_pylist(maps_as_pydicts="strict")[0])}


def _split(name: str) -> tuple[str, str]:
    try:
        return split_name(name)
    except ValueError as error:
        raise HttpRefusal(HTTPStatus.BAD_REQUEST, str(error)) from error


def _error(code: str, message: str) -> Tried:
    return {"error": {"code": code, "message": message}}
