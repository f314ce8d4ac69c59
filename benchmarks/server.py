"""A server process with the functions of the benchmarks."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["ServerProcess", "server_process"]

FUNCTIONS = Path(__file__).with_name("functions.py")


@dataclass(frozen=True)
class ServerProcess:
    """A server that is ready."""

    target: str
    process: psutil.Process
    metrics: str
    """The address of its HTTP server."""

    def cpu_seconds(self) -> float:
        """CPU time of the server so far."""
        times = self.process.cpu_times()
        return times.user + times.system


@contextlib.contextmanager
def server_process(
    plugin: Path = FUNCTIONS, *, one_core: bool = False, settings: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Runs a server on a free TCP port until the block ends.

    With `one_core` it is pinned to the last available core, and this process to the others, so that
    neither takes CPU time from the other.
    """
    cores = sorted(os.sched_getaffinity(0))
    command = [
        sys.executable, "-m", "udf_server", "serve", "--plugin", str(plugin),
        "--port", "0", "--metrics-port", "0", "--log-level", "warning", "--stop-with-stdin", "--processes", "1",
        *settings,
    ]  # fmt: skip
    with tempfile.TemporaryFile("w+") as log:  # the audit log has a line per stream
        try:
            if one_core:
                os.sched_setaffinity(0, cores[-1:])  # the child inherits it
            child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
            os.sched_setaffinity(0, cores[:-1] if one_core and len(cores) > 1 else cores)
            with child:
                assert child.stdout is not None and child.stdin is not None
                line = child.stdout.readline()
                if not line:
                    log.seek(0)
                    raise RuntimeError(f"the server did not start: {log.read()}")
                ready = json.loads(line)
                yield ServerProcess(ready["target"], psutil.Process(child.pid), ready["metrics"])
                child.stdin.close()
        finally:
            os.sched_setaffinity(0, cores)
