"""Where the web UI's contents come from: the server of this process, or its worker processes."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from urllib.error import HTTPError

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from remote_udf.function_names import split_name
from remote_udf.functions import FunctionKind
from remote_udf.v1 import message_pb2 as pb
from udf_server.page.catalogue import Catalogue, added_up, catalogue, united
from udf_server.page.site import Credentials, HttpRefusal, Tried
from udf_server.page.texts import argument_columns, with_text_keys
from udf_server.security.access import Access, Caller
from udf_server.streams.in_process import Exchange
from udf_server.streams.service import UdfService

__all__ = ["Ask", "ForwardedSource", "LocalSource"]

PEER = "http"
"""The peer of these calls in the audit log."""
TRY_SECONDS = 60.0


class LocalSource:
    """Call its methods on the threads of the HTTP server. The service runs on the event loop."""

    def __init__(
        self, service: UdfService, access: Access, loop: asyncio.AbstractEventLoop, ready: Callable[[], bool], *,
        try_calls: bool, tokens_allowed: bool, device: str | None,
    ) -> None:  # fmt: skip
        """If `tokens_allowed` is set, tokens are accepted over plain HTTP. `device` is that of the process."""
        self._service, self._access, self._loop, self._ready = service, access, loop, ready
        self._registry = service.services.host.registry
        self._try_calls, self._tokens_allowed = try_calls, tokens_allowed
        self._devices = [] if device is None else [device]

    def catalogue(self, credentials: Credentials) -> Catalogue:
        caller = self._caller(credentials)
        return catalogue(
            self._registry, self._service.services.metrics, may_see=caller.may_call, ready=self._ready(),
            try_calls=self._try_calls, devices=self._devices, weights=self._service.weights,
            budgets=self._service.services.budgets,
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


Ask = Callable[[str, Credentials, bytes | None], str]
"""Requests a path from a worker, with a body or without. Raises OSError, of which HTTPError is a subclass."""


class ForwardedSource:
    """The worker processes of a server, by group. A server without groups has one, whose name is None."""

    def __init__(
        self, workers: Callable[[], Mapping[str | None, Sequence[Ask]]], group_of: Callable[[str], str | None]
    ) -> None:
        """`workers` returns one function per current worker of each group, which sends a request to it.

        `group_of` returns the group of a function by its name and version.
        """
        self._workers, self._group_of = workers, group_of

    def catalogue(self, credentials: Credentials) -> Catalogue:
        found = {group: self._asked(workers, credentials) for group, workers in self._workers().items()}
        there = {group: added_up(catalogues) for group, catalogues in found.items() if catalogues}
        if not there:
            raise HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "no worker process answers")
        return united(there)

    @staticmethod
    def _asked(workers: Sequence[Ask], credentials: Credentials) -> list[Catalogue]:
        found = []
        for ask in workers:
            try:
                found.append(json.loads(ask("/catalog.json", credentials, None)))
            except HTTPError as error:
                _refuse(error)
            except OSError:
                continue  # it is being restarted
        return found

    def try_call(self, credentials: Credentials, function: str, arguments: list[str]) -> Tried:
        body = json.dumps({"function": function, "arguments": arguments}).encode()
        for ask in self._workers()[self._group_of(function)]:
            try:
                said: Tried = json.loads(ask("/try", credentials, body))
            except HTTPError as error:
                _refuse(error)
            except OSError:
                continue
            else:
                return said
        raise HttpRefusal(HTTPStatus.SERVICE_UNAVAILABLE, "no worker process answers")


def _refuse(error: HTTPError) -> None:
    """Raise the error that the worker has returned."""
    with error:
        try:
            said = json.loads(error.read())["error"]
        except (ValueError, LookupError):  # the response is not from its web UI
            raise HttpRefusal(HTTPStatus(error.code), str(error.reason)) from error
    if error.code == HTTPStatus.UNAUTHORIZED:
        raise StreamError(ErrorKind.PROTOCOL, ErrorCode.UNAUTHENTICATED, said["message"])
    raise HttpRefusal(HTTPStatus(error.code), said["message"])
