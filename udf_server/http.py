"""The HTTP side: metrics for Prometheus, whether the server lives and is ready, and the page for people."""

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from udf_server.page.site import PATHS, Site

__all__ = ["HttpServer"]


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = 10.0
    """Seconds a client may take to say what it wants; each holds a thread until then."""

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name of the base class
        """A line per scrape tells nobody anything."""


class HttpServer:
    """`/metrics`, `/livez`, `/readyz` and the page on threads of its own, so that it answers whatever the loop does."""

    def __init__(
        self, host: str, port: int, registry: CollectorRegistry, alive: Callable[[], bool], ready: Callable[[], bool],
        site: Site | None = None,
    ) -> None:  # fmt: skip
        """Listens at once; raises OSError if the address is taken. Without a site there is no page."""
        self._site = site
        self._metrics = make_wsgi_app(registry)
        self._probes = {"/livez": alive, "/readyz": ready}
        kind = _ServerV6 if ":" in host else _Server
        self._server = make_server(host, port, self._answer, server_class=kind, handler_class=_QuietHandler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def close(self) -> None:
        """Stops listening. Safe to call twice."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ["PATH_INFO"]
        if path == "/metrics":
            return self._metrics(environ, start_response)
        if path in self._probes:
            good = self._probes[path]()
            start_response("200 OK" if good else "503 Service Unavailable", [("Content-Type", "text/plain")])
            return [b"ok\n" if good else b"no\n"]
        if self._site is not None and path in PATHS:
            response = self._site.answer(environ)
            start_response(f"{response.status.value} {response.status.phrase}", response.headers)
            return [response.body]
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [
            b"there are /metrics, /livez and /readyz\n"
            if self._site is None
            else b"there are /, /metrics, /livez and /readyz\n"
        ]
