"""JobSummary: statistics of the remote calls of jobs as text, as a DataFrame and in notebooks."""

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

from remote_udf.option_values import percent
from spark_client.base.budget import Budget
from spark_client.base.notebooks import bar, table
from spark_client.base.statistics import Statistics, TaskReport
from spark_client.summary.collector import Collector
from spark_client.summary.live_rows import LiveRows
from spark_client.summary.progress import PROGRESS_SECONDS, Progress

__all__ = ["JobSummary", "SummaryRow"]

TASKS_KEPT = 20_000
"""Number of latest tasks whose attempts are distinguished. Earlier tasks are only counted in sums."""

_COLUMNS: dict[str, tuple[str, Callable[["SummaryRow"], object]]] = {
    "function": ("string", lambda row: row.function),
    "stage": ("int", lambda row: row.stage),
    "tasks": ("bigint", lambda row: row.tasks),
    "rows": ("bigint", lambda row: row.statistics.rows),
    "ok": ("bigint", lambda row: row.statistics.ok),
    "failed": ("bigint", lambda row: row.statistics.failed),
    "on_error": ("string", lambda row: row.on_error),
    "skipped": ("bigint", lambda row: row.statistics.skipped),
    "calls": ("bigint", lambda row: row.statistics.calls),
    "retries": ("bigint", lambda row: row.statistics.retries),
    "cache_hits": ("bigint", lambda row: row.statistics.cache_hits),
    "cache_misses": ("bigint", lambda row: row.statistics.cache_misses),
    "cache_shared": ("bigint", lambda row: row.statistics.cache_shared),
    "calls_saved": ("bigint", lambda row: row.statistics.calls_saved),
    "spent": ("map<string, double>", lambda row: row.statistics.spent),
    "batches": ("bigint", lambda row: row.statistics.batches),
    "replays": ("bigint", lambda row: row.statistics.replays),
    "reconnects": ("bigint", lambda row: row.statistics.reconnects),
    "hedges": ("bigint", lambda row: row.statistics.hedges),
    "hedges_won": ("bigint", lambda row: row.statistics.hedges_won),
    "bytes_out": ("bigint", lambda row: row.statistics.bytes_out),
    "bytes_in": ("bigint", lambda row: row.statistics.bytes_in),
    "task_seconds": ("double", lambda row: row.statistics.task_seconds),
    "spark_seconds": ("double", lambda row: row.statistics.spark_seconds),
    "waiting_seconds": ("double", lambda row: row.statistics.waiting_seconds),
    "batch_seconds": ("double", lambda row: row.statistics.batch_seconds),
    "wire_seconds": ("double", lambda row: row.statistics.wire_seconds),
    "queue_seconds": ("double", lambda row: row.statistics.queue_seconds),
    "function_seconds": ("double", lambda row: row.statistics.function_seconds),
    "p50_seconds": ("double", lambda row: row.statistics.quantile(0.5)),
    "p99_seconds": ("double", lambda row: row.statistics.quantile(0.99)),
}
"""The columns of `JobSummary.frame`: the type and the value of each."""


@dataclass(frozen=True)
class SummaryRow:
    """The statistics of a function in a stage. `stage` is None for the sum over all micro-batches of a stream."""

    function: str
    stage: int | None
    on_error: str
    tasks: int
    statistics: Statistics


_Group = tuple[str, int | None, str]
_Task = tuple[str, str, str, int, int, int]


class JobSummary:
    """Counts calls while its `with` block runs. You may read it during the block and after it.

    Tasks report when they end, so it does not count tasks that failed or that Spark ended early, as for LIMIT.
    If a task ran several times, only its last attempt counts.
    """

    def __init__(
        self, spark: SparkSession, context: SparkContext | None, collector: Collector, progress: bool | float = False,
        clock: Callable[[], float] = time.monotonic, live: LiveRows | None = None,
        budget: Budget | None = None,
    ) -> None:  # fmt: skip
        """`budget` is that of the session.

        `live` counts rows of tasks that still run.

        `progress` is False, True, or the seconds between two lines. Without `context` the lines show no stages.
        """
        self._spark, self._collector, self._clock = spark, collector, clock
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
        self._began, self._ended = self._clock(), 0.0
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
        self._ended = self._clock()
        # An error while reports are read must not replace the error that the block raised.
        with contextlib.suppress(*[Exception] if kind else []), contextlib.ExitStack() as ends:
            if self._progress is not None:
                ends.callback(self._progress.stop)
            self._collector.close(self)

    @property
    def seconds(self) -> float:
        """The seconds for which the block has run."""
        return (self._ended or self._clock()) - self._began if self._began else 0.0

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
        if not rows:
            return f"no remote call has ended in {self.seconds:.1f} s\n"
        text = "\n".join("".join(f"{line}\n" for line in _paragraph(row)) for row in rows)
        return text if self._budget is None else f"{text}\n{''.join(_of_budget(self._budget, self.total()[1]))}"

    def frame(self) -> DataFrame:
        """Return a DataFrame with one row per function and stage. Times are in seconds.

        `on_error` is the policy for the `failed` rows: `fail`, `null`, `column` or `dead-letter`. `task_seconds` sums
        the time of tasks. `spark_seconds` of it were spent in Spark, `waiting_seconds` in waiting for the server.
        `batch_seconds` sums the time of batches, which overlap; it is the sum of `wire_seconds`, `queue_seconds` and
        `function_seconds`. `p50_seconds` and `p99_seconds` are latencies of batches, with an error of up to 9 percent.
        """
        schema = ", ".join(f"{name} {type_}" for name, (type_, _) in _COLUMNS.items())
        values = [tuple(value(row) for _, value in _COLUMNS.values()) for row in self.rows()]
        return self._spark.createDataFrame(values, schema)

    def _repr_html_(self) -> str:
        """The most important columns as HTML, with bars; `frame` has all columns."""
        rows = self.rows()
        if not rows:
            return f"<p>{escape(self.text())}</p>"
        return table(_HEAD, map(_cells, rows), numbers=(1, 2, 3, 5, 6))

    def __repr__(self) -> str:
        tasks, total = self.total()
        return f"<summary of {self.seconds:.1f} s: {total.rows:,} rows in {tasks} tasks, {total.failed:,} failed>"


