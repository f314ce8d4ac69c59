"""Collecting: figures of tasks come to the driver in an accumulator of Spark's and go to open summaries."""

import threading
from collections.abc import Iterable
from typing import Any, Protocol

from pyspark import Accumulator, SparkContext
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import SparkSession

from spark_client.errors import SummaryUnavailable
from spark_client.executor.figures import Reporter, TaskReport

__all__ = ["Collector", "Sink", "reporter_for", "require_context"]


class Sink(Protocol):
    """Takes reports, from any thread."""

    def take(self, report: TaskReport) -> None:
        """A task has ended."""
        ...


class Collector:
    """The driver's end. Reports that no summary is open for are let go, so that nothing grows."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sinks: tuple[Sink, ...] = ()

    def open(self, sink: Sink) -> None:
        with self._lock:
            self._sinks = (*self._sinks, sink)

    def close(self, sink: Sink) -> None:
        """Safe to call twice."""
        with self._lock:
            self._sinks = tuple(each for each in self._sinks if each is not sink)

    def take(self, reports: Iterable[TaskReport]) -> None:
        """Called by Spark on a thread of its own, before it says that the job has ended."""
        sinks = self._sinks
        for report in reports if sinks else ():
            for sink in sinks:
                sink.take(report)


Reports = Collector | tuple[TaskReport, ...]


class _ReportsParam(AccumulatorParam[Reports]):  # type: ignore[misc]
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

    def __init__(self, accumulator: "Accumulator[Any]") -> None:
        self._accumulator = accumulator

    def report(self, report: TaskReport) -> None:
        self._accumulator.add((report,))


def reporter_for(spark: Any, collector: Collector) -> Reporter | None:
    """What plans of this session carry to report to the collector; None on Spark Connect, without accumulators."""
    context = _context_of(spark)
    return _Accumulated(context.accumulator(collector, _ReportsParam())) if context is not None else None


def require_context(spark: Any) -> SparkContext:
    """Raises SummaryUnavailable for a session of Spark Connect."""
    context = _context_of(spark)
    if context is None:
        raise SummaryUnavailable(
            "a summary needs a classic Spark session: Spark Connect has no accumulators, in which tasks report; "
            "the server's metrics have the same figures, see docs/observing-jobs.md"
        )
    return context


def _context_of(spark: Any) -> SparkContext | None:
    return spark.sparkContext if isinstance(spark, SparkSession) else None
