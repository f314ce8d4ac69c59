"""The HTTP side: metrics for Prometheus, whether the server lives and is ready, and the web UI."""

import asyncio
import collections
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import h11
from prometheus_client import CollectorRegistry, make_wsgi_app

from udf_server.http.connections import HTTP_CONNECTIONS
from udf_server.http.messages import HEADER_BYTES, BadRequest, read_request, write_response
from udf_server.page.site import PATHS, Site

__all__ = ["HttpServer"]

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""A client may take so long to say what it wants, and so long to read the answer."""
CLOSE_SECONDS = 1.0

Answer = tuple[HTTPStatus, list[tuple[str, str]], bytes]


class _Kind:
    """Requests of one kind: how many are answered at a time, on threads of their own. Further ones get 503."""

    def __init__(self, name: str, most: int) -> None:
        self.most = most
        self.under_way = 0
        self.threads = ThreadPoolExecutor(most, thread_name_prefix=f"http-{name}")


class HttpServer:
    """`/metrics`, `/livez`, `/readyz` and the page, on an event loop of its own, whatever the server's loop does.

    A request is read whole before anything is done for it, and each kind of request has threads of its own: neither
    slow clients nor calls that people try keep health checks waiting. When all connections are taken, the one whose
    client has kept us waiting longest makes room.
    """

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, alive: Callable[[], bool], ready: Callable[[], bool],
        site: Site | None = None,
    ) -> None:  # fmt: skip
        """Listens at once; raises OSError if the address is taken. Without a site there is no page."""
        self._site = site
        self._metrics = make_wsgi_app(registry)
        self._probes = {"/livez": alive, "/readyz": ready}
        self._kinds = {"probe": _Kind("probe", 4), "metrics": _Kind("metrics", 4), "page": _Kind("page", 4),
                       "try": _Kind("try", 8)}  # fmt: skip
        self._waiting: collections.OrderedDict[asyncio.StreamWriter, None] = collections.OrderedDict()
        """Connections whose clients we wait for, the longest first."""
        self._connections: set[asyncio.StreamWriter] = set()
        """All but those that had to make room; aborting one closes its file in the next turn of the loop."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=HTTP_CONNECTIONS)
        self._address = self._socket.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._address
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stops listening. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            for kind in self._kinds.values():
                kind.threads.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._listen())
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))

    async def _listen(self) -> None:
        async with await asyncio.start_server(self._serve, sock=self._socket, limit=HEADER_BYTES):
            await self._stop.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request, one answer."""
        self._connections.add(writer)
        if len(self._connections) > HTTP_CONNECTIONS and self._waiting:
            slowest, _ = self._waiting.popitem(last=False)
            self._connections.discard(slowest)
            slowest.transport.abort()
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)
        try:
            if len(self._connections) > HTTP_CONNECTIONS:
                return  # none of them waits for its client: all are being answered
            async with asyncio.timeout(REQUEST_SECONDS):
                with self._waits_for_client(writer):
                    answer = await self._next_answer(connection, reader, writer)
            head = False
            if isinstance(answer, dict):
                head = answer["REQUEST_METHOD"] == "HEAD"
                answer = await self._answer(answer)
            if answer is not None:
                async with asyncio.timeout(REQUEST_SECONDS):
                    with self._waits_for_client(writer):
                        await write_response(connection, writer, *answer, head=head)
                        if connection.their_state is not h11.DONE:
                            await _linger(reader, writer)
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # the client is gone, or too slow
        finally:
            self._connections.discard(writer)
            await _close(writer)

    @contextlib.contextmanager
    def _waits_for_client(self, writer: asyncio.StreamWriter) -> Any:
        self._waiting[writer] = None
        try:
            yield
        finally:
            self._waiting.pop(writer, None)

    async def _next_answer(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> dict[str, Any] | Answer | None:
        """The request, or what to answer to something that is none."""
        try:
            return await read_request(connection, reader, writer)
        except BadRequest as bad:
            return _text(bad.status, f"{bad}\n")

    async def _answer(self, environ: dict[str, Any]) -> Answer:
        path = environ["PATH_INFO"]
        if path in self._probes:
            kind, answer = self._kinds["probe"], self._probe
        elif path == "/metrics":
            kind, answer = self._kinds["metrics"], self._scrape
        elif self._site is not None and path in PATHS:
            kind, answer = self._kinds["try" if path == "/try" else "page"], self._show
        else:
            known = "/metrics, /livez and /readyz" if self._site is None else "/, /metrics, /livez and /readyz"
            return _text(HTTPStatus.NOT_FOUND, f"there are {known}\n")
        if kind.under_way >= kind.most and answer is not self._probe:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests of this kind at a time\n")
        kind.under_way += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(kind.threads, answer, environ)
        except Exception:
            log.exception("HTTP request failed", extra={"path": path})
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log has the reason\n")
        finally:
            kind.under_way -= 1

    # On threads.

    def _probe(self, environ: dict[str, Any]) -> Answer:
        good = self._probes[environ["PATH_INFO"]]()
        return _text(HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE, "ok\n" if good else "no\n")

    def _scrape(self, environ: dict[str, Any]) -> Answer:
        started: list[tuple[str, list[tuple[str, str]]]] = []
        parts: Iterable[bytes] = self._metrics(environ, lambda status, headers: started.append((status, headers)))
        status, headers = started[0]
        return HTTPStatus(int(status.split()[0])), headers, b"".join(parts)

    def _show(self, environ: dict[str, Any]) -> Answer:
        assert self._site is not None
        response = self._site.answer(environ)
        return response.status, response.headers, response.body


def _text(status: HTTPStatus, text: str) -> Answer:
    return status, [("Content-Type", "text/plain; charset=utf-8")], text.encode(errors="replace")


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Reads what the client still sends. Left unread, it would make the kernel reset the connection, answer and all."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            writer.write_eof()
            while await reader.read(HEADER_BYTES):
                pass


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    writer.transport.abort()
