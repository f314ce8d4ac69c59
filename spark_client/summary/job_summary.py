"""JobSummary: statistics of the remote calls of jobs as text, as a DataFrame and in notebooks."""

import contextlib
import threading
import time
from collections import OrderedDict
from html import escape
from types import TracebackType

from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from spark_client.base.budget import SessionBudget
from spark_client.base.notebooks import table
from spark_client.base.statistics import Statistics, TaskReport
from spark_client.summary.collector import Collector
from spark_client.summary.live_rows import LiveRows
from spark_client.summary.progress import PROGRESS_SECONDS, Progress
from spark_client.summary.summary_row import COLUMNS, HEAD, SummaryRow, budget_lines, cells, paragraph

__all__ = ["JobSummary"]

TASKS_KEPT = 20_000
"""Number of latest tasks whose attempts are distinguished. Earlier tasks are only counted in sums."""

NOT_BEGUN = "this summary has counted nothing: it counts what runs inside `with remote.summary() as summary:`"

_Group = tuple[str, int | None, str]
_Task = tuple[str, str, str, int, int, int]


class JobSummary:
    """Counts calls while its `with` block runs. You may read it during the block and after it.

    Tasks report when they end, so it does not count tasks that failed or that Spark ended early, as for LIMIT.
    If a task ran several times, only its last attempt counts.
    """

    def __init__(
        self, spark: SparkSession, context: SparkContext | None, collector: Collector, progress: bool | float = False,
        live: LiveRows | None = None, budget: SessionBudget | None = None,
    ) -> None:  # fmt: skip
        """`budget` is that of the session.

        `live` counts rows of tasks that still run.

        `progress` is False, True, or the seconds between two lines. Without `context` the lines show no stages.
        """
        self._spark, self._collector = spark, collector
        self._budget = budget
        self._lock = threading.Lock()
        self._tasks: OrderedDict[_Task, tuple[int, _Group, Statistics]] = OrderedDict()
        """The latest attempt of each task, by operation, function, policy and place of the task."""
        self._settled: dict[_Group, tuple[int, Statistics]] = {}
        """The number and the summed statistics of earlier tasks, whose attempts are not distinguished any more."""
        self._began = self._ended = 0.0
        self._progress: Progress | None = None
        if progress:
            seconds = PROGRESS_SECONDS if progress is True else float(progress)
            tracker = context.statusTracker() if context is not None else None
            self._progress = Progress(self.total, tracker, seconds, live=live)

    def __enter__(self) -> "JobSummary":
        self._began, self._ended = time.monotonic(), 0.0
        self._collector.open(self)
        if self._progress is not None:
            try:
                self._progress.start()
            except BaseException:
                self._collector.close(self)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = time.monotonic()
        # An error while reports are read must not replace the error that the block raised.
        with contextlib.suppress(*[Exception] if kind else []), contextlib.ExitStack() as ends:
            if self._progress is not None:
                ends.callback(self._progress.stop)
            self._collector.close(self)

    @property
    def seconds(self) -> float:
        """The seconds for which the block has run."""
        return (self._ended or time.monotonic()) - self._began if self._began else 0.0

    def take(self, report: TaskReport) -> None:
        """Count a task that has ended. Any thread may call it."""
        streaming = report.micro_batch >= 0
        group = (report.function, None if streaming else report.stage, report.on_error)
        task = (
            report.operation_id, report.function, report.on_error, report.stage, report.micro_batch, report.partition
        )  # fmt: skip
        with self._lock:
            known = self._tasks.get(task)
            if known is None or report.task_attempt > known[0]:
                statistics = Statistics()
                self._tasks[task] = (report.task_attempt, group, statistics)
            elif report.task_attempt == known[0]:
                # Spark may run the same operator several times in a task, as after coalesce.
                statistics = known[2]
            else:
                return
            statistics.add(report.statistics)
            while len(self._tasks) > TASKS_KEPT:
                _, old = self._tasks.popitem(last=False)
                _settle(self._settled, old[1], old[2])

    def rows(self) -> list[SummaryRow]:
        """One row per function and stage, sorted by stage."""
        if self._began and not self._ended:
            self._collector.fetch()
        with self._lock:
            groups: dict[_Group, tuple[int, Statistics]] = {}
            for group, (tasks, statistics) in self._settled.items():
                _settle(groups, group, statistics, tasks)
            for _, group, statistics in self._tasks.values():
                _settle(groups, group, statistics)
        found = [
            SummaryRow(function, stage, on_error, tasks, statistics)
            for (function, stage, on_error), (tasks, statistics) in groups.items()
        ]
        return sorted(found, key=lambda row: (-1 if row.stage is None else row.stage, row.function, row.on_error))

    def total(self) -> tuple[int, Statistics]:
        """The number of tasks that have ended, and the sum of their statistics. A task counts once per call in it."""
        total, tasks = Statistics(), 0
        for row in self.rows():
            tasks += row.tasks
            total.add(row.statistics)
        return tasks, total

    def text(self) -> str:
        """The summary as text, with one paragraph per function and stage."""
        rows = self.rows()
        if not self._began:
            return f"{NOT_BEGUN}\n"
        if not rows:
            return f"no remote call has ended in {self.seconds:.1f} s\n"
        text = "\n".join("".join(f"{line}\n" for line in paragraph(row)) for row in rows)
        return text if self._budget is None else f"{text}\n{''.join(budget_lines(self._budget, self.total()[1]))}"

    def frame(self) -> DataFrame:
        """Return a DataFrame with one row per function and stage. Times are in seconds.

        `on_error` is the policy for the `failed` rows: `fail`, `null`, `column` or `dead-letter`. `task_seconds` sums
        the time of tasks. `spark_seconds` of it were spent in Spark, `waiting_seconds` in waiting for the server.
        `batch_seconds` sums the time of batches, which overlap; it is the sum of `wire_seconds`, `queue_seconds` and
        `function_seconds`. `p50_seconds` and `p99_seconds` are latencies of batches, with an error of up to 9 percent.
        """
        schema = ", ".join(f"{name} {type_}" for name, (type_, _) in COLUMNS.items())
        values = [tuple(value(row) for _, value in COLUMNS.values()) for row in self.rows()]
        return self._spark.createDataFrame(values, schema)

    def _repr_html_(self) -> str:
        """The most important columns as HTML, with bars; `frame` has all columns."""
        rows = self.rows()
        if not rows:
            return f"<p>{escape(self.text())}</p>"
        return table(HEAD, map(cells, rows), numbers=(1, 2, 3, 5, 6))

    def __repr__(self) -> str:
        if not self._began:
            return f"<{NOT_BEGUN}>"
        tasks, total = self.total()
        return f"<summary of {self.seconds:.1f} s: {total.rows:,} rows in {tasks} tasks, {total.failed:,} failed>"


def _settle(
    groups: dict[_Group, tuple[int, Statistics]], group: _Group, statistics: Statistics, tasks: int = 1
) -> None:
    before, total = groups.setdefault(group, (0, Statistics()))
    total.add(statistics)
    groups[group] = (before + tasks, total)
