"""Progress: a line with the rows that servers have answered, redrawn every few seconds while a job runs."""

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TextIO

from pyspark import StatusTracker

from spark_client.base.notebooks import ipython_shell
from spark_client.base.statistics import Statistics
from spark_client.summary.live_rows import Answered, LiveRows

__all__ = ["PROGRESS_SECONDS", "Display", "Progress", "display_for"]

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
        counts = [f"{rows:,} rows ({rate:,.0f} rows/s)", f"{failed:,} failed", f"{retries:,} retries"]
        if self._live is not None and self._live.partial:
            ended = f"{rows:,} rows in tasks that have ended"
            counts = [ended, *counts[1:]] if rows else ["rows unknown until a task ends"]
        parts = [f"{now - self._began:.0f} s", *counts]
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


class Display(Protocol):
    """Shows a line in place of the one before."""

    def show(self, line: str) -> None:
        """Show the line."""
        ...

    def end(self) -> None:
        """Leave the last line as it is."""
        ...


class _Lines:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, line: str) -> None:
        self._out.write(f"{line}\n")
        self._out.flush()

    def end(self) -> None:
        pass


class _Terminal:
    def __init__(self, out: TextIO) -> None:
        self._out = out

    def show(self, line: str) -> None:
        # A longer line would wrap, and only its last part would be redrawn.
        shown = line[: max(_columns(self._out) - 1, 1)]
        self._out.write(f"\r\x1b[K{shown}")  # to the first column, and clear to the end
        self._out.flush()

    def end(self) -> None:
        self._out.write("\n")
        self._out.flush()


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or shutil.get_terminal_size().columns
    except (OSError, ValueError):
        return shutil.get_terminal_size().columns


class _Notebook:
    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def show(self, line: str) -> None:
        if self._handle is None:
            self._handle = self._display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": line}, raw=True)

    def end(self) -> None:
        pass


def display_for(out: TextIO) -> Display:
    """The display for a notebook, a terminal, or anything else that `out` is."""
    if getattr(ipython_shell(), "kernel", None) is not None:
        from IPython.display import display  # noqa: PLC0415 - IPython runs already

        return _Notebook(display)
    return _Terminal(out) if out.isatty() else _Lines(out)
