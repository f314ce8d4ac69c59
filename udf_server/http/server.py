"""The HTTP server: metrics for Prometheus, liveness, readiness, and the web UI."""

import asyncio
import collections
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from wsgiref.types import WSGIEnvironment

import h11
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from udf_server.base.errors import InvalidConfig
from udf_server.base.open_files import HTTP_CONNECTIONS
from udf_server.http.exposition import SharedPage
from udf_server.http.messages import HEADER_BYTES, BadRequest, read_request, write_response
from udf_server.page.site import PATHS, Response, Site

__all__ = ["HttpServer", "listening_socket"]

log = logging.getLogger(__name__)

REQUEST_SECONDS = 10.0
"""How long a client may take to send its request, and how long to read the response."""
CLOSE_SECONDS = 1.0


def listening_socket(host: str, port: int) -> socket.socket:
    """The socket of an HTTP server. Raises InvalidConfig if it cannot listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=HTTP_CONNECTIONS)
    except OSError as error:
        raise InvalidConfig(f"cannot serve metrics at {host}:{port}: {error}") from error


class _Kind:
    """Requests of one kind. `most` of them are answered at a time, on separate threads.

    Further ones get 503, but probes wait.
    """

    def __init__(self, name: str, most: int) -> None:
        self.most = most
        self.in_flight = 0
        self.threads = ThreadPoolExecutor(most, thread_name_prefix=f"http-{name}")


class HttpServer:
    """Serves `/metrics`, `/livez`, `/readyz` and the web UI on a separate event loop, even if the server's loop hangs.

    A request is read completely before it is processed, and each kind of request has separate threads: neither slow
    clients nor test calls of users delay health checks. If all connections are in use, the one is closed that has
    waited longest for its client or for metrics.
    """

    def __init__(
        self, host: str, port: int, metrics: Callable[[], str], alive: Callable[[], bool], unready: Callable[[], str],
        site: Site | None = None, missing: Callable[[], str] = lambda: "", listening: socket.socket | None = None,
    ) -> None:  # fmt: skip
        """The server listens immediately, or takes over a socket that listens. Raises InvalidConfig if it cannot.

        `metrics` writes the page of metrics, on a thread. `unready` says why the server is not ready, in an empty text
        if it is; `missing` says what is not, although the server is. Without a site there is no web UI.
        """
        self._site, self._missing = site, missing
        self._probes = {"/livez": lambda: "" if alive() else "its event loop does not run", "/readyz": unready}
        self._kinds = {"probe": _Kind("probe", 4), "metrics": _Kind("metrics", 1), "page": _Kind("page", 4),
                       "try": _Kind("try", 8)}  # fmt: skip
        self._metrics = SharedPage(metrics, self._kinds["metrics"].threads)
        self._waiting: collections.OrderedDict[asyncio.StreamWriter, asyncio.Task[object] | None] = (
            collections.OrderedDict()
        )
        """Connections that wait for their clients or for metrics, the longest-waiting one first."""
        self._connections: set[asyncio.StreamWriter] = set()
        """All connections except aborted ones, whose descriptors are closed in the next loop iteration."""
        self._socket = listening or listening_socket(host, port)
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
        """Stop listening. Safe to call twice."""
        if not self._closed:
            self._closed = True
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            for kind in self._kinds.values():
                kind.threads.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._listen())

    async def _listen(self) -> None:
        async with await asyncio.start_server(self._serve, sock=self._socket, limit=HEADER_BYTES):
            await self._stop.wait()
            # When a server closes, asyncio loses the connections that it has accepted and not begun.
            self._loop.remove_reader(self._socket)
            await asyncio.sleep(0)
        # Connections that were accepted last begin meanwhile.
        while left := asyncio.all_tasks() - {asyncio.current_task()}:
            # A task that is cancelled before its first step would not close its connection.
            await asyncio.sleep(0)
            for task in left:
                task.cancel()
            await asyncio.wait(left, timeout=CLOSE_SECONDS)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which has one request and one response."""
        self._connections.add(writer)
        if len(self._connections) > HTTP_CONNECTIONS and self._waiting:
            slowest, task = self._waiting.popitem(last=False)
            self._connections.discard(slowest)
            slowest.transport.abort()
            if task is not None:
                task.cancel()
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEADER_BYTES)
        try:
            if len(self._connections) > HTTP_CONNECTIONS:
                return  # no connection waits for its client: all requests are being processed
            async with asyncio.timeout(REQUEST_SECONDS):
                with self._may_be_closed(writer):
                    answer = await self._next_answer(connection, reader, writer)
            head = False
            if isinstance(answer, dict):
                head = answer["REQUEST_METHOD"] == "HEAD"
                if head:  # the answer of GET, without its body
                    answer["REQUEST_METHOD"] = "GET"
                answer = await self._answer(answer, writer)
            if answer is not None:
                async with asyncio.timeout(REQUEST_SECONDS):
                    with self._may_be_closed(writer):
                        await write_response(connection, writer, *answer, head=head)
                        if connection.their_state is not h11.DONE:
                            await _linger(reader, writer)
        except (OSError, TimeoutError, h11.ProtocolError, asyncio.CancelledError):
            pass  # the client is gone or too slow, or its place was given to another one
        finally:
            self._connections.discard(writer)
            await _close(writer)

    @contextlib.contextmanager
    def _may_be_closed(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._waiting[writer] = asyncio.current_task()
        try:
            yield
        finally:
            self._waiting.pop(writer, None)

    async def _next_answer(
        self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> WSGIEnvironment | Response | None:
        """The request, or the response to an invalid one."""
        try:
            return await read_request(connection, reader, writer)
        except BadRequest as bad:
            return _text(bad.status, f"{bad}\n")

    async def _answer(self, environ: WSGIEnvironment, writer: asyncio.StreamWriter) -> Response:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            # Scrapes that were given up have no place that another one needs.
            with self._may_be_closed(writer):
                return await self._scrape(environ)
        if path in self._probes:
            kind, answer = self._kinds["probe"], self._probe
        elif self._site is not None and path in PATHS:
            kind, answer = self._kinds["try" if path == "/try" else "page"], self._site.answer
        else:
            known = "/metrics, /livez and /readyz" if self._site is None else "/, /metrics, /livez and /readyz"
            return _text(HTTPStatus.NOT_FOUND, f"there are {known}\n")
        if kind.in_flight >= kind.most and kind is not self._kinds["probe"]:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests of this kind at a time\n")
        kind.in_flight += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(kind.threads, answer, environ)
        except Exception:
            return _failed(path)
        finally:
            kind.in_flight -= 1

    async def _scrape(self, environ: WSGIEnvironment) -> Response:
        headers = [("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)]
        try:
            page = await self._metrics.get()
        except TimeoutError:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, "the metrics were not gathered in time\n")
        except Exception:
            return _failed("/metrics")
        accepted = environ.get("HTTP_ACCEPT_ENCODING", "").lower().split(",")
        if any(each.partition(";")[0].strip() == "gzip" for each in accepted):
            return Response(HTTPStatus.OK, [*headers, ("Content-Encoding", "gzip")], page.packed)
        return Response(HTTPStatus.OK, headers, page.text)

    def _probe(self, environ: WSGIEnvironment) -> Response:
        """The response to a health check, made on a thread."""
        path = environ["PATH_INFO"]
        if why := self._probes[path]():
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"no: {why}\n")
        missing = self._missing() if path == "/readyz" else ""
        return _text(HTTPStatus.OK, f"ok, but {missing}\n" if missing else "ok\n")


def _text(status: HTTPStatus, text: str) -> Response:
    return Response(status, [("Content-Type", "text/plain; charset=utf-8")], text.encode(errors="replace"))


def _failed(path: str) -> Response:
    log.exception("HTTP request failed", extra={"path": path})
    return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed; its log has the reason\n")


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read what the client still sends. Otherwise the kernel resets the connection, and the response may be lost."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            writer.write_eof()
            while await reader.read(HEADER_BYTES):
                pass


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    # asyncio would log a traceback of each task that was cancelled.
    with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.wait_closed()
    writer.transport.abort()
