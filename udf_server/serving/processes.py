"""Processes runs several worker processes on one port, restarts crashed ones, and has one endpoint for metrics.

One Python process uses one core. The kernel distributes connections among the processes that listen on a port
with SO_REUSEPORT, so each connection of a client reaches one worker.
"""

import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter

from udf_server.base.errors import InvalidConfig
from udf_server.http.server import HttpServer
from udf_server.limits.sharing.ledgers import LedgerServer
from udf_server.page.site import Site
from udf_server.page.sources import ForwardedSource
from udf_server.serving.config import ServerConfig
from udf_server.serving.exposure import check_exposure, tokens_allowed
from udf_server.serving.worker_process import ReadyLine, WorkerProcess, page_of_workers

__all__ = ["Processes"]

log = logging.getLogger(__name__)

RESTART_SECONDS = (0.5, 30.0)
"""Pause before a crashed worker is restarted, and the maximum to which it doubles if the worker crashes again."""
STEADY_SECONDS = 60.0
"""If a worker ran for this time, its next pause is the shortest again."""
STOP_SECONDS = 15.0
"""Time after the drain timeout before a worker is killed."""


class Processes:
    """Runs worker processes. Call `start`, then `wait`; call `stop` from any thread or signal handler."""

    def __init__(self, config: ServerConfig, number: int, arguments: Sequence[str]) -> None:
        """`arguments` are the command-line arguments of this process. Raises InvalidConfig."""
        if config.unix_socket:
            raise InvalidConfig("setting 'processes': several processes cannot listen on one Unix socket")
        check_exposure(config)
        self._config, self._number, self._arguments = config, number, list(arguments)
        self._stopping = threading.Event()
        self._workers: list[WorkerProcess] = []
        self._ledgers: LedgerServer | None = None
        """Where the workers share guards and budgets, unless servers do."""

    def start(self) -> ReadyLine:
        """Start the workers and wait until every one is ready. Returns the ready line. Raises InvalidConfig."""
        config = self._config
        self._port = self._reserve()
        command = [
            sys.executable, "-m", "udf_server", *self._arguments, "--one-of", str(self._number),
            "--stop-with-stdin", "--port", str(self._port.getsockname()[1]),
            "--metrics-host", "127.0.0.1", "--metrics-port", "0",
        ]  # fmt: skip
        if config.coordination_url is None:
            self._ledgers = LedgerServer()
            command += ["--coordination-url", self._ledgers.url]
        if config.cache_url == "memory:":
            log.info("each worker process has its own cache: cache_url is memory:", extra={"processes": self._number})
        if config.coordinated and config.coordination_url is None:
            log.info("limits apply per server: no coordination_url is set", extra={"limits": config.coordinated})
        try:
            # What prevents the first one from starting is reported once. The others then start at the same time.
            devices = config.devices or [None] * self._number
            self._workers.append(WorkerProcess(0, command, devices[0]))
            self._workers[0].wait_ready()
            self._workers += [WorkerProcess(number, command, devices[number]) for number in range(1, self._number)]
            for worker in self._workers[1:]:
                worker.wait_ready()
        except InvalidConfig:
            self._end(0.0)
            raise
        registry = CollectorRegistry()
        self._restarts = Counter(
            "udf_process_restarts_total", "Worker processes that ended unexpectedly and were restarted.",
            registry=registry,
        )  # fmt: skip
        try:
            self._http = HttpServer(
                config.metrics_host,
                config.metrics_port,
                lambda: page_of_workers(self._workers, registry),
                self._is_alive,
                self._unready,
                self._site(),
            )
        except OSError as error:
            self._end(0.0)
            where = f"{config.metrics_host}:{config.metrics_port}"
            raise InvalidConfig(f"cannot serve metrics at {where}: {error}") from error
        for worker in self._workers:
            threading.Thread(target=self._keep, args=(worker,), name=f"worker-{worker.number}", daemon=True).start()
        return self._ready_line()

    def _ready_line(self) -> ReadyLine:
        config, first = self._config, self._workers[0].ready
        ready: ReadyLine = {
            "target": first["target"], "metrics": self._http.url, "pid": os.getpid(),
            "functions": first["functions"], "processes": [worker.process.pid for worker in self._workers],
        }  # fmt: skip
        if config.devices:
            ready["devices"] = list(config.devices)
        return ready

    def stop(self) -> None:
        """Stop the workers: `wait` returns when they have ended, `start` raises InvalidConfig. Safe to call twice."""
        self._stopping.set()
        for worker in self._workers:
            if not worker.ready:
                worker.process.terminate()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def wait(self) -> None:
        """Wait until `stop` was called and every worker has drained and ended."""
        self._stopping.wait()
        self._end(self._config.drain_seconds + STOP_SECONDS)
        self._http.close()
        self._port.close()

    def _site(self) -> Site | None:
        config = self._config
        if not config.page:
            return None
        # The workers cannot check this, because their HTTP servers listen on this machine only.
        if config.access_file and not tokens_allowed(config):
            log.warning("no web UI: a token would be sent unencrypted", extra={"host": config.metrics_host})
            return None
        source = ForwardedSource(lambda: [worker.ask for worker in self._workers])
        return Site(source, try_calls=config.try_calls, host=config.metrics_host)

    def _reserve(self) -> socket.socket:
        """A socket that reserves the port while workers restart. It does not listen, so it gets no connections."""
        host, port = self._config.host, self._config.port
        try:
            family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            held = socket.socket(family, kind)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind(address)
        except OSError as error:
            raise InvalidConfig(f"cannot listen on {host}:{port}: {error}") from error
        return held

    def _keep(self, worker: WorkerProcess) -> None:
        """Restart the worker whenever it ends."""
        first, longest = RESTART_SECONDS
        pause = first
        while True:
            status = worker.process.wait()
            if self._stopping.is_set():
                return
            pause = first if time.monotonic() - worker.began > STEADY_SECONDS else min(pause * 2, longest)
            device = {} if worker.device is None else {"device": worker.device}
            log.error(
                "worker ended",
                extra={"worker": worker.number, "status": status, "restart_seconds": pause, **device},
            )
            if self._stopping.wait(pause):
                return
            self._restarts.inc()
            try:
                worker.launch()
                worker.wait_ready()
            except (InvalidConfig, OSError) as error:
                log.error("worker does not start", extra={"worker": worker.number, "why": str(error)})

    def _is_alive(self) -> bool:
        """Whether every worker is alive. A worker that hangs is restarted with the server, by the orchestrator."""
        return all(worker.is_alive() for worker in self._workers)

    def _unready(self) -> str:
        """Why no worker accepts streams; empty if one does."""
        why = "it shuts down"
        for worker in () if self._stopping.is_set() else self._workers:
            try:
                worker.ask("/readyz")
            except urllib.error.HTTPError as error:
                with error:
                    why = error.read().decode(errors="replace").removeprefix("no: ").strip()
            except OSError as error:
                why = str(error)
            else:
                return ""
        return why

    def _end(self, seconds: float) -> None:
        try:
            self._end_workers(seconds)
        finally:
            if self._ledgers is not None:
                self._ledgers.close()

    def _end_workers(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            try:
                worker.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.close()
