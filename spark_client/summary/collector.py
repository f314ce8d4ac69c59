"""Collecting: the driver receives the statistics of tasks by an accumulator or in files, for open summaries."""

import dataclasses
import json
import logging
import posixpath
import threading
import uuid
from collections.abc import Callable, Iterable
from typing import Protocol

import pyarrow as pa
from pyarrow import fs
from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AccumulatorParam
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from remote_udf.amounts import add_amounts
from spark_client.base.errors import SummaryUnavailable
from spark_client.base.statistics import CallCost, Reporter, Statistics, TaskReport
from spark_client.executor.files import file_system

__all__ = [
    "Collector", "FiledReports", "ReportFiles", "ReportSink", "collecting", "context_of", "read_report",
    "require_reports",
]  # fmt: skip

log = logging.getLogger(__name__)


class ReportSink(Protocol):
    """Receives reports, from any thread."""

    def take(self, report: TaskReport) -> None:
        """Receive the report of a task that has ended."""
        ...


class Collector:
    """The part on the driver. If no summary is open, only the sums of `cost_of` are kept, so that memory does not grow.

    `fetch` returns the reports that are new since its last call. It is None if reports are delivered automatically.
    """

    def __init__(self, fetch: Callable[[], Iterable[TaskReport]] | None = None) -> None:
        self._fetch = fetch
        self._lock, self._fetching = threading.Lock(), threading.Lock()
        self._sinks: tuple[ReportSink, ...] = ()
        self._costs: dict[str, CallCost] = {}

    def cost_of(self, function: str) -> CallCost:
        """What all calls of a function, `name@version`, have cost so far. Raises as `fetch`."""
        self.fetch()
        with self._lock:
            return self._costs.get(function, CallCost())

    def open(self, sink: ReportSink) -> None:
        """Pass new reports to the sink. It does not get the reports of tasks that ended before."""
        self.fetch()
        with self._lock:
            self._sinks = (*self._sinks, sink)

    def close(self, sink: ReportSink) -> None:
        """Stop passing reports to the sink, after those that exist now. Safe to call twice."""
        try:
            self.fetch()
        finally:
            with self._lock:
                self._sinks = tuple(each for each in self._sinks if each is not sink)

    def fetch(self) -> None:
        """Read reports that are not delivered automatically. Raises Spark's error if it cannot read them."""
        if self._fetch is not None:
            with self._fetching:
                self.take(self._fetch())

    def take(self, reports: Iterable[TaskReport]) -> None:
        """Pass reports to the sinks. Spark calls this on its own thread before it reports that the job has ended."""
        sinks = self._sinks
        for report in reports:
            self._add_cost(report)
            for sink in sinks:
                sink.take(report)

    def _add_cost(self, report: TaskReport) -> None:
        """Count the calls of a task. Each attempt of a task counts, because each has its cost."""
        found = report.statistics
        rows = found.ok + found.failed - found.calls_saved - found.uncalled
        if rows <= 0:
            return
        with self._lock:
            known = self._costs.get(report.function, CallCost())
            spent = dict(known.spent)
            add_amounts(spent, found.spent)
            self._costs[report.function] = CallCost(known.rows + rows, known.seconds + found.waiting_seconds, spent)


Reports = Collector | tuple[TaskReport, ...]


class _ReportsParam(AccumulatorParam[Reports]):
    """The accumulator's value: a growing tuple in a task, the collector on the driver."""

    def zero(self, value: Reports) -> Reports:
        return ()

    def addInPlace(self, value1: Reports, value2: Reports) -> Reports:  # noqa: N802 - Spark's name
        assert isinstance(value2, tuple)
        if isinstance(value1, Collector):
            value1.take(value2)
            return value1
        return value1 + value2


class _Accumulated:
    """Adds reports to the accumulator. Plans contain it."""

    def __init__(self, accumulator: "Accumulator[Reports]") -> None:
        self._accumulator = accumulator

    def report(self, report: TaskReport) -> None:
        self._accumulator.add((report,))


@dataclasses.dataclass(frozen=True)
class FiledReports:
    """Writes a small file of JSON per report into the directory `path`. Travels with the plan."""

    path: str

    def report(self, report: TaskReport) -> None:
        """The file is there in full or not at all. Failing to write is logged: it must not cost the task."""
        identity = uuid.uuid4().hex
        text = json.dumps({"id": identity, **dataclasses.asdict(report)})
        try:
            system, base = file_system(self.path)
            system.create_dir(base, recursive=True)
            self._write(system, base, identity, text.encode())
        except (OSError, pa.ArrowException) as error:
            log.warning("the statistics of a task are lost, because %s cannot be written: %s", self.path, error)

    @staticmethod
    def _write(system: fs.FileSystem, base: str, identity: str, content: bytes) -> None:
        # Spark ignores files whose names start with an underscore.
        temporary = posixpath.join(base, f"_{identity}")
        with system.open_output_stream(temporary) as sink:
            sink.write(content)
        system.move(temporary, posixpath.join(base, f"{identity}.json"))


def read_report(text: str) -> tuple[str, TaskReport]:
    """Read a report that `FiledReports` has written. Returns its unique identity and the report."""
    values = json.loads(text)
    identity, statistics = values.pop("id"), values.pop("statistics")
    latencies = {int(bucket): count for bucket, count in statistics.pop("latencies").items()}
    return identity, TaskReport(**values, statistics=Statistics(**statistics, latencies=latencies))


class ReportFiles:
    """Reads the files of `FiledReports` with Spark, because this machine may have no access to their directory."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path
        self._known: set[str] = set()

    def fetch(self) -> list[TaskReport]:
        """The reports that are new since the last call."""
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
    """The reporter for the plans of this session, and the collector that gets its reports.

    A classic session reports by an accumulator. Spark Connect has no accumulators: its tasks report by files below
    `directory`. Without a directory they do not report, and the reporter is None.
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
    """Raises SummaryUnavailable if tasks cannot report."""
    if reporter is None:
        raise SummaryUnavailable(
            "Spark Connect has no accumulators for tasks to report in: give them a directory, "
            "connect(..., summary_directory=PATH), that every executor can write to and Spark can read"
        )


def context_of(spark: object) -> SparkContext | None:
    """The context of a classic session; None for Spark Connect."""
    return spark.sparkContext if isinstance(spark, SparkSession) else None
