"""ServerGroups are the groups of a server: they are started, checked together, published, and replaced by a reload."""

import contextlib
import itertools
import logging
import os
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

from remote_udf.functions import FunctionSpec
from remote_udf.option_values import unknown
from remote_udf.sockets import socket_directory
from udf_server.base.errors import InvalidConfig
from udf_server.serving.addresses import GroupPorts, SocketPath
from udf_server.serving.config import ServerConfig
from udf_server.serving.groups import DEFAULT_GROUP
from udf_server.serving.interpreters import interpreter_of
from udf_server.serving.membership import check_whole
from udf_server.serving.process_group import ProcessGroup
from udf_server.serving.worker_process import WorkerProcess
from udf_server.streams.routes import functions_of, write_routes

__all__ = ["ServerGroups"]

log = logging.getLogger(__name__)


class ServerGroups:
    """Call `launch`, then `publish` whenever a process of a group has other functions, and `close` at the end."""

    def __init__(
        self,
        config: ServerConfig,
        number: int,
        shared: Sequence[str],
        address: int | SocketPath,
        stopping: threading.Event,
    ) -> None:
        """`number` are the processes of the default group.

        `shared` are the arguments of all worker processes. `address` is the port of the server, or its Unix socket.
        """
        self._config, self._number, self._stopping = config, number, stopping
        self._command, self._address = ["-m", "udf_server", *shared], address
        self._ports = GroupPorts(config.host, address if isinstance(address, int) else None)
        self._folder, self._used = socket_directory("udf-"), contextlib.ExitStack()
        self._routes = Path(self._folder.name) / "routes"
        self._made = itertools.count()
        self._lock = threading.Lock()
        self.others: list[ProcessGroup] = []
        self.retired: list[ProcessGroup] = []
        """Groups that were replaced and still drain."""
        self.default: ProcessGroup | None = None

    @property
    def all(self) -> list[ProcessGroup]:
        """Those that serve, the default group first."""
        return [*([] if self.default is None else [self.default]), *self.others]

    @property
    def workers(self) -> list[WorkerProcess]:
        """The processes of these groups."""
        return [worker for group in self.all for worker in group.workers]

    def launch(self) -> None:
        """Start all groups and check that they belong together. Raises InvalidConfig or PluginError."""
        ports = self._ports.reserve(self._config)
        self.others = [self._make(name, self._config, port) for name, port in ports.items()]
        for group in self.others:
            group.launch(first=True)
        for group in self.others:
            self._wait_ready(group, group.workers[:1])
        self.publish()
        default = self.default = self._make_default(self._config)
        default.launch(first=True)
        self._wait_ready(default, default.workers)
        self._check(self._config, self.others, default)
        for group in self.all:
            group.launch(first=False)
        for group in self.all:
            self._wait_ready(group, group.workers[1:])
        self._listen(default)

    def _listen(self, default: ProcessGroup) -> None:
        """Have new connections reach these processes. The old ones leave next."""
        default.listen()
        if isinstance(self._address, SocketPath):
            self._address.lead_to(*default.sockets)

    def publish(self) -> None:
        """Tell the processes of the default group which functions the others have, and where.

        Raises FunctionClash if two of them have a function of the same name and version.
        """
        with self._lock:
            routes = {str(group.name): group.route for group in self.others}
            functions_of(routes)
            write_routes(self._routes, routes)

    def replace(
        self, names: Sequence[str], config: ServerConfig, *, changed: bool, seconds: float
    ) -> list[ProcessGroup]:
        """Start these groups beside the old ones, as `config` has them, and switch to them. Returns the old ones.

        With `changed`, functions may keep their version although their types differ. An old group with devices has
        ended before a stream can have the new one open a model there; it drains for at most these `seconds`. Raises
        InvalidConfig or PluginError if the new ones do not start or may not replace the old ones; then nothing has
        changed.
        """
        known = {DEFAULT_GROUP, *config.groups, *self._config.groups}
        for name in names:
            if name not in known:
                raise InvalidConfig(unknown("group", name, known))
        old = [group for group in self.all if (group.name or DEFAULT_GROUP) in names]
        kept = [group for group in self.others if group not in old]
        default = self._make_default(config) if DEFAULT_GROUP in names else self.default
        assert default is not None
        made: list[ProcessGroup] = []
        try:
            ports = self._ports.reserve(config, {str(group.name): group.port for group in kept})
            made += [self._make(name, config, ports[name]) for name in names if name in config.groups]
            others = [*kept, *made]
            made += [default] if default is not self.default else []
            for first in (True, False):
                for group in made:
                    group.launch(first=first)
                for group in made:
                    for worker in group.workers[:1] if first else group.workers[1:]:
                        group.wait_ready(worker)
            if not changed:
                _require_types(old, made)
            self._check(config, others, default)
        except BaseException:
            for group in made:
                group.end()
            self._ports.keep(group.port for group in self.others)
            raise
        for group in old:
            if group.devices:
                group.end(seconds)
        self.others, self._config, self.default = others, config, default
        self.publish()
        self._listen(default)
        self._ports.keep(group.port for group in others)
        return old

    def _wait_ready(self, group: ProcessGroup, workers: Iterable[WorkerProcess]) -> None:
        """Wait until processes are ready. Raises InvalidConfig if one ends first and its group is required."""
        for worker in workers:
            try:
                group.wait_ready(worker)
            except InvalidConfig as error:
                if group.required or self._stopping.is_set():
                    raise
                log.error("worker does not start", extra={**worker.named, "why": str(error)})

    def _check(self, config: ServerConfig, others: Sequence[ProcessGroup], default: ProcessGroup) -> None:
        if others:
            elsewhere = functions_of({str(group.name): group.route for group in others})
            lacking = [group.source for group in others if not group.specs]
            check_whole(config, default.specs, elsewhere, lacking=lacking)

    def _make(self, name: str, config: ServerConfig, port: int) -> ProcessGroup:
        group, place = config.groups[name], next(self._made)
        sockets = [str(Path(self._folder.name) / f"g{place}-{number}") for number in range(group.processes)]
        python = interpreter_of(config, name, self._used)
        command = [python, *self._command, "--group", name]
        command += [*(["--group-port", str(port)] if port else []), "--group-socket"]
        return ProcessGroup(
            name, [[*command, socket] for socket in sockets], group.devices, sockets=sockets, port=port,
            environment=group.variables(name, os.environ, [config.cache_encryption_variable]),
            required=group.required, memory=group.memory,
        )  # fmt: skip

    def _make_default(self, config: ServerConfig) -> ProcessGroup:
        command = [sys.executable, *self._command, "--group", DEFAULT_GROUP]
        if config.groups:
            command += ["--group-routes", str(self._routes)]
        sockets = [self._address.next()] if isinstance(self._address, SocketPath) else []
        command += ["--unix-socket", *sockets] if sockets else ["--port", str(self._address)]
        name = DEFAULT_GROUP if config.groups else None
        # New processes wait until the old ones may leave.
        commands = [[*command, "--held"]] * self._number
        return ProcessGroup(name, commands, config.devices, sockets=sockets, held=True)

    def close(self) -> None:
        """Remove the sockets, release the ports, and leave the environments. Call it when the processes have ended."""
        self._used.close()
        self._ports.close()
        self._folder.cleanup()


def _require_types(old: Sequence[ProcessGroup], made: Sequence[ProcessGroup]) -> None:
    """Raise InvalidConfig if a function keeps its version and has other types."""
    before: dict[str, FunctionSpec] = {spec.key: spec for group in old for spec in group.specs}
    for spec in (spec for group in made for spec in group.specs):
        known = before.get(spec.key)
        if known is not None and known.fingerprint != spec.fingerprint:
            raise InvalidConfig(
                f"function {spec.key} was {known.signature} and is now {spec.signature}: jobs that were planned before "
                "would fail; give it another version, or reload with --changed"
            )
