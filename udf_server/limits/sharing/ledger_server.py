"""LedgerServer answers the claims of the worker processes of one host, so that they share limits without a Redis."""

import contextlib
import json
import logging
import socketserver
import threading
from pathlib import Path
from urllib.parse import quote

from remote_udf.sockets import socket_directory
from udf_server.limits.sharing.ledgers import LINE_BYTES, LocalLedgers

__all__ = ["LedgerServer"]

log = logging.getLogger(__name__)


class LedgerServer:
    """Listens on a Unix socket in a folder of its own, which only this user can open. Call `close` at the end."""

    def __init__(self) -> None:
        self._folder = socket_directory("udf-")
        path = Path(self._folder.name) / "ledgers"
        self.url = f"parent://{quote(str(path))}"
        """The setting `coordination_url` of the workers."""
        ledgers = LocalLedgers()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):  # the worker has ended
                    while (line := self.rfile.readline(LINE_BYTES)).endswith(b"\n"):
                        try:
                            name, claim = json.loads(line)
                        except (TypeError, ValueError):
                            log.warning("a worker's connection was closed: it has sent no claim")
                            return
                        self.wfile.write(json.dumps(ledgers.answer(name, claim)).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                log.exception("a worker's claim was not answered")

        self._server = Server(str(path), Handler)
        threading.Thread(target=self._server.serve_forever, name="ledgers", daemon=True).start()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._folder.cleanup()
