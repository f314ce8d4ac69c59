"""Server processes that are killed, stopped and started again on the same ports."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from tests.ports import free_port

__all__ = ["ChaosServer"]

PLUGIN = str(Path(__file__).with_name("plugin.py"))


class ChaosServer:
    """One server at one address. `start` may be called again after `kill`."""

    def __init__(self, *flags, plugin=PLUGIN, log=None, **environment):
        """Its standard error goes to the file `log`, if given."""
        self.port = free_port()
        self.target = f"127.0.0.1:{self.port}"
        self.starts = 0
        self._flags, self._environment = flags, environment
        self._plugin, self._log = plugin, log
        self._process = None
        self._lock = threading.Lock()
        self.start()

    def start(self, **environment):
        """Return once it is ready."""
        command = [sys.executable, "-m", "udf_server", "serve", "--plugin", self._plugin, "--no-entry-points"]
        command += ["--port", str(self.port), "--metrics-port", "0", "--log-level", "error", *self._flags]
        with self._lock, Path(self._log or os.devnull).open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **self._environment, **environment},
            )  # fmt: skip
            line = self._process.stdout.readline()
            self.starts += 1
        assert line, f"no server on port {self.port}"
        self.metrics = json.loads(line)["metrics"]

    @property
    def pid(self):
        return self._process.pid

    @property
    def ended(self):
        """How it ended by itself; "" while it runs."""
        status = self._process.poll()
        return "" if status is None else f"status {status}"

    @property
    def resident(self):
        """Its memory in bytes; 0 if it is not running."""
        try:
            return psutil.Process(self._process.pid).memory_info().rss
        except psutil.NoSuchProcess:
            return 0

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        """End it as the kernel or a power failure does. Safe to call twice."""
        with self._lock:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def reload(self, kill_after=None, rng=None):
        """Reload it, and kill one of its processes after `kill_after` seconds. Returns the output if that fails."""
        command = [sys.executable, "-m", "udf_server", "reload", "--metrics-port", self.metrics.rpartition(":")[2]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            if kill_after is not None:
                time.sleep(kill_after)
                with contextlib.suppress(psutil.NoSuchProcess, IndexError):
                    rng.choice(psutil.Process(self.pid).children()).kill()
            said = process.communicate(timeout=120)[0]
        return said if process.returncode else ""

    def terminate(self):
        """End it as an orchestrator does; return at once."""
        self._process.terminate()

    def wait(self):
        self._process.wait(60)
        self._process.stdout.close()
