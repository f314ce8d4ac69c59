"""ControlServer takes commands for a running server, on a Unix socket that only the server's own user can open."""

import contextlib
import json
import logging
import os
import socket
import socketserver
import stat
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

from remote_udf.errors import RemoteUdfError
from udf_server.base.errors import InvalidConfig

__all__ = ["ControlServer", "Reload", "ask_reload"]

log = logging.getLogger(__name__)

LINE_BYTES = 1 << 20
Reload = Callable[[Sequence[str], bool], list[str]]
"""Reloads groups, all if none is named, and returns what was done. `True` lets functions change their types."""


class _Reply(TypedDict, total=False):
    done: list[str]
    error: str


class ControlServer:
    """Call `close` at the end."""

    def __init__(self, http_port: int, reload: Reload) -> None:
        """The HTTP port names the socket. Raises OSError or InvalidConfig if it cannot listen."""
        self._path = _path(http_port, make=True)

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                asked = json.loads(self.rfile.readline(LINE_BYTES))
                answer: _Reply
                try:
                    answer = {"done": reload(asked["groups"], asked["changed"])}
                except RemoteUdfError as error:
                    answer = {"error": str(error)}
                with contextlib.suppress(OSError):  # who asked has left
                    self.wfile.write(json.dumps(answer).encode() + b"\n")

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                log.exception("a command was not carried out")

        # The port is this server's, so a socket of its name is that of a server that has ended.
        self._path.unlink(missing_ok=True)
        self._server = Server(str(self._path), Handler)
        self._path.chmod(0o600)
        threading.Thread(target=self._server.serve_forever, name="control", daemon=True).start()

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)


def ask_reload(http_port: int, groups: Sequence[str], *, changed: bool) -> list[str]:
    """Have the server with this HTTP port reload groups. Returns what was done, in lines.

    Raises InvalidConfig if no server of this user listens, or with the server's own message if it refuses.
    """
    path = _path(http_port, make=False)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
            connection.sendall(json.dumps({"groups": list(groups), "changed": changed}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer: _Reply = json.loads(answers.readline(LINE_BYTES))
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"no server with worker processes and metrics_port={http_port} of this user answers at {path}: {error}; "
            "give the settings and the TMPDIR of the server; one without groups, and with `processes` = 1, needs a "
            "group, or a restart"
        ) from None
    if "error" in answer:
        raise InvalidConfig(answer["error"])
    return answer["done"]


def _path(http_port: int, *, make: bool) -> Path:
    """The socket of the server with this port, in a folder of this user."""
    folder = Path(tempfile.gettempdir()) / f"udf-server-{os.getuid()}"
    if make:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise InvalidConfig(f"{folder} is not a folder that only this user can open (0700)")
    return folder / str(http_port)
