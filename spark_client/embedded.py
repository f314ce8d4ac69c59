"""The embedded server: `connect(spark)` without a target starts one as a process on this machine."""

import atexit
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from remote_udf.sockets import socket_directory
from spark_client.base.errors import EmbeddedServerFailed

__all__ = ["EmbeddedServer", "embedded_server", "executors_are_local", "require_local_executors"]

START_SECONDS = 60.0
STOP_SECONDS = 15.0
LOG_TAIL = 3_000
"""Number of characters from the end of the server's log that are shown if the server does not start."""


class EmbeddedServer:
    """A server process on a Unix socket that only its owner can access. It ends when this process ends.

    After an edit of its plugins, a fresh process serves them at the same address.
    """

    def __init__(self, plugins: Sequence[str], *, start_seconds: float = START_SECONDS) -> None:
        """Start the server and wait until it is ready.

        Raises EmbeddedServerFailed, with the end of the log, if it does not start or its packages are not installed.
        """
        # Of the packages of this project, only the server needs uvloop.
        if importlib.util.find_spec("uvloop") is None:
            raise EmbeddedServerFailed(
                "the embedded server needs the packages of a server here: pip install 'remote-udf[server]'; or name a "
                'server that runs elsewhere: connect(spark, "host:50051")'
            )
        self._start_seconds = start_seconds
        self._owner = os.getpid()
        self._copier: threading.Thread | None = None
        self.directory = socket_directory("remote-udf-")
        folder = Path(self.directory.name)
        self.log = folder / "server.log"
        command = [
            sys.executable, "-m", "udf_server", "dev", "--stop-with-stdin",
            "--unix-socket", str(folder / "udf.sock"), "--metrics-port", "0",
            *(part for plugin in plugins for part in ("--plugin", plugin)),
            *(["--no-entry-points"] if plugins else []),
        ]  # fmt: skip
        with self.log.open("ab") as log:
            # The process gets its own session, so that Ctrl-C in a shell interrupts the query and not the server.
            self._process = subprocess.Popen(  # noqa: S603 - the command is ours
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        ready = self._wait_ready()
        # Without a reader, the output of functions would fill the pipe and block them.
        self._copier = threading.Thread(target=self._copy_output, name="embedded-server-output", daemon=True)
        self._copier.start()
        self.target: str = ready["target"]
        self.metrics_url: str = ready["metrics"]

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Stop the process and remove its files. Safe to call twice. In a process that was forked it does nothing."""
        if os.getpid() != self._owner:
            return
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        if self._copier is not None:
            self._copier.join(1.0)
        # The copier still reads if a process that a function started holds the other end of the pipe open.
        if self._process.stdout is not None and not (self._copier and self._copier.is_alive()):
            self._process.stdout.close()
        self.directory.cleanup()

    def _kill(self) -> None:
        """Kill the server and the processes that it has started, which are its group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _wait_ready(self) -> dict[str, str]:
        """The values of the line that the server prints when it is ready. Plugins may print other lines before it."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._kill()

        # A process that hangs while it imports plugins never closes its output, so it is killed after a time.
        timer = threading.Timer(self._start_seconds, give_up)
        timer.start()
        try:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if (ready := _ready_line(line)) is not None:
                    return ready
                self._to_log(line)
        finally:
            timer.cancel()
        status = self._process.wait()
        log = self.log.read_text(errors="replace")[-LOG_TAIL:].strip()
        self.stop()
        why = f"was not ready within {self._start_seconds:g} s" if late.is_set() else f"ended with status {status}"
        raise EmbeddedServerFailed(f"the embedded server {why}; its log ends with:\n{log}")

    def _copy_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._to_log(line)

    def _to_log(self, line: bytes) -> None:
        with self.log.open("ab") as log:
            log.write(line)


def _ready_line(line: bytes) -> dict[str, str] | None:
    with contextlib.suppress(ValueError):
        ready = json.loads(line)
        if isinstance(ready, dict) and {"target", "metrics"} <= ready.keys():
            return ready
    return None


_servers: dict[tuple[int, str, tuple[str, ...]], EmbeddedServer] = {}
_lock = threading.Lock()


def embedded_server(plugins: Sequence[str]) -> EmbeddedServer:
    """The embedded server of this process with these plugins. It is started once and stops at exit.

    Names of files are those in the current directory.
    """
    key = (os.getpid(), str(Path.cwd()), tuple(plugins))
    with _lock:
        server = _servers.get(key)
        if server is None or not server.running:
            server = EmbeddedServer(plugins)
            atexit.register(server.stop)
            _servers[key] = server
        return server


def executors_are_local(spark: SparkSession) -> bool:
    """Whether the session's executors run on this machine."""
    return str(spark.conf.get("spark.master", "")).startswith("local")


def require_local_executors(spark: SparkSession) -> None:
    """Raises EmbeddedServerFailed if the session's executors may run on other machines."""
    if not executors_are_local(spark):
        raise EmbeddedServerFailed(
            f"executors of master {spark.conf.get('spark.master', '')!r} cannot reach a server inside the driver's "
            "machine; start one with `udf-server serve` and pass its address: connect(spark, 'host:port')"
        )
