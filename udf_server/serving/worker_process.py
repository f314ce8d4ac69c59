"""WorkerProcess is one of several processes of a server: it is launched, restarted, and asked over HTTP."""

import contextlib
import json
import logging
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import IO, TypedDict

from prometheus_client.registry import Collector

from udf_server.base.errors import InvalidConfig
from udf_server.base.output import DroppedLines
from udf_server.http.exposition import joined, page_of
from udf_server.page.site import Credentials
from udf_server.serving.devices import environment_of

__all__ = ["FIRST_PAUSE", "LEAVE", "LISTEN", "ReadyLine", "WorkerProcess", "page_of_workers", "pause_after"]

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Pause before a crashed worker is restarted, and the maximum to which it doubles if the worker crashes again."""
STEADY_SECONDS = 60.0
"""If a worker ran for this time, its next pause is the shortest again."""
SCRAPE_SECONDS = 5.0
LISTEN, LEAVE = b"listen\n", b"leave\n"
"""What a process is told on its standard input: to listen at its address, and that another one listens there."""
CALL_SECONDS = 70.0
"""Timeout of a test call from the web UI. The worker's own timeout is shorter."""


class ReadyLine(TypedDict, total=False):
    """What a server prints once it is ready; nothing before that."""

    target: str
    metrics: str
    pid: int
    functions: list[str]
    processes: list[int]
    devices: list[str]
    groups: dict[str, list[int]]
    """The processes of each group, in a server with groups."""
    ports: dict[str, int]
    """Where clients reach each group; 0 if they do not."""
    why: str
    """Why a worker process cannot start, in place of all others."""
    version: str
    """Of this package. Only worker processes print it and their functions, as `packed_specs` writes them."""
    specs: list[str]


class WorkerProcess:
    """One worker process and its successors after restarts."""

    def __init__(
        self, number: int, command: Sequence[str], device: str | None, group: str | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:  # fmt: skip
        """With a device, the process and its successors see no other one. Raises InvalidConfig and OSError.

        `group` is that of the process, in a server with groups.
        """
        self.number, self.device = number, device
        of_group = {} if group is None else {"group": group}
        self.labels: Mapping[str, str] = {**of_group, "process": str(number)}
        """What samples of its metrics have."""
        self.named: Mapping[str, str | int] = {**of_group, "worker": number}
        """What log lines call it."""
        self._source = f"worker process {number}{'' if group is None else f' of group {group!r}'}"
        variables = {} if device is None else environment_of(device, environment)
        self._environment = {**environment, **variables}
        if device is not None:
            command = [*command, "--worker-device", device]
            log.info("worker has a device", extra={**self.named, "device": device, **variables})
        self.ready: ReadyLine = {}
        self._command = command
        self.process: subprocess.Popen[bytes]
        self.close: Callable[[], object] = lambda: None
        """Closes the standard input of the process, which has ended."""
        self.launch()

    def launch(self) -> None:
        """Start the process. Call `wait_ready` next. Raises OSError."""
        self.close()
        self.began = time.monotonic()
        self.ready = {}
        # The worker stops when its standard input is closed, so it ends with this process in any case.
        # The variable of a device is set from the beginning: libraries read it when they are imported.
        # Signals of a terminal go to this process alone, which stops the others.
        self.process = subprocess.Popen(  # noqa: S603 - ours
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment, process_group=0
        )
        assert self.process.stdin is not None
        self.close = self.process.stdin.close

    def wait_ready(self) -> None:
        """Wait until the process is ready. Raises InvalidConfig if it ends first, with the reason that it gave."""
        assert self.process.stdout is not None
        why = ""
        for line in self.process.stdout:
            try:
                ready: ReadyLine | None = json.loads(line)
            except ValueError:
                ready = None
            if isinstance(ready, dict) and "metrics" in ready:
                self.ready = ready
                threading.Thread(target=self._pass_on, args=(self.process.stdout,), daemon=True).start()
                return
            if isinstance(ready, dict) and "why" in ready:
                why = f": {ready['why']}"
            else:
                self._print(line)
        self.process.stdout.close()
        raise InvalidConfig(f"{self._source} ended with status {self.process.wait()} before it was ready{why}")

    def tell(self, what: bytes) -> None:
        """Write LISTEN or LEAVE to the process. One that has ended hears nothing."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the pipe is closed
            self.process.stdin.write(what)
            self.process.stdin.flush()

    def ask(self, path: str, credentials: Credentials = (), body: bytes | None = None) -> str:
        """The response of its HTTP server. If there is a body, it is posted as JSON. Raises OSError."""
        ready = self.ready
        if not ready:
            raise ConnectionError(f"{self._source} is not ready")
        headers = {**dict(credentials), **({} if body is None else {"Content-Type": "application/json"})}
        request = urllib.request.Request(ready["metrics"] + path, body, headers)  # noqa: S310 - http, ours
        seconds = SCRAPE_SECONDS if body is None else CALL_SECONDS
        with urllib.request.urlopen(request, timeout=seconds) as answer:  # noqa: S310 - http, ours
            text: str = answer.read().decode()
            return text

    def is_alive(self) -> bool:
        """Whether its event loop runs. A process that starts, or has ended and will be restarted, counts as alive."""
        if not self.ready:
            return True
        try:
            self.ask("/livez")
        except OSError:
            return not self.ready or self.process.poll() is not None
        return True

    def _pass_on(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._print(line)

    @staticmethod
    def _print(line: bytes) -> None:
        """Write output of functions to standard error, like the log."""
        sys.stderr.buffer.write(line)
        sys.stderr.buffer.flush()


def pause_after(began: float, before: float) -> float:
    """The pause after a process that began at this time has ended; `before` was the pause after its predecessor."""
    return FIRST_PAUSE if time.monotonic() - began > STEADY_SECONDS else min(before * 2, LONGEST_PAUSE)


def page_of_workers(workers: Sequence[WorkerProcess], own: Collector) -> str:
    """The metrics of all workers, and of this process. A worker that does not answer within SCRAPE_SECONDS is omitted.

    Each has the label `process`, because a restarted worker counts from 0 again. Lines that this process has dropped
    have the label `parent`: it passes on what the workers print.
    """
    threads = ThreadPoolExecutor(len(workers), thread_name_prefix="scrape")
    asked = [(worker, threads.submit(worker.ask, "/metrics")) for worker in workers]
    wait([answer for _, answer in asked], SCRAPE_SECONDS)
    threads.shutdown(wait=False)
    pages = [(worker.labels, answer.result()) for worker, answer in asked if _is_there(worker, answer)]
    return joined([({"process": "parent"}, page_of(DroppedLines())), *pages]) + page_of(own)


def _is_there(worker: WorkerProcess, answer: "Future[str]") -> bool:
    """Whether there is an answer. A worker that is being restarted has none."""
    if answer.done() and answer.exception() is None:
        return True
    log.warning("a scrape lacks a worker", extra=worker.named)
    return False
