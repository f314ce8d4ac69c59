"""Progress: prints a line on standard error every few seconds while a job runs."""

import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from pyspark import StatusTracker

from spark_client.base.statistics import Statistics

__all__ = ["PROGRESS_SECONDS", "Progress"]

PROGRESS_SECONDS = 10.0


class Progress:
    """Prints on its own thread, a daemon thread, which does not keep the driver running."""

    def __init__(
        self, total: Callable[[], tuple[int, Statistics]], tracker: StatusTracker | None,
        seconds: float = PROGRESS_SECONDS, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`total` returns the tasks and statistics so far. Raises ValueError if `seconds` is not more than 0."""
        if not seconds > 0:
            raise ValueError(f"progress: {seconds} is not a number of seconds above 0")
        self._total, self._tracker, self._seconds = total, tracker, seconds
        self._out, self._clock = out, clock
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = self._then = clock()
        self._rows = 0

    def start(self) -> None:
        """Start printing."""
        self._stopped.clear()
        self._began = self._then = self._clock()
        self._rows = 0
        self._thread = threading.Thread(target=self._run, name="remote-udf-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Print a last line and stop. Safe to call twice."""
        if self._thread is None:
            return
        self._stopped.set()
        self._thread.join()
        self._thread = None
        self._print()

    def line(self) -> str:
        """The line to print now. Its rows are those of tasks that have ended."""
        tasks, statistics = self._total()
        now = self._clock()
        rate = (statistics.rows - self._rows) / max(now - self._then, 1e-9)
        self._then, self._rows = now, statistics.rows
        parts = [
            f"{now - self._began:.0f} s",
            f"{statistics.rows:,} rows in {tasks:,} tasks ({rate:,.0f} rows/s)",
            f"{statistics.failed:,} failed",
            f"{statistics.retries:,} retries",
        ]
        return ", ".join([*parts, *self._stages()])

    def _stages(self) -> list[str]:
        lines: list[str] = []
        if self._tracker is None:
            return lines
        for stage in self._tracker.getActiveStageIds():
            info = self._tracker.getStageInfo(stage)
            if info is not None:
                lines.append(f"stage {stage}: {info.numCompletedTasks} of {info.numTasks} tasks")
        return lines

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._print()

    def _print(self) -> None:
        out = self._out or sys.stderr
        out.write(f"remote-udf: {self.line()}\n")
        out.flush()
