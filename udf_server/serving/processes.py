"""Processes runs the worker processes of a server, restarts those that crash or hang, and has one endpoint for metrics.

One Python process uses one core. The kernel distributes connections among the processes that listen on a port
with SO_REUSEPORT, so each connection of a client reaches one worker. Workers of a group with a Python of its own listen
on Unix sockets, and those at the port pass its streams on.
"""

import collections
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter

from remote_udf.errors import RemoteUdfError
from remote_udf.sockets import socket_directory
from udf_server.base.errors import InvalidConfig
from udf_server.http.server import HttpServer
from udf_server.limits.sharing.ledgers import LedgerServer
from udf_server.page.site import Site
from udf_server.page.sources import ForwardedSource
from udf_server.serving.config import ServerConfig
from udf_server.serving.exposure import check_exposure, tokens_allowed
from udf_server.serving.groups import DEFAULT_GROUP
from udf_server.serving.membership import check_whole
from udf_server.serving.process_group import ProcessGroup
from udf_server.serving.worker_process import ReadyLine, WorkerProcess, page_of_workers
from udf_server.streams.routes import write_routes

__all__ = ["Processes"]

log = logging.getLogger(__name__)

RESTART_SECONDS = (0.5, 30.0)
"""Pause before a crashed worker is restarted, and the maximum to which it doubles if the worker crashes again."""
STEADY_SECONDS = 60.0
"""If a worker ran for this time, its next pause is the shortest again."""
LOOK_SECONDS, SILENT_LOOKS = 10.0, 4
"""If a worker does not answer for this number of looks, at these intervals, it hangs."""
STOP_SECONDS = 15.0
"""Time after the drain timeout before a worker is killed."""


