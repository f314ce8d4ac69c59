"""Processes runs the worker processes of a server, restarts those that crash or hang, and has one endpoint for metrics.

One Python process uses one core. The kernel distributes connections among the processes that listen on a port
with SO_REUSEPORT, so each connection of a client reaches one worker. Workers of a group with a Python of its own listen
on a port of their own, and on Unix sockets: those at the server's port tell the other one, or pass its streams on.
"""

import collections
import dataclasses
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter

from remote_udf.errors import RemoteUdfError
from udf_server.base.errors import InvalidConfig
from udf_server.http.server import HttpServer
from udf_server.limits.sharing.ledgers import LedgerServer
from udf_server.page.site import Site
from udf_server.page.sources import ForwardedSource
from udf_server.serving.addresses import SocketPath, reserved_port
from udf_server.serving.config import ServerConfig
from udf_server.serving.exposure import check_exposure, tokens_allowed
from udf_server.serving.groups import ALWAYS, DEFAULT_GROUP
from udf_server.serving.memory_watch import MemoryWatch
from udf_server.serving.process_group import ProcessGroup
from udf_server.serving.resources import limited_memory
from udf_server.serving.server_groups import ServerGroups
from udf_server.serving.worker_process import FIRST_PAUSE, ReadyLine, WorkerProcess, page_of_workers, pause_after

__all__ = ["STOP_SECONDS", "Processes", "warn_of_memory"]

log = logging.getLogger(__name__)

LOOK_SECONDS, SILENT_LOOKS = 10.0, 4
"""If a worker does not answer for this number of looks, at these intervals, it hangs."""
SIGNAL_SECONDS = 0.1
"""The longest time until a signal is handled."""
OF_DEFAULT = ("plugin", "block", "entry_points")
"""Settings that belong to the default group, as the table of a group belongs to it."""
STOP_SECONDS = 15.0
"""Time after the drain timeout before a worker is killed."""


