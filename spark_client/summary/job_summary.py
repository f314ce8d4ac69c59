"""JobSummary: what remote calls did while a job ran, as text, as a DataFrame and in notebooks."""

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from types import TracebackType

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from spark_client.base.figures import Figures, TaskReport
from spark_client.base.notebooks import bar, table
from spark_client.summary.collector import Collector
from spark_client.summary.progress import PROGRESS_SECONDS, Progress

__all__ = ["JobSummary", "SummaryRow"]

TASKS_KEPT = 20_000
"""Tasks whose attempts are told apart. Those before have long ended."""

_COLUMNS: dict[str, tuple[str, Callable[["SummaryRow"], object]]] = {
    "function": ("string", lambda row: row.function),
    "stage": ("int", lambda row: row.stage),
    "tasks": ("bigint", lambda row: row.tasks),
    "rows": ("bigint", lambda row: row.figures.rows),
    "ok": ("bigint", lambda row: row.figures.ok),
    "failed": ("bigint", lambda row: row.figures.failed),
    "on_error": ("string", lambda row: row.on_error),
    "skipped": ("bigint", lambda row: row.figures.skipped),
    "calls": ("bigint", lambda row: row.figures.calls),
    "retries": ("bigint", lambda row: row.figures.retries),
    "batches": ("bigint", lambda row: row.figures.batches),
    "replays": ("bigint", lambda row: row.figures.replays),
    "reconnects": ("bigint", lambda row: row.figures.reconnects),
    "bytes_out": ("bigint", lambda row: row.figures.bytes_out),
    "bytes_in": ("bigint", lambda row: row.figures.bytes_in),
    "task_seconds": ("double", lambda row: row.figures.task_seconds),
    "spark_seconds": ("double", lambda row: row.figures.spark_seconds),
    "waiting_seconds": ("double", lambda row: row.figures.waiting_seconds),
    "batch_seconds": ("double", lambda row: row.figures.batch_seconds),
    "wire_seconds": ("double", lambda row: row.figures.wire_seconds),
    "queue_seconds": ("double", lambda row: row.figures.queue_seconds),
    "function_seconds": ("double", lambda row: row.figures.function_seconds),
    "p50_seconds": ("double", lambda row: row.figures.quantile(0.5)),
    "p99_seconds": ("double", lambda row: row.figures.quantile(0.99)),
}
"""Columns of `JobSummary.frame`: type, and what stands there."""


@dataclass(frozen=True)
class SummaryRow:
    """A function in a stage. `stage` is None for all micro-batches of a streaming query together."""

    function: str
    stage: int | None
    on_error: str
    tasks: int
    figures: Figures


_Group = tuple[str, int | None, str]
_Task = tuple[str, str, str, int, int, int]