def _settle(
    groups: dict[_Group, tuple[int, Statistics]], group: _Group, statistics: Statistics, tasks: int = 1
) -> None:
    before, total = groups.setdefault(group, (0, Statistics()))
    total.add(statistics)
    groups[group] = (before + tasks, total)


def _paragraph(row: SummaryRow) -> Iterator[str]:
    statistics = row.statistics
    where = "stream" if row.stage is None else f"stage {row.stage}"
    yield (
        f"{row.function}, {where}: {statistics.rows:,} rows: {statistics.ok:,} ok, {statistics.failed:,} failed "
        f"({row.on_error}), {statistics.skipped:,} skipped"
    )
    yield (
        f"  {statistics.calls:,} calls, {statistics.retries:,} of them retries; {statistics.batches:,} batches, "
        f"{statistics.replays} replays, {statistics.reconnects} reconnects; "
        f"{_bytes(statistics.bytes_out)} out, {_bytes(statistics.bytes_in)} in"
    )
    if statistics.hedges:
        yield (
            f"  {statistics.hedges:,} slow batches were sent to another server too, {statistics.hedges_won:,} of them "
            "were answered there first"
        )
    if statistics.calls_saved or statistics.cache_misses:
        yield (
            f"  cache: {statistics.cache_hits:,} hits, {statistics.cache_misses:,} misses, {statistics.cache_shared:,} "
            f"shared; {statistics.calls_saved:,} calls saved"
        )
    if statistics.spent:
        yield f"  spent: {', '.join(f'{amount:,.6g} {unit}' for unit, amount in sorted(statistics.spent.items()))}"
    yield (
        f"  {row.tasks:,} tasks of {statistics.task_seconds:.2f} s in all: {statistics.spark_seconds:.2f} s in Spark, "
        f"{statistics.waiting_seconds:.2f} s waiting for the server"
    )
    half, most = statistics.quantile(0.5), statistics.quantile(0.99)
    if half is None or most is None:
        return
    yield (
        f"  a batch took {_seconds(half)} (p50), {_seconds(most)} (p99): "
        f"{_share(statistics.function_seconds, statistics)} function, "
        f"{_share(statistics.queue_seconds, statistics)} queue, {_share(statistics.wire_seconds, statistics)} wire"
    )


def _of_budget(budget: Budget, total: Statistics) -> Iterator[str]:
    """Lines that compare a budget with what the tasks have spent that the summary knows."""
    spent = {**total.spent, "calls": float(total.calls), "errors": float(total.failed)}
    shown = [f"{spent.get(unit, 0.0):,.6g} of {amount:,.6g} {unit}" for unit, amount in budget.amounts.items()]
    if budget.error_share is not None:
        share = 100 * total.failed / total.rows if total.rows else 0.0
        shown.append(f"{share:.3g} of {percent(budget.error_share)} errors")
    yield f"budget of the session: these tasks have spent {', '.join(shown)}\n"
    for unit in [unit for unit in budget.amounts if unit not in spent]:
        known = ", ".join(sorted(total.spent)) or "nothing"
        yield (
            f"  warning: no call has reported {unit!r} (reported: {known}), so the budget does not bound it; a "
            f"function reports it with context.spend({unit}=...)\n"
        )


_HEAD = (
    "function", "stage", "tasks", "rows", "outcomes", "retries", "p50, p99", "time of tasks", "time of batches"
)  # fmt: skip
_GREEN, _RED, _GREY, _BLUE, _ORANGE = "#2e9e5b", "#e0443a", "#8c8c8c", "#4285f4", "#e8830c"
"""Colours that are visible on light and on dark backgrounds."""


def _cells(row: SummaryRow) -> list[str]:
    statistics, half, most = row.statistics, row.statistics.quantile(0.5), row.statistics.quantile(0.99)
    outcomes = {
        "ok": (statistics.ok, _GREEN),
        f"failed ({row.on_error})": (statistics.failed, _RED),
        "skipped": (statistics.skipped, _GREY),
    }
    tasks = {"Spark": (statistics.spark_seconds, _BLUE), "waiting": (statistics.waiting_seconds, _ORANGE)}
    batches = {
        "function": (statistics.function_seconds, _GREEN),
        "queue": (statistics.queue_seconds, _ORANGE),
        "wire": (statistics.wire_seconds, _BLUE),
    }
    return [
        escape(row.function),
        "stream" if row.stage is None else str(row.stage),
        f"{row.tasks:,}",
        f"{statistics.rows:,}",
        bar(outcomes),
        f"{statistics.retries:,}",
        "" if half is None or most is None else f"{_seconds(half)}, {_seconds(most)}",
        f"{_seconds(statistics.task_seconds)}{bar(tasks)}",
        f"{_seconds(statistics.batch_seconds)}{bar(batches)}",
    ]


def _share(seconds: float, statistics: Statistics) -> str:
    return f"{100 * seconds / statistics.batch_seconds:.0f}%" if statistics.batch_seconds else "0%"


def _seconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1 << 30), ("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