def warn_of_memory(config: ServerConfig) -> None:
    """Warn if all groups together may use more memory than the container has."""
    limit, asked = limited_memory(), sum(group.memory or 0 for group in config.groups.values())
    if limit is not None and asked > limit:
        log.warning("groups may use more memory than the container", extra={"groups": asked, "container": limit})


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
        self._groups: ServerGroups | None = None
        self._ledgers: LedgerServer | None = None
        """Where the workers count streams, and share guards and budgets unless servers do."""
        self._reloading = threading.Lock()

    def start(self) -> ReadyLine:
        """Start the workers and wait until every one is ready. Returns the ready line.

        Raises InvalidConfig or PluginError.
        """
        config = self._config
        path = config.unix_socket
        self._address = SocketPath(path) if path else reserved_port(config.host, config.port)
        self._ledgers = LedgerServer()
        shared = [*self._arguments, "--stop-with-stdin", "--metrics-host", "127.0.0.1", "--metrics-port", "0"]
        shared += ["--parent", self._ledgers.url]
        if config.coordination_url is None:
            shared += ["--coordination-url", self._ledgers.url]
        if config.cache_url == "memory:":
            log.info("each worker process has its own cache: cache_url is memory:", extra={"processes": self._number})
        if config.coordinated and config.coordination_url is None:
            log.info("limits apply per server: no coordination_url is set", extra={"limits": config.coordinated})
        address = self._address if isinstance(self._address, SocketPath) else self._address.getsockname()[1]
        groups = self._groups = ServerGroups(config, self._number, shared, address, self._stopping)
        registry = CollectorRegistry()
        self._restarts = Counter(
            "udf_process_restarts_total", "Worker processes that ended unexpectedly and were restarted.",
            registry=registry,
        )  # fmt: skip
        watch = MemoryWatch(lambda: [*groups.all, *groups.retired], self._renew, registry)
        warn_of_memory(config)
        try:
            with self._reloading:
                groups.launch()
                self._http = self._serve_http(groups, registry)
        except BaseException:
            self._end(0.0)
            raise
        self._keep_all(groups.all)
        threading.Thread(target=self._end_hanging, args=(groups,), name="hanging", daemon=True).start()
        threading.Thread(target=watch.run, args=(self._stopping,), name="memory", daemon=True).start()
        return self._ready_line(groups)

    def reload(self, config: ServerConfig, names: Sequence[str] = (), *, changed: bool = False) -> list[str]:
        """Run groups with what their code and their tables in `config` are now; all groups if none is named.

        The new processes start beside the old ones. If they do not start, or have a function that keeps its version and
        has other types without `changed`, nothing changes. Streams that are opened after the return are served by the
        new ones; the old ones drain. Returns what was done, in lines.

        Raises InvalidConfig or PluginError.
        """
        with self._reloading:
            groups = self._groups
            if groups is None or groups.default is None:
                raise InvalidConfig("the server starts")
            if self._stopping.is_set():
                raise InvalidConfig("the server shuts down")
            wanted = list(dict.fromkeys(names)) or sorted({*config.groups, *self._config.groups, DEFAULT_GROUP})
            if DEFAULT_GROUP not in wanted and groups.default.name is None:
                wanted.append(DEFAULT_GROUP)  # its processes know of no other groups
            # What is not reloaded stays as it is, whatever its table says now.
            kept = {name: group for name, group in self._config.groups.items() if name not in wanted}
            new = {name: group for name, group in config.groups.items() if name in wanted}
            self._warn_of_others(config, read_again=OF_DEFAULT if DEFAULT_GROUP in wanted else ())
            target = dataclasses.replace(self._config, groups={**kept, **new})
            made = self._replace(groups, wanted, target, changed=changed)
        done = [f"{group.source}: {', '.join(sorted(group.keys))}" for group in made]
        done += [f"group {name!r} is gone" for name in wanted if name not in {DEFAULT_GROUP, *new}]
        log.info("reloaded", extra={"groups": wanted})
        return done

    def _replace(
        self, groups: ServerGroups, names: Sequence[str], config: ServerConfig, *, changed: bool
    ) -> list[ProcessGroup]:
        """Run these groups as `config` has them, and let the old processes drain. Raises what `reload` raises."""
        seconds = self._config.drain_seconds + STOP_SECONDS
        old = groups.replace(names, config, changed=changed, seconds=seconds)
        self._config = config
        made = [group for group in groups.all if (group.name or DEFAULT_GROUP) in names]
        self._keep_all(made)
        for group in old:
            groups.retired.append(group)
            group.leave()
            threading.Thread(target=self._end_retired, args=(groups, group), daemon=True).start()
        return made

    def _renew(self, group: ProcessGroup) -> None:
        """Replace a group by new processes, in the background. One that is being replaced stays as it is."""

        def renew(groups: ServerGroups) -> None:
            with self._reloading:
                if not group.retired and not self._stopping.is_set():
                    try:
                        self._replace(groups, [group.name or DEFAULT_GROUP], self._config, changed=False)
                    except RemoteUdfError as error:
                        log.error("a group is not replaced", extra={"group": group.name, "why": str(error)})

        threading.Thread(target=renew, args=(self._groups,), name="renew", daemon=True).start()

    def _warn_of_others(self, config: ServerConfig, read_again: Collection[str]) -> None:
        """Name the settings that have changed and need a restart. Those that are `read_again` do not."""
        unchanged = {"groups", *read_again}
        names = [each.name for each in dataclasses.fields(ServerConfig) if each.name not in unchanged]
        if changed := [name for name in names if getattr(config, name) != getattr(self._config, name)]:
            log.warning("settings have changed that need a restart", extra={"settings": changed})

    def _end_retired(self, groups: ServerGroups, group: ProcessGroup) -> None:
        group.end(self._config.drain_seconds + STOP_SECONDS)
        groups.retired.remove(group)

    def _keep_all(self, groups: Sequence[ProcessGroup]) -> None:
        for group in groups:
            for worker in group.workers:
                name = f"worker-{group.name or ''}{worker.number}"
                threading.Thread(target=self._keep, args=(group, worker), name=name, daemon=True).start()

    def _serve_http(self, groups: ServerGroups, registry: CollectorRegistry) -> HttpServer:
        config = self._config
        return HttpServer(
            config.metrics_host, config.metrics_port, lambda: page_of_workers(groups.workers, registry),
            lambda: True, self._unready, self._site(groups), self._missing,
        )  # fmt: skip

    @property
    def _target(self) -> str:
        """The address for clients."""
        if isinstance(self._address, SocketPath):
            return self._address.target
        host = self._config.host
        return f"{f'[{host}]' if ':' in host else host}:{self._address.getsockname()[1]}"

    def _ready_line(self, groups: ServerGroups) -> ReadyLine:
        config = self._config
        ready: ReadyLine = {
            "target": self._target, "metrics": self._http.url, "pid": os.getpid(),
            "functions": sorted(key for group in groups.all for key in group.keys),
            "processes": [worker.process.pid for worker in groups.workers],
        }  # fmt: skip
        if devices := [worker.device for worker in groups.workers if worker.device is not None]:
            ready["devices"] = devices
        if config.groups:
            ready["groups"] = {str(each.name): [one.process.pid for one in each.workers] for each in groups.all}
            ready["ports"] = {str(each.name): each.port for each in groups.others}
        return ready

    def stop(self) -> None:
        """Stop the workers: `wait` returns when they have ended, `start` raises InvalidConfig. Safe to call twice."""
        self._stopping.set()
        for worker in [] if self._groups is None else self._groups.workers:
            if not worker.ready:
                worker.process.terminate()

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def wait(self) -> None:
        """Wait until `stop` was called and every worker has drained and ended."""
        # A signal that comes just before this thread sleeps, or to another thread, is handled when this one wakes.
        # It does not wait for the event: a handler that sets it needs the lock that a waiting thread holds at times.
        while not self._stopping.is_set():
            time.sleep(SIGNAL_SECONDS)
        self._end(self._config.drain_seconds + STOP_SECONDS)
        self._http.close()

    def _site(self, groups: ServerGroups) -> Site | None:
        config = self._config
        if not config.page:
            return None
        # The workers cannot check this, because their HTTP servers listen on this machine only.
        if config.access_file and not tokens_allowed(config):
            log.warning("no web UI: a token would be sent unencrypted", extra={"host": config.metrics_host})
            return None
        source = ForwardedSource(
            lambda: {group.name: [worker.ask for worker in group.workers] for group in groups.all},
            lambda key: next((each.name for each in groups.all if key in each.keys), groups.all[0].name),
        )
        return Site(source, try_calls=config.try_calls, host=config.metrics_host)

    def _keep(self, group: ProcessGroup, worker: WorkerProcess) -> None:
        """Restart the worker whenever it ends."""
        pause = FIRST_PAUSE
        while True:
            status = worker.process.wait()
            if self._stopping.is_set() or group.retired:
                return
            pause = pause_after(worker.began, pause)
            device = {} if worker.device is None else {"device": worker.device}
            log.error("worker ended", extra={**worker.named, "status": status, "restart_seconds": pause, **device})
            if self._stopping.wait(pause) or group.retired:
                return
            self._restarts.inc()
            try:
                worker.launch()
                if group.wait_ready(worker) and self._groups is not None:
                    self._groups.publish()
            except (RemoteUdfError, OSError) as error:
                log.error("worker does not start", extra={**worker.named, "why": str(error)})

    def _end_hanging(self, groups: ServerGroups) -> None:
        """Kill each worker whose event loop does not run. It is restarted like one that has ended."""
        silent: collections.Counter[WorkerProcess] = collections.Counter()
        while not self._stopping.wait(LOOK_SECONDS):
            found = groups.workers
            for worker in found:
                silent[worker] = 0 if worker.is_alive() else silent[worker] + 1
                if silent[worker] == SILENT_LOOKS:
                    log.error("worker hangs and is killed", extra=worker.named)
                    worker.process.kill()
            silent = collections.Counter({worker: silent[worker] for worker in found})

    def _unready(self) -> str:
        """Why no worker at the server's address accepts streams, or none of a group that is always required."""
        groups = self._groups
        if groups is None or groups.default is None or self._stopping.is_set():
            return "it shuts down"
        return groups.default.unready() or _silent(group for group in groups.others if group.required == ALWAYS)

    def _missing(self) -> str:
        """The other groups of which no worker accepts streams, with the reasons; empty if there are none."""
        groups = [] if self._groups is None else self._groups.others
        return _silent(group for group in groups if group.required != ALWAYS)

    def _end(self, seconds: float) -> None:
        """End all processes, after they have drained for at most this time."""
        deadline = time.monotonic() + seconds
        groups = self._groups
        try:
            for group in [] if groups is None else groups.all:
                group.drain()
            for group in [] if groups is None else [*groups.all, *groups.retired]:
                group.end(max(deadline - time.monotonic(), 0.0))
        finally:
            if groups is not None:
                groups.close()
            if self._ledgers is not None:
                self._ledgers.close()
            self._address.close()


def _silent(groups: Iterable[ProcessGroup]) -> str:
    """Those of which no process accepts streams, with the reasons; empty if there are none."""
    found = [(group.source, group.unready()) for group in groups]
    return "; ".join(f"{source} does not answer: {why}" for source, why in found if why)