class Processes:
    """Runs worker processes. Call `start`, then `wait`; call `stop` from any thread or signal handler."""

    def __init__(self, config: ServerConfig, number: int, arguments: Sequence[str]) -> None:
        """`number` are the processes of the default group. `arguments` are the command-line arguments of this process.

        Raises InvalidConfig.
        """
        if config.unix_socket and number > 1:
            raise InvalidConfig("setting 'processes': several processes cannot listen on one Unix socket")
        check_exposure(config)
        self._config, self._number, self._arguments = config, number, list(arguments)
        self._stopping = threading.Event()
        self._groups: list[ProcessGroup] = []
        """The default group is the last one: it starts when the functions of the others are known."""
        self._ledgers: LedgerServer | None = None
        """Where the workers share guards and budgets, unless servers do."""
        self._folder = socket_directory("udf-")
        self._routes = Path(self._folder.name) / "routes"

    @property
    def _workers(self) -> list[WorkerProcess]:
        """All of them, those of the default group first."""
        return [worker for group in self._listed for worker in group.workers]

    @property
    def _listed(self) -> list[ProcessGroup]:
        """The groups, the default one first."""
        return [*self._groups[-1:], *self._groups[:-1]]

    def start(self) -> ReadyLine:
        """Start the workers and wait until every one is ready. Returns the ready line.

        Raises InvalidConfig or PluginError.
        """
        config = self._config
        self._port = None if config.unix_socket else self._reserve()
        if config.coordination_url is None:
            self._ledgers = LedgerServer()
        if config.cache_url == "memory:":
            log.info("each worker process has its own cache: cache_url is memory:", extra={"processes": self._number})
        if config.coordinated and config.coordination_url is None:
            log.info("limits apply per server: no coordination_url is set", extra={"limits": config.coordinated})
        registry = CollectorRegistry()
        self._restarts = Counter(
            "udf_process_restarts_total", "Worker processes that ended unexpectedly and were restarted.",
            registry=registry,
        )  # fmt: skip
        try:
            self._launch_all()
            self._http = self._serve_http(registry)
        except BaseException:
            self._end(0.0)
            raise
        for group in self._groups:
            for worker in group.workers:
                name = f"worker-{group.name or ''}{worker.number}"
                threading.Thread(target=self._keep, args=(group, worker), name=name, daemon=True).start()
        threading.Thread(target=self._end_hanging, name="hanging", daemon=True).start()
        return self._ready_line()

    def _launch_all(self) -> None:
        """Start all groups and check that they belong together. Raises InvalidConfig or PluginError."""
        *others, default = self._groups = self._make_groups()
        for group in others:
            group.launch(first=True)
        for group in others:
            self._wait_ready(group, group.workers[0])
        elsewhere = write_routes(self._routes, {str(group.name): group.route for group in others})
        default.launch(first=True)
        self._wait_ready(default, default.workers[0])
        if others:
            lacking = [group.source for group in others if not group.is_known]
            check_whole(self._config, default.specs, elsewhere, lacking=lacking)
        for group in self._groups:
            group.launch(first=False)
        for group in self._groups:
            for worker in group.workers[1:]:
                self._wait_ready(group, worker)

    def _wait_ready(self, group: ProcessGroup, worker: WorkerProcess) -> None:
        """Wait until a process is ready. Raises InvalidConfig if it ends first and its group is required."""
        try:
            group.wait_ready(worker)
        except InvalidConfig as error:
            if group.required or self._stopping.is_set():
                raise
            log.error("worker does not start", extra={**worker.named, "why": str(error)})

    def _make_groups(self) -> list[ProcessGroup]:
        config, groups = self._config, self._config.groups
        total = self._number + sum(group.processes for group in groups.values())
        shared = [
            "-m", "udf_server", *self._arguments, "--one-of", str(total), "--stop-with-stdin",
            "--metrics-host", "127.0.0.1", "--metrics-port", "0",
        ]  # fmt: skip
        if self._ledgers is not None:
            shared += ["--coordination-url", self._ledgers.url]
        made = []
        for place, (name, group) in enumerate(groups.items()):
            sockets = [str(Path(self._folder.name) / f"g{place}-{number}") for number in range(group.processes)]
            command = [group.interpreter, *shared, "--group", name, "--group-socket"]
            made.append(
                ProcessGroup(
                    name, [[*command, socket] for socket in sockets], sockets=sockets,
                    environment=group.variables(name, os.environ), required=group.required,
                )
            )  # fmt: skip
        command = [sys.executable, *shared]
        if self._port is not None:
            command += ["--port", str(self._port.getsockname()[1])]
        if groups:
            command += ["--group", DEFAULT_GROUP, "--group-routes", str(self._routes)]
        return [*made, ProcessGroup(DEFAULT_GROUP if groups else None, [command] * self._number, config.devices)]

    def _serve_http(self, registry: CollectorRegistry) -> HttpServer:
        config = self._config
        try:
            return HttpServer(
                config.metrics_host, config.metrics_port, lambda: page_of_workers(self._workers, registry),
                lambda: True, self._unready, self._site(), self._missing,
            )  # fmt: skip
        except OSError as error:
            where = f"{config.metrics_host}:{config.metrics_port}"
            raise InvalidConfig(f"cannot serve metrics at {where}: {error}") from error

    def _ready_line(self) -> ReadyLine:
        config, default = self._config, self._groups[-1]
        specs = [spec for group in self._groups for spec in group.specs]
        ready: ReadyLine = {
            "target": default.workers[0].ready["target"], "metrics": self._http.url, "pid": os.getpid(),
            "functions": sorted(spec.key for spec in specs),
            "processes": [worker.process.pid for worker in self._workers],
        }  # fmt: skip
        if config.devices:
            ready["devices"] = list(config.devices)
        if config.groups:
            ready["groups"] = {str(each.name): [one.process.pid for one in each.workers] for each in self._listed}
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
        if self._port is not None:
            self._port.close()

    def _site(self) -> Site | None:
        config = self._config
        if not config.page:
            return None
        # The workers cannot check this, because their HTTP servers listen on this machine only.
        if config.access_file and not tokens_allowed(config):
            log.warning("no web UI: a token would be sent unencrypted", extra={"host": config.metrics_host})
            return None
        source = ForwardedSource(
            lambda: {group.name: [worker.ask for worker in group.workers] for group in self._listed},
            self._group_of,
        )
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

    def _keep(self, group: ProcessGroup, worker: WorkerProcess) -> None:
        """Restart the worker whenever it ends."""
        first, longest = RESTART_SECONDS
        pause = first
        while True:
            status = worker.process.wait()
            if self._stopping.is_set():
                return
            pause = first if time.monotonic() - worker.began > STEADY_SECONDS else min(pause * 2, longest)
            device = {} if worker.device is None else {"device": worker.device}
            log.error("worker ended", extra={**worker.named, "status": status, "restart_seconds": pause, **device})
            if self._stopping.wait(pause):
                return
            self._restarts.inc()
            try:
                worker.launch()
                if group.wait_ready(worker) and group is not self._groups[-1]:
                    write_routes(self._routes, {str(each.name): each.route for each in self._groups[:-1]})
            except (RemoteUdfError, OSError) as error:
                log.error("worker does not start", extra={**worker.named, "why": str(error)})

    def _end_hanging(self) -> None:
        """Kill each worker whose event loop does not run. It is restarted like one that has ended."""
        silent: collections.Counter[int] = collections.Counter()
        while not self._stopping.wait(LOOK_SECONDS):
            for place, worker in enumerate(self._workers):
                silent[place] = 0 if worker.is_alive() else silent[place] + 1
                if silent[place] == SILENT_LOOKS:
                    log.error("worker hangs and is killed", extra=worker.named)
                    worker.process.kill()

    def _unready(self) -> str:
        """Why no worker at the server's address accepts streams; empty if one does."""
        return "it shuts down" if self._stopping.is_set() else self._groups[-1].unready()

    def _missing(self) -> str:
        """The groups of which no worker accepts streams, with the reasons; empty if there are none."""
        found = [(group.source, group.unready()) for group in self._groups[:-1]]
        return "; ".join(f"{source} does not answer: {why}" for source, why in found if why)

    def _group_of(self, key: str) -> str | None:
        """The group that has the function; the default one if none has."""
        return next((each.name for each in self._groups if key in each.keys), self._groups[-1].name)

    def _end(self, seconds: float) -> None:
        try:
            self._end_workers(seconds)
        finally:
            if self._ledgers is not None:
                self._ledgers.close()
            self._folder.cleanup()

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