class JobSummary:
    """Counts while its `with` block runs; may be read at any time, then and later.

    Tasks report when they end, so a task that failed is not in it, nor one that Spark ended early, as for
    LIMIT. Of a task that ran twice the last attempt counts.
    """

    def __init__(
        self, spark: SparkSession, context: SparkContext | None, collector: Collector, progress: bool | float = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`progress` is False, True, or seconds between two lines; without a context they say nothing of stages."""
        self._spark, self._collector, self._clock = spark, collector, clock
        self._lock = threading.Lock()
        self._tasks: OrderedDict[_Task, tuple[int, _Group, Figures]] = OrderedDict()
        """By operation, function, and place of the task: its latest attempt."""
        self._settled: dict[_Group, tuple[int, Figures]] = {}
        """Tasks, and their figures, that are not told apart any more."""
        self._began = self._ended = 0.0
        self._progress: Progress | None = None
        if progress:
            seconds = PROGRESS_SECONDS if progress is True else float(progress)
            self._progress = Progress(self.total, context.statusTracker() if context is not None else None, seconds)

    def __enter__(self) -> "JobSummary":
        self._began, self._ended = self._clock(), 0.0
        self._collector.open(self)
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = self._clock()
        # The block's own error must not hide behind one of reading reports.
        with contextlib.suppress(*[Exception] if kind else []):
            self._collector.close(self)
        if self._progress is not None:
            self._progress.stop()

    @property
    def seconds(self) -> float:
        """How long the block has run."""
        return (self._ended or self._clock()) - self._began if self._began else 0.0

    def take(self, report: TaskReport) -> None:
        """A task has ended. From any thread."""
        streaming = report.micro_batch >= 0
        group = (report.function, None if streaming else report.stage, report.on_error)
        task = (
            report.operation_id, report.function, report.on_error, report.stage, report.micro_batch, report.partition
        )  # fmt: skip
        with self._lock:
            known = self._tasks.get(task)
            if known is None or report.task_attempt > known[0]:
                figures = Figures()
                self._tasks[task] = (report.task_attempt, group, figures)
            elif report.task_attempt == known[0]:
                # Spark may run the same operator several times in a task, as after coalesce.
                figures = known[2]
            else:
                return
            figures.add(report.figures)
            while len(self._tasks) > TASKS_KEPT:
                _, old = self._tasks.popitem(last=False)
                _settle(self._settled, old[1], old[2])

    def rows(self) -> list[SummaryRow]:
        """A row per function and stage, in the order of stages."""
        if self._began and not self._ended:
            self._collector.fetch()
        with self._lock:
            groups: dict[_Group, tuple[int, Figures]] = {}
            for group, (tasks, figures) in self._settled.items():
                _settle(groups, group, figures, tasks)
            for _, group, figures in self._tasks.values():
                _settle(groups, group, figures)
        found = [
            SummaryRow(function, stage, on_error, tasks, figures)
            for (function, stage, on_error), (tasks, figures) in groups.items()
        ]
        return sorted(found, key=lambda row: (-1 if row.stage is None else row.stage, row.function, row.on_error))

    def total(self) -> tuple[int, Figures]:
        """Tasks that have ended, and the sum of all figures. A task counts once for each of its calls."""
        total, tasks = Figures(), 0
        for row in self.rows():
            tasks += row.tasks
            total.add(row.figures)
        return tasks, total

    def text(self) -> str:
        """A paragraph per function and stage."""
        rows = self.rows()
        if not rows:
            return f"no remote call has ended in {self.seconds:.1f} s\n"
        return "\n".join("".join(f"{line}\n" for line in _paragraph(row)) for row in rows)

    def frame(self) -> DataFrame:
        """A row per function and stage, times in seconds.

        `failed` rows became what `on_error` says: `fail`, `null`, `column` or `dead-letter`. `task_seconds` sums the
        time of tasks; of it `spark_seconds` were in Spark and `waiting_seconds` waiting for the server.
        `batch_seconds` sums the time of batches, which overlap; it is the sum of `wire_seconds`, `queue_seconds` and
        `function_seconds`. `p50_seconds` and `p99_seconds` are of batches, right to 9 percent.
        """
        schema = ", ".join(f"{name} {type_}" for name, (type_, _) in _COLUMNS.items())
        values = [tuple(value(row) for _, value in _COLUMNS.values()) for row in self.rows()]
        return self._spark.createDataFrame(values, schema)

    def _repr_html_(self) -> str:
        """What a reader asks first, with bars; `frame` has all of it."""
        rows = self.rows()
        if not rows:
            return f"<p>{escape(self.text())}</p>"
        return table(_HEAD, map(_cells, rows), numbers=(1, 2, 3, 5, 6))

    def __repr__(self) -> str:
        tasks, total = self.total()
        return f"<summary of {self.seconds:.1f} s: {total.rows:,} rows in {tasks} tasks, {total.failed:,} failed>"


def _settle(groups: dict[_Group, tuple[int, Figures]], group: _Group, figures: Figures, tasks: int = 1) -> None:
    before, total = groups.setdefault(group, (0, Figures()))
    total.add(figures)
    groups[group] = (before + tasks, total)


def _paragraph(row: SummaryRow) -> Iterator[str]:
    figures = row.figures
    where = "stream" if row.stage is None else f"stage {row.stage}"
    yield (
        f"{row.function}, {where}: {figures.rows:,} rows: {figures.ok:,} ok, {figures.failed:,} failed "
        f"({row.on_error}), {figures.skipped:,} skipped"
    )
    yield (
        f"  {figures.calls:,} calls, {figures.retries:,} of them retries; {figures.batches:,} batches, "
        f"{figures.replays} replays, {figures.reconnects} reconnects; "
        f"{_bytes(figures.bytes_out)} out, {_bytes(figures.bytes_in)} in"
    )
    yield (
        f"  {row.tasks:,} tasks of {figures.task_seconds:.2f} s in all: {figures.spark_seconds:.2f} s in Spark, "
        f"{figures.waiting_seconds:.2f} s waiting for the server"
    )
    half, most = figures.quantile(0.5), figures.quantile(0.99)
    if half is None or most is None:
        return
    yield (
        f"  a batch took {_seconds(half)} (p50), {_seconds(most)} (p99): "
        f"{_share(figures.function_seconds, figures)} function, {_share(figures.queue_seconds, figures)} queue, "
        f"{_share(figures.wire_seconds, figures)} wire"
    )


_HEAD = (
    "function", "stage", "tasks", "rows", "outcomes", "retries", "p50, p99", "time of tasks", "time of batches"
)  # fmt: skip
_GREEN, _RED, _GREY, _BLUE, _ORANGE = "#2e9e5b", "#e0443a", "#8c8c8c", "#4285f4", "#e8830c"
"""Seen on white and on black alike."""


def _cells(row: SummaryRow) -> list[str]:
    figures, half, most = row.figures, row.figures.quantile(0.5), row.figures.quantile(0.99)
    outcomes = {
        "ok": (figures.ok, _GREEN),
        f"failed ({row.on_error})": (figures.failed, _RED),
        "skipped": (figures.skipped, _GREY),
    }
    tasks = {"Spark": (figures.spark_seconds, _BLUE), "waiting": (figures.waiting_seconds, _ORANGE)}
    batches = {
        "function": (figures.function_seconds, _GREEN),
        "queue": (figures.queue_seconds, _ORANGE),
        "wire": (figures.wire_seconds, _BLUE),
    }
    return [
        escape(row.function),
        "stream" if row.stage is None else str(row.stage),
        f"{row.tasks:,}",
        f"{figures.rows:,}",
        bar(outcomes),
        f"{figures.retries:,}",
        "" if half is None or most is None else f"{_seconds(half)}, {_seconds(most)}",
        f"{_seconds(figures.task_seconds)}{bar(tasks)}",
        f"{_seconds(figures.batch_seconds)}{bar(batches)}",
    ]


def _share(seconds: float, figures: Figures) -> str:
    return f"{100 * seconds / figures.batch_seconds:.0f}%" if figures.batch_seconds else "0%"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
