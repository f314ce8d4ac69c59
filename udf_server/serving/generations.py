"""Generations serves plugins that are edited: after an edit a fresh process takes over the address.

This process imports the server, but no plugin, and runs no threads. So a fresh process is forked from it, and has only
the plugins to import. On a Unix socket each generation has a path of its own, to which a link at the given path leads.
"""

import gc
import json
import logging
import os
import selectors
import signal
import socket
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from udf_server.base.errors import InvalidConfig
from udf_server.base.output import flush_outputs, queue_outputs
from udf_server.http.server import listening_socket
from udf_server.serving.addresses import SocketPath, reserved_port
from udf_server.serving.config import ServerConfig
from udf_server.serving.generation import Messages, serve_generation
from udf_server.serving.process_setup import configure_logging
from udf_server.serving.processes import STOP_SECONDS
from udf_server.serving.worker_process import FIRST_PAUSE, ReadyLine, pause_after

__all__ = ["Generations"]

log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Process:
    """One generation."""

    pid: int
    messages: Messages
    socket: str | None
    """The path of its Unix socket."""
    began: float = field(default_factory=time.monotonic)
    ready: ReadyLine | None = None
    failure: str = ""


class Generations:
    """Runs one generation after the other. Call `run`, in a process without threads."""

    def __init__(self, config: ServerConfig) -> None:
        """Raises InvalidConfig if the settings are for several processes, or an address cannot be used."""
        if config.processes > 1 or config.devices or config.groups:
            raise InvalidConfig(
                "settings 'processes', 'devices' and 'groups' are for `udf-server serve`: dev has one process"
            )
        self._path = SocketPath(config.unix_socket) if config.unix_socket else None
        if self._path is None:
            self._port = reserved_port(config.host, config.port)
            config = replace(config, port=self._port.getsockname()[1])
        self._listening = listening_socket(config.metrics_host, config.metrics_port)
        self._config = config
        self._processes: list[_Process] = []
        self._current: _Process | None = None
        """The one that takes new queries."""
        self._starting: _Process | None = None
        self._announced = False
        self._restart_at: float | None = None
        self._pause = FIRST_PAUSE
        self._kill_at: float | None = None
        """When the processes are killed that have not stopped; None until they are stopped."""
        self._events = selectors.DefaultSelector()

    def run(self, signals: Sequence[signal.Signals], *, stop_with_stdin: bool) -> int:
        """Serve until one of the signals comes, or standard input ends. Returns the exit status."""
        wakes, wakened = socket.socketpair()
        wakes.setblocking(False)
        wakened.setblocking(False)
        signal.set_wakeup_fd(wakes.fileno())
        for each in signals:
            signal.signal(each, lambda *_: self._stop())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._events.register(wakened, selectors.EVENT_READ, lambda: wakened.recv(4096))
        if stop_with_stdin:
            self._events.register(0, selectors.EVENT_READ, self._read_stdin)
        gc.collect()
        gc.freeze()
        self._start()
        while self._processes or (self._restart_at is not None and self._kill_at is None):
            for event, _ in self._events.select(self._seconds()):
                event.data()
            self._reap()
            now = time.monotonic()
            if self._restart_at is not None and now >= self._restart_at and self._kill_at is None:
                self._start()
            if self._kill_at is not None and now >= self._kill_at:
                for process in self._processes:
                    os.kill(process.pid, signal.SIGKILL)
        if self._path is not None:
            self._path.close()
        return 0 if self._announced else 1

    def _seconds(self) -> float | None:
        due = self._restart_at if self._kill_at is None else self._kill_at
        return None if due is None else max(due - time.monotonic(), 0.0)

    def _start(self) -> None:
        self._restart_at = None
        path = None if self._path is None else self._path.next()
        config = replace(self._config, unix_socket=path) if path else self._config
        ours, theirs = socket.socketpair()
        with warnings.catch_warnings():
            # Native threads of numpy count, which are ready for a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            ours.close()
            self._become(config, theirs)
        theirs.close()
        process = self._starting = _Process(pid, Messages(ours), path)
        self._processes.append(process)
        self._events.register(ours, selectors.EVENT_READ, lambda: self._receive(process))

    def _become(self, config: ServerConfig, end: socket.socket) -> None:
        """Serve in the process that was forked. Does not return."""
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            for each in (signal.SIGTERM, signal.SIGCHLD):
                signal.signal(each, signal.SIG_DFL)
            for each in (signal.SIGINT, signal.SIGHUP):
                signal.signal(each, lambda *_: None)  # a terminal sends them to all, and the parent says what to do
            self._events.close()
            for process in self._processes:
                process.messages.end.close()
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
            queue_outputs()
            configure_logging(config.log_level, config.log_format)
            status = serve_generation(config, end, self._listening)
            flush_outputs()
        finally:
            # Calls that do not return hold threads that cannot be joined.
            os._exit(status)

    def _receive(self, process: _Process) -> None:
        messages = process.messages.receive()
        if messages is None:
            if process.messages.end.fileno() >= 0:
                self._events.unregister(process.messages.end)
                process.messages.end.close()
            return
        for message in messages:
            self._take(process, message)

    def _take(self, process: _Process, message: dict[str, Any]) -> None:
        if "ready" in message:
            process.ready = message["ready"]
            self._switch(process)
        elif "failed" in message:
            process.failure = message["failed"]
        elif process is not self._current:
            process.messages.send({"replaced": True})
        elif self._starting is None:
            self._start()

    def _switch(self, process: _Process) -> None:
        """Lead new connections to a process that is ready."""
        assert process.ready is not None
        previous, self._current, self._starting = self._current, process, None
        if self._path is not None and process.socket is not None:
            self._path.lead_to(process.socket)
        if previous is not None:
            previous.messages.send({"replaced": True})
            log.info("plugins were edited, a fresh process serves them", extra={"worker_pid": process.pid})
        if not self._announced:
            self._announced = True
            target = process.ready["target"] if self._path is None else self._path.target
            sys.stdout.write(json.dumps({**process.ready, "target": target, "pid": os.getpid()}) + "\n")
            sys.stdout.flush()

    def _reap(self) -> None:
        while self._processes:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            process = next(each for each in self._processes if each.pid == pid)
            while process.messages.end.fileno() >= 0:
                self._receive(process)
            self._processes.remove(process)
            self._ended(process, os.waitstatus_to_exitcode(status))

    def _ended(self, process: _Process, status: int) -> None:
        failure = process.failure or f"the process that serves the plugins ended with status {status}"
        if process is self._starting:
            self._starting = None
            if self._current is not None:
                self._current.messages.send({"failed": failure})
            elif not self._announced and self._kill_at is None:
                sys.stderr.write(f"Error: {failure}\n")
            elif self._kill_at is None:
                self._restart_later(process, failure)
        elif process is self._current:
            self._current = None
            if self._kill_at is None and self._starting is None:
                self._restart_later(process, failure)

    def _restart_later(self, process: _Process, why: str) -> None:
        self._pause = pause_after(process.began, self._pause)
        self._restart_at = time.monotonic() + self._pause
        log.error("worker ended", extra={"worker_pid": process.pid, "why": why, "restart_seconds": self._pause})

    def _read_stdin(self) -> None:
        if not os.read(0, 4096):
            self._events.unregister(0)
            self._stop()

    def _stop(self) -> None:
        """Drain the processes that serve, and end the others. Safe to call twice."""
        if self._kill_at is not None:
            return
        self._kill_at = time.monotonic() + self._config.drain_seconds + STOP_SECONDS
        for process in self._processes:
            process.messages.send({"stop": True})
            if process.ready is None:
                os.kill(process.pid, signal.SIGTERM)
