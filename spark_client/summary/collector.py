"""Collecting: statistics of tasks come to the driver, by an accumulator or in files, and go to open summaries."""

import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_client.base.errors import SummaryUnavailable
from spark_client.base.statistics import Reporter, TaskReport
from spark_client.executor.report_files import FiledReports, read_report

__all__ = ["Collector", "ReportFiles", "Sink", "collecting", "context_of", "require_reports"]


class Sink(Protocol):
    """Takes reports, from any thread."""

    def take(self, report: TaskReport) -> None:
        """A task has ended."""
        ...


class Collector:
    """The driver's end. Reports without an open summary are discarded, so that memory does not grow.

    `fetch` returns the reports that are new since its last call, if they are not delivered automatically.
    """

    def __init__(self, fetch: Callable[[], Iterable[TaskReport]] | None = None) -> None:
        self._fetch = fetch
        self._lock, self._fetching = threading.Lock(), threading.Lock()
        self._sinks: tuple[Sink, ...] = ()

    def open(self, sink: Sink) -> None:
        """From now on; what ended before is not for this one."""
        self.fetch()
        with self._lock:
            self._sinks = (*self._sinks, sink)

    def close(self, sink: Sink) -> None:
        """Up to now. Safe to call twice."""
        try:
            self.fetch()
        finally:
            with self._lock:
                self._sinks = tuple(each for each in self._sinks if each is not sink)

    def fetch(self) -> None:
        """Takes reports that do not come by themselves. Raises what Spark raises when it reads them."""
        if self._fetch is not None:
            with self._fetching:
                self.take(self._fetch())

    def take(self, reports: Iterable[TaskReport]) -> None:
        """Called by Spark on a thread of its own, before it says that the job has ended."""
        sinks = self._sinks
        for report in reports if sinks else ():
            for sink in sinks:
                sink.take(report)


Reports = Collector | tuple[TaskReport, ...]


class _ReportsParam(AccumulatorParam[Reports]):
    """In a task a tuple that grows, in the driver the collector."""

    def zero(self, value: Reports) -> Reports:
        return ()

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802 - Spark's name
        assert isinstance(value2, tuple)
        if isinstance(value1, Collector):
            value1.take(value2)
            return value1
        return value1 + value2


class _Accumulated:
    """Reports into the accumulator. Travels with the plan."""

    def __init__(self, accumulator: "Accumulator[Reports]") -> None:
        self._accumulator = accumulator

    def report(self, report: TaskReport) -> None:
        self._accumulator.add((report,))


class ReportFiles:
    """Reports in the files of `FiledReports`, read by Spark itself: what runs this may see no such directory."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path
        self._known: set[str] = set()

    def fetch(self) -> list[TaskReport]:
        """Those that were not there the last time."""
        try:
            lines = self._spark.read.text(self._path).collect()
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":  # no task has ended
                return []
            raise
        found = dict(read_report(line.value) for line in lines)
        new = [report for identity, report in found.items() if identity not in self._known]
        self._known.update(found)
        return new


def collecting(spark: SparkSession, directory: str | None) -> tuple[Reporter | None, Collector]:
    """What plans of this session carry to report, and where that arrives.

    A classic session reports by an accumulator. One of Spark Connect has none: it reports by files below
    `directory`, or not at all.
    """
    context = context_of(spark)
    if context is not None:
        collector = Collector()
        return _Accumulated(context.accumulator(collector, _ReportsParam())), collector
    if directory is None:
        return None, Collector()
    path = f"{directory.rstrip('/')}/{uuid.uuid4().hex}"
    return FiledReports(path), Collector(ReportFiles(spark, path).fetch)


def require_reports(reporter: Reporter | None) -> None:
    """Raises SummaryUnavailable where tasks have no way to report."""
    if reporter is None:
        raise SummaryUnavailable(
            "Spark Connect has no accumulators for tasks to report in: give them a directory, "
            "connect(..., summary_directory=PATH), that every executor can write to and Spark can read"
        )


def context_of(spark: object) -> SparkContext | None:
    """The context of a classic session; None of Spark Connect."""
    return spark.sparkContext if isinstance(spark, SparkSession) else None
