"""ProcessGroup is the worker processes of one group, which have the same plugins and the same Python."""

import os
import subprocess
import threading
import time
import urllib.error
from collections.abc import Mapping, Sequence
from typing import Literal

from remote_udf.functions import FunctionSpec
from remote_udf.version import __version__
from udf_server.base.errors import InvalidConfig
from udf_server.serving.worker_process import LEAVE, LISTEN, WorkerProcess
from udf_server.streams.routes import Route, listed_specs

__all__ = ["ProcessGroup"]

SWITCH_SECONDS, LOOK_SECONDS = 10.0, 0.01
"""How long processes may take to begin or to end listening, and the time between two looks."""


class ProcessGroup:
    """Starts the processes of a group. The first one is started alone: what prevents it from starting is said once."""

    def __init__(
        self, name: str | None, commands: Sequence[Sequence[str]], devices: Sequence[str] = (), *,
        environment: Mapping[str, str] = os.environ, sockets: Sequence[str] = (), port: int = 0,
        required: bool | Literal["always"] = True, memory: int | None = None, held: bool = False,
    ) -> None:  # fmt: skip
        """There is a command for each process, and a device for each or none.

        `name` is None in a server without groups. `sockets` are where the processes listen, unless that is the server's
        port, and `port` is where clients reach them; 0 for none. `memory` is the resident memory that they may have
        together, in bytes. Processes that are `held` listen once `listen` was called.
        """
        self.name, self.port, self.required, self.memory = name, port, required, memory
        self.source = "the server" if name is None else f"group {name!r}"
        """What errors call it."""
        self.retired = False
        """Whether its processes are not started again."""
        self.workers: list[WorkerProcess] = []
        self.devices = devices
        self.sockets = sockets
        self._commands, self._environment = commands, environment
        self._held, self._listening, self._left = held, False, False
        self._lock = threading.Lock()
        self._packed: Sequence[str] = ()

    @property
    def specs(self) -> list[FunctionSpec]:
        """The functions of the process that was ready last. Raises InvalidConfig."""
        return listed_specs(self._packed)

    @property
    def keys(self) -> frozenset[str]:
        """The names and versions of these functions."""
        return frozenset(spec.key for spec in self.specs)

    @property
    def route(self) -> Route:
        """How the processes of the default group find this group."""
        return {"sockets": list(self.sockets), "port": self.port, "functions": list(self._packed)}

    def launch(self, *, first: bool) -> None:
        """Start the first process, or the others. Raises InvalidConfig."""
        for number in [0] if first else range(1, len(self._commands)):
            device = self.devices[number] if self.devices else None
            try:
                worker = WorkerProcess(number, self._commands[number], device, self.name, self._environment)
            except OSError as error:
                raise InvalidConfig(f"{self.source} cannot be started: {error}") from error
            self.workers.append(worker)

    def wait_ready(self, worker: WorkerProcess) -> bool:
        """Wait until one of the processes is ready. Returns whether it has other functions than the one before.

        Raises InvalidConfig if it ends first, or if its Python has another version of this package.
        """
        worker.wait_ready()
        version = worker.ready.get("version")
        if version != __version__:
            worker.process.kill()
            raise InvalidConfig(
                f"{self.source}: its Python has remote-udf {version}, and the server {__version__}; install "
                "the same version"
            )
        if self._listening:
            worker.tell(LISTEN)
        with self._lock:
            before, self._packed = self._packed, worker.ready.get("specs", [])
            return before != self._packed

    def unready(self) -> str:
        """Why no process accepts streams; empty if one does."""
        why = f"{self.source} has no process"
        for worker in self.workers:
            ready, why = _readiness(worker)
            if ready:
                return ""
        return why

    def listen(self) -> None:
        """Have processes that are held listen at their address, and wait until they do."""
        if not self._held or self._listening:
            return
        self._listening = True
        for worker in self.workers:
            worker.tell(LISTEN)
        self._wait_for(ready=True)

    def drain(self) -> None:
        """Have all processes drain, after which they end and are not started again. Safe to call twice."""
        self.retired = True
        for worker in [] if self._left else self.workers:
            worker.process.terminate()

    def leave(self) -> None:
        """Drain, because other processes have replaced them. Those that were held refuse streams on return."""
        if self._held:
            self.retired = self._left = True
            for worker in self.workers:
                worker.tell(LEAVE)
            self._wait_for(ready=False)
        else:
            self.drain()

    def _wait_for(self, *, ready: bool) -> None:
        """Wait until each process accepts streams, or refuses them. One that does not answer is not waited for."""
        deadline = time.monotonic() + SWITCH_SECONDS
        for worker in self.workers:
            while _readiness(worker)[0] == (not ready) and time.monotonic() < deadline:
                time.sleep(LOOK_SECONDS)

    def end(self, seconds: float = 0.0) -> None:
        """Drain for at most this time, then kill what has not ended."""
        deadline = time.monotonic() + seconds
        self.drain()
        for worker in self.workers:
            try:
                worker.process.wait(max(deadline - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            worker.close()


def _readiness(worker: WorkerProcess) -> tuple[bool | None, str]:
    """Whether a process accepts streams, None if it does not answer; and why it does not."""
    try:
        worker.ask("/readyz")
    except urllib.error.HTTPError as error:
        with error:
            return False, error.read().decode(errors="replace").removeprefix("no: ").strip()
    except OSError as error:
        return None, str(error)
    return True, ""
