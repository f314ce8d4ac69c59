"""HTTP/1.1 requests and responses over asyncio streams, one per connection. h11 implements the protocol.

No server library is used: uvicorn, aiohttp and hypercorn wait for a slow request's header without limit, and none
makes room for a health check if all its connections are in use. h11 is pure Python without dependencies (MIT).
"""

import asyncio
import io
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from urllib.parse import unquote_to_bytes, urlsplit
from wsgiref.types import WSGIEnvironment

import h11

__all__ = ["BadRequest", "Headers", "read_request", "write_response"]

HEADER_BYTES = 16 << 10
BODY_BYTES = 64 << 10
CHUNK = 64 << 10

Headers = Iterable[tuple[str, str]]


class BadRequest(Exception):
    """The request is not valid. The connection ends after a response with this status."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


async def read_request(
    connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> WSGIEnvironment | None:
    """The request as a WSGI environment (PEP 3333), with its body; None if the client has left. Raises BadRequest."""
    request, body = None, bytearray()
    try:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                if connection.they_are_waiting_for_100_continue:
                    informed = connection.send(h11.InformationalResponse(status_code=100, headers=[]))
                    writer.write(informed or b"")
                connection.receive_data(await reader.read(CHUNK))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > BODY_BYTES:
                    raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body may have at most {BODY_BYTES} bytes")
            elif isinstance(event, h11.EndOfMessage):
                assert request is not None
                return _environ(request, bytes(body))
            else:  # closed, or more than one request
                return None
    except h11.RemoteProtocolError as error:
        raise BadRequest(HTTPStatus(error.error_status_hint), str(error)) from error


async def write_response(
    connection: h11.Connection, writer: asyncio.StreamWriter, status: HTTPStatus, headers: Headers, body: bytes,
    *, head: bool = False,
) -> None:  # fmt: skip
    """Send a response that closes the connection. If `head` is set, because of the method, the body is not sent."""
    if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    given = [(name, value) for name, value in headers if name.lower() not in ("content-length", "connection")]
    every = [*given, ("Content-Length", str(len(body))), ("Connection", "close")]
    response = h11.Response(status_code=status.value, reason=status.phrase, headers=every)
    writer.write(connection.send(response) or b"")
    if not head:
        writer.write(connection.send(h11.Data(data=body)) or b"")
    writer.write(connection.send(h11.EndOfMessage()) or b"")
    await writer.drain()


def _environ(request: h11.Request, body: bytes) -> WSGIEnvironment:
    headers: Sequence[tuple[bytes, bytes]] = list(request.headers)
    try:
        target = urlsplit(request.target.decode("ascii"))
    except ValueError as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, f"the target of the request is not a URL: {error}") from error
    environ: WSGIEnvironment = {
        "REQUEST_METHOD": request.method.decode("ascii"),
        "PATH_INFO": unquote_to_bytes(target.path).decode("latin-1"),
        "QUERY_STRING": target.query,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.input": io.BytesIO(body),
        "wsgi.url_scheme": "http",
    }
    for raw_name, raw_value in headers:
        name, value = raw_name.decode("ascii").upper().replace("-", "_"), raw_value.decode("latin-1")
        if name == "CONTENT_TYPE":
            environ[name] = value
        elif name in ("CONTENT_LENGTH", "TRANSFER_ENCODING"):
            environ["CONTENT_LENGTH"] = str(len(body))
        else:
            key = f"HTTP_{name}"
            environ[key] = f"{environ[key]},{value}" if key in environ else value
    return environ
