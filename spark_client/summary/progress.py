"""Progress: shows a line every few seconds while a job runs, with the rows that servers have answered."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TextIO

from pyspark import StatusTracker

from spark_client.base.statistics import Statistics
from spark_client.summary.display import Display, display_for
from spark_client.summary.live_rows import Answered, LiveRows

__all__ = ["PROGRESS_SECONDS", "Progress"]

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 10.0


class Progress:
    """Prints on its own thread, a daemon thread, which does not keep the driver running."""

    def __init__(
        self, total: Callable[[], tuple[int, Statistics]], tracker: StatusTracker | None,
        seconds: float = PROGRESS_SECONDS, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic,
        *, live: LiveRows | None = None,
    ) -> None:  # fmt: skip
        """`total` returns the tasks that have ended and their statistics; `live` counts rows of those that run.

        Raises ValueError if `seconds` is not more than 0.
        """
        if not seconds > 0:
            raise ValueError(f"progress: {seconds} is not a number of seconds above 0")
        self._total, self._tracker, self._seconds = total, tracker, seconds
        self._out, self._clock, self._live = out, clock, live
        self._display: Display | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = self._then = clock()
        self._rows = 0
        self._since: dict[int, float] = {}
        """The time of the last line without each stage that is active now."""

    def start(self) -> None:
        """Start printing."""
        self._stopped.clear()
        self._began = self._then = self._clock()
        self._rows = 0
        self._since = {}
        if self._live is not None:
            self._live.start()
        self._display = display_for(self._out or sys.stderr)
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
        if self._display is not None:
            self._display.end()

    def line(self) -> str:
        """The line to show now."""
        tasks, statistics = self._total()
        answered = self._live.since_start() if self._live is not None else Answered()
        # What a task reports at its end is exact; before, the servers know more.
        rows, failed = max(statistics.rows, answered.rows), max(statistics.failed, answered.failed)
        retries = max(statistics.retries, answered.retries)
        now = self._clock()
        rate = (rows - self._rows) / max(now - self._then, 1e-9)
        before, self._then, self._rows = self._then, now, rows
        parts = [
            f"{now - self._began:.0f} s",
            f"{rows:,} rows ({rate:,.0f} rows/s)",
            f"{failed:,} failed",
            f"{retries:,} retries",
        ]
        return ", ".join([*parts, *self._stages(before, now, tasks)])

    def _stages(self, before: float, now: float, ended: int) -> list[str]:
        if self._tracker is None:
            return [f"{ended:,} tasks have ended"]
        found = [(stage, self._tracker.getStageInfo(stage)) for stage in self._tracker.getActiveStageIds()]
        stages = [(stage, info) for stage, info in found if info is not None]
        self._since = {stage: self._since.get(stage, before) for stage, _ in stages}
        lines = [f"stage {stage}: {info.numCompletedTasks} of {info.numTasks} tasks" for stage, info in stages]
        # Tasks of a stage are similar, as a rule, so the rest takes as long as what has ended did.
        left = [
            (now - self._since[stage]) * (info.numTasks - info.numCompletedTasks) / info.numCompletedTasks
            for stage, info in stages
            if info.numCompletedTasks
        ]
        return [*lines, f"about {max(left):.0f} s left"] if any(left) else lines

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._print()

    def _print(self) -> None:
        if self._display is None:
            return
        try:
            self._display.show(f"remote-udf: {self.line()}")
        except Exception as error:  # of Spark, which may be gone, or of what shows the line: no reason to fail the job
            log.warning("a line of progress cannot be shown: %s", error)
