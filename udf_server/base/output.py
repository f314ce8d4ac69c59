"""Queued output: lines for standard error and output, written by a thread, so that nobody who writes has to wait.

If whoever reads a pipe stops, a write to it blocks, and with it the lock of the log and every thread that logs: all
streams would hang. Here lines wait in a bounded queue instead; those that find no room are dropped and counted.
"""

import atexit
import collections
import io
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    from typing_extensions import Buffer  # Python 3.12 has it

__all__ = ["DroppedLines", "QueuedOutput", "flush_outputs", "queue_outputs"]

QUEUED_BYTES = 1 << 20
"""Bytes that wait to be written."""
FLUSH_SECONDS = 1.0
"""How long the end of the process waits for them."""


class QueuedOutput:
    """One file descriptor. Methods are safe to call from any thread and never wait for the reader, except `flush`."""

    def __init__(self, descriptor: int, most_bytes: int = QUEUED_BYTES) -> None:
        self.dropped = 0
        """Number of writes that found no room."""
        self._descriptor, self._most_bytes = descriptor, most_bytes
        self.begin_again()

    def begin_again(self) -> None:
        """Forget what waits and who writes it: after a fork, the thread and the owner of the lock are elsewhere."""
        self._waiting: collections.deque[bytes] = collections.deque()
        self._bytes = 0
        """Bytes of what waits and of what is being written."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def write(self, data: bytes) -> None:
        """Queue data, which is written as a whole or dropped."""
        with self._changed:
            if self._bytes and self._bytes + len(data) > self._most_bytes:
                self.dropped += 1
                return
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"output-{self._descriptor}", daemon=True)
                self._thread.start()

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Wait until all is written, at most this time. Returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._bytes, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                data = self._waiting.popleft()
            self._put(data)
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:  # another process has set the pipe so
                time.sleep(0.01)
            except OSError:  # nobody can read it any more
                with self._changed:
                    self.dropped += 1
                return


class _Raw(io.RawIOBase):
    """A QueuedOutput as the file below a text stream."""

    def __init__(self, output: QueuedOutput, descriptor: int) -> None:
        self._output, self._descriptor = output, descriptor

    def writable(self) -> bool:
        return True

    def write(self, data: "Buffer") -> int:
        given = bytes(data)
        self._output.write(given)
        return len(given)

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


_OUTPUTS: dict[str, QueuedOutput] = {}


def queue_outputs() -> None:
    """Queue what this process prints and logs from here on: `sys.stdout` and `sys.stderr` are replaced.

    What C code or child processes write to the descriptors is not queued.
    """
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        if name in _OUTPUTS:
            continue
        getattr(sys, name).flush()
        output = _OUTPUTS[name] = QueuedOutput(descriptor)
        os.register_at_fork(after_in_child=output.begin_again)
        # Each line is flushed as one piece, so that lines are dropped as a whole.
        lines = io.BufferedWriter(_Raw(output, descriptor))
        setattr(sys, name, io.TextIOWrapper(lines, "utf-8", "backslashreplace", line_buffering=True))
    atexit.register(flush_outputs)


def flush_outputs() -> None:
    """Write what was printed and logged, if it is read within FLUSH_SECONDS."""
    sys.stdout.flush()
    sys.stderr.flush()
    for output in _OUTPUTS.values():
        output.flush()


class DroppedLines(Collector):
    """The metric of lines that were dropped because nobody read the output of this process."""

    labels = ("output",)

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[Metric]:
        return self.collect()

    def collect(self) -> Iterator[Metric]:
        metric = CounterMetricFamily(
            "udf_output_lines_dropped",
            "Lines of the log and of what functions print that were dropped, because nobody reads stdout or stderr.",
            labels=self.labels,
        )
        for name in ("stdout", "stderr"):
            metric.add_metric([name], _OUTPUTS[name].dropped if name in _OUTPUTS else 0)
        yield metric
