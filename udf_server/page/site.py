"""Site has the paths of the web UI, checks access to them, and sets headers that restrict the browser."""

import base64
import binascii
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from importlib.resources import files
from typing import Any, NamedTuple, Protocol, TypedDict
from urllib.parse import urlsplit
from wsgiref.types import WSGIEnvironment

from remote_udf.errors import ErrorCode, StreamError
from udf_server.page.catalogue import Catalogue
from udf_server.page.html import error_page, page

__all__ = ["PATHS", "Credentials", "HttpRefusal", "Response", "Site", "Source", "Tried"]

PATHS = frozenset({"/", "/catalog.json", "/page.js", "/page.css", "/try"})
Credentials = tuple[tuple[str, str], ...]
"""The same as in gRPC metadata: the pair of `authorization` and "Bearer TOKEN", or nothing."""

_ASSETS = {"/page.js": "text/javascript", "/page.css": "text/css"}
_HEADERS = [
    (
        "Content-Security-Policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
]


@dataclass(frozen=True)
class HttpRefusal(Exception):
    """The request is refused, with this HTTP status and message."""

    status: HTTPStatus
    message: str


class Response(NamedTuple):
    """The response that the HTTP server sends."""

    status: HTTPStatus
    headers: list[tuple[str, str]]
    body: bytes


class Tried(TypedDict, total=False):
    """What a test call returns: a value and its time, or an error."""

    value: Any
    seconds: float
    error: Mapping[str, str]
    """Its code and message."""


class Source(Protocol):
    """The source of the web UI's contents: this process, or the worker processes behind it."""

    def catalogue(self, credentials: Credentials) -> Catalogue:
        """The functions that this caller may see. Raises StreamError UNAUTHENTICATED, or HttpRefusal."""
        ...

    def try_call(self, credentials: Credentials, function: str, arguments: list[str]) -> Tried:
        """Call a function. Returns `value` and `seconds`, or `error` with code and message. Raises as `catalogue`."""
        ...


class Site:
    """Answers requests for PATHS. It handles HTTP only; the source handles functions."""

    def __init__(self, source: Source, *, try_calls: bool, host: str) -> None:
        """`host` is the address that the HTTP server listens on."""
        self._source, self._try_calls, self._host = source, try_calls, host

    def answer(self, environ: WSGIEnvironment) -> Response:
        """The response to a WSGI request for one of PATHS."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        wanted = "POST" if path == "/try" else "GET"
        try:
            if method != wanted:
                raise HttpRefusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} takes {wanted}")
            if path in _ASSETS:
                asset = files("udf_server.page").joinpath("assets", path[1:]).read_bytes()
                return _response(HTTPStatus.OK, _ASSETS[path], asset)
            if path == "/try":
                return _json(HTTPStatus.OK, self._try(environ))
            # A caller without the token that it needs gets 401 first, because browsers prompt for one then.
            found = self._source.catalogue(_credentials(environ))
            self._require_same_site(environ)
            if path == "/catalog.json":
                return _json(HTTPStatus.OK, found)
            return _response(HTTPStatus.OK, "text/html", page(found).encode())
        except StreamError as error:
            unknown = error.code is ErrorCode.UNAUTHENTICATED
            status = HTTPStatus.UNAUTHORIZED if unknown else HTTPStatus.FORBIDDEN
            return _refusal(path, status, error.code.value, error.message)
        except HttpRefusal as refused:
            return _refusal(path, refused.status, refused.status.name, refused.message)

    def _try(self, environ: WSGIEnvironment) -> Tried:
        if not self._try_calls:
            raise HttpRefusal(HTTPStatus.FORBIDDEN, "calls are disabled here: setting 'try_calls' is off")
        self._require_same_site(environ)
        # A form of another site cannot send this type, and a script of it would need a CORS preflight.
        if environ.get("CONTENT_TYPE", "").partition(";")[0].strip() != "application/json":
            raise HttpRefusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the content type of a call must be application/json")
        if "CONTENT_LENGTH" not in environ:
            raise HttpRefusal(HTTPStatus.LENGTH_REQUIRED, "a call must have a Content-Length")
        try:
            call = json.loads(environ["wsgi.input"].read())
            function, arguments = call["function"], call["arguments"]
        except (ValueError, TypeError, KeyError, RecursionError):
            function = arguments = None
        if not isinstance(function, str) or not (
            isinstance(arguments, list) and all(isinstance(argument, str) for argument in arguments)
        ):
            raise HttpRefusal(
                HTTPStatus.BAD_REQUEST, 'a call must be {"function": "name@version", "arguments": ["text", ...]}'
            )
        try:
            "".join((function, *arguments)).encode()
        except UnicodeEncodeError as error:
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, f"the call has an unpaired surrogate: {error.reason}") from None
        return self._source.try_call(_credentials(environ), function, arguments)

    def _require_same_site(self, environ: WSGIEnvironment) -> None:
        """Raise HttpRefusal for requests of another site's page, also if DNS rebinding leads that site's name here."""
        origin, host = environ.get("HTTP_ORIGIN"), environ.get("HTTP_HOST", "")
        try:
            same, name = origin is None or urlsplit(origin).netloc == host, urlsplit(f"//{host}").hostname or ""
        except ValueError:
            raise HttpRefusal(HTTPStatus.BAD_REQUEST, "Host or Origin is not an address") from None
        if not same:
            raise HttpRefusal(HTTPStatus.FORBIDDEN, "the request comes from a page of another site")
        if not _credentials(environ) and not self._is_own(name):
            raise HttpRefusal(
                HTTPStatus.FORBIDDEN, f"a request without a token must be to an address or localhost, not {host!r}"
            )

    def _is_own(self, name: str) -> bool:
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in ("localhost", self._host)
        return True


def _credentials(environ: WSGIEnvironment) -> Credentials:
    """The header as it is. With basic authentication, which browsers offer to users, the password is the token."""
    given = environ.get("HTTP_AUTHORIZATION", "")
    scheme, _, value = given.partition(" ")
    if scheme.lower() == "basic":
        try:
            password = base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return (("authorization", "Bearer "),)
        return (("authorization", f"Bearer {password}"),)
    return (("authorization", given),) if given else ()


def _refusal(path: str, status: HTTPStatus, code: str, message: str) -> Response:
    more = [("WWW-Authenticate", 'Basic realm="udf-server: the token is the password"')]
    headers = more if status is HTTPStatus.UNAUTHORIZED else []
    if path in ("/catalog.json", "/try"):
        return _json(status, {"error": {"code": code, "message": message}}, headers)
    return _response(status, "text/html", error_page(f"udf-server: {status.phrase}", message).encode(), headers)


def _json(status: HTTPStatus, content: Catalogue | Tried, headers: list[tuple[str, str]] | None = None) -> Response:
    return _response(status, "application/json", json.dumps(content, default=str).encode(), headers)


def _response(status: HTTPStatus, kind: str, body: bytes, headers: list[tuple[str, str]] | None = None) -> Response:
    length = ("Content-Length", str(len(body)))
    return Response(status, [("Content-Type", f"{kind}; charset=utf-8"), length, *_HEADERS, *(headers or [])], body)
