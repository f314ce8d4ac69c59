"""Every Prometheus metric of the server. Labels come from the registry and from enums, so their number is bounded.

Latencies of rows are counted in bulk: a histogram's observe() per row would cost more than the row.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from remote_udf.v1 import message_pb2 as pb
from remote_udf.version import __version__

__all__ = ["FunctionMetrics", "ServerMetrics"]

LATENCY_BUCKETS = (
    0.00001, 0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
"""Up to half an hour: past the default deadline of three minutes, and past most that people set."""
ROW_BUCKETS = (1, 10, 100, 1_000, 10_000, 65_536, 262_144)
BYTE_BUCKETS = (1e2, 1e3, 1e4, 1e5, 1e6, 4e6, 1.6e7, 6.4e7)
FUNCTION = ("function", "version")


class BulkHistogram(Collector):
    """A Prometheus histogram that takes many observations at once; safe to use from any thread."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str], buckets: Sequence[float]) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self._bounds = np.asarray(buckets)
        self._counts: dict[tuple[str, ...], tuple[np.ndarray, list[float]]] = {}
        self._lock = threading.Lock()

    def observe(self, labels: tuple[str, ...], values: Sequence[float], counts: Sequence[int] | None = None) -> None:
        """Adds values, each as often as `counts` says."""
        if not values:
            return
        found = np.asarray(values)
        weights = None if counts is None else np.asarray(counts)
        places = np.searchsorted(self._bounds, found)
        added = np.bincount(places, weights, len(self._bounds) + 1)
        total = float(found.sum() if weights is None else (found * weights).sum())
        with self._lock:
            row, sums = self._counts.setdefault(labels, (np.zeros(len(self._bounds) + 1), [0.0]))
            row += added
            sums[0] += total

    def describe(self) -> Iterable[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        with self._lock:
            for labels, (counts, sums) in self._counts.items():
                bounds = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
                buckets = list(zip(bounds, (float(c) for c in np.cumsum(counts)), strict=True))
                family.add_metric(labels, buckets, sums[0])
        yield family


class ServerMetrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = registry = CollectorRegistry()
        self.clock = clock
        self.info = Gauge("udf_server_info", "1, with the version of the server.", ["version"], registry=registry)
        self.info.labels(__version__).set(1)
        self.ready = Gauge("udf_server_ready", "1 while the server takes new streams.", registry=registry)
        self.streams = Gauge("udf_streams_open", "Streams open now.", FUNCTION, registry=registry)
        self.streams_total = Counter(
            "udf_streams_total", "Streams that ended, by how.", [*FUNCTION, "end"], registry=registry
        )
        self.rejected = Counter(
            "udf_streams_rejected_total", "Streams refused before a function was called, by code.", ["code"],
            registry=registry,
        )  # fmt: skip
        self.rows = Counter(
            "udf_rows_total", "Rows with an outcome: ok, failed or skipped.", [*FUNCTION, "outcome"], registry=registry
        )
        self.row_errors = Counter(
            "udf_row_errors_total", "Rows that failed, by code.", [*FUNCTION, "code"], registry=registry
        )
        self.rows_in_flight = Gauge(
            "udf_rows_in_flight", "Rows received and not yet answered.", FUNCTION, registry=registry
        )
        self.retries = Counter("udf_retries_total", "Calls beyond the first of their row.", FUNCTION, registry=registry)
        self.calls_lost = Gauge(
            "udf_calls_lost", "Calls that were given up and never came back.", FUNCTION, registry=registry
        )
        self.batches = Counter("udf_batches_total", "Batches received.", FUNCTION, registry=registry)
        self.batch_rows = BulkHistogram("udf_batch_rows", "Rows per batch received.", FUNCTION, ROW_BUCKETS)
        self.batch_bytes = BulkHistogram("udf_batch_bytes", "Bytes per batch received.", FUNCTION, BYTE_BUCKETS)
        self.bytes = Counter("udf_bytes_total", "Payload bytes.", [*FUNCTION, "direction"], registry=registry)
        self.row_duration = BulkHistogram(
            "udf_row_duration_seconds",
            "Time of a row from its turn to its outcome, retries included; a vectorized call counts for each row.",
            FUNCTION, LATENCY_BUCKETS,
        )  # fmt: skip
        self.batch_duration = BulkHistogram(
            "udf_batch_duration_seconds", "Time from a batch's arrival to its last result.", FUNCTION, LATENCY_BUCKETS
        )
        self.batch_wait = BulkHistogram(
            "udf_batch_wait_seconds", "Time a batch waited for room in its stream before it was taken.",
            FUNCTION, LATENCY_BUCKETS,
        )  # fmt: skip
        self.loop_lag = Histogram(
            "udf_event_loop_lag_seconds", "How late the server's own event loop runs what is due.",
            buckets=LATENCY_BUCKETS, registry=registry,
        )  # fmt: skip
        for collector in (self.batch_rows, self.batch_bytes, self.row_duration, self.batch_duration, self.batch_wait):
            registry.register(collector)

    def function(self, name: str, version: str) -> "FunctionMetrics":
        """The metrics of one function."""
        return FunctionMetrics(self, (name, version))


class FunctionMetrics:
    """What the streams of one function report."""

    def __init__(self, server: ServerMetrics, labels: tuple[str, str]) -> None:
        self._server = server
        self._labels = labels

    def observe_rows(self, seconds: Sequence[float], counts: Sequence[int] | None = None) -> None:
        """Durations of rows, each as often as `counts` says. From any thread."""
        self._server.row_duration.observe(self._labels, seconds, counts)

    def stream_opened(self) -> None:
        self._server.streams.labels(*self._labels).inc()

    def stream_ended(self, end: str, counts: pb.StreamCounts) -> None:
        """`end` is finished, cancelled, failed or disconnected."""
        self._server.streams.labels(*self._labels).dec()
        self._server.streams_total.labels(*self._labels, end).inc()
        self._server.retries.labels(*self._labels).inc(counts.retries)

    def batch_received(self, rows: int, size: int, waited: float) -> None:
        self._server.batches.labels(*self._labels).inc()
        self._server.rows_in_flight.labels(*self._labels).inc(rows)
        self._server.batch_rows.observe(self._labels, [rows])
        self._server.batch_bytes.observe(self._labels, [size])
        self._server.batch_wait.observe(self._labels, [waited])
        self._server.bytes.labels(*self._labels, "in").inc(size)

    def batch_answered(self, seconds: float) -> None:
        self._server.batch_duration.observe(self._labels, [seconds])

    def rows_answered(self, ok: int, failed: int, skipped: int, size: int) -> None:
        labels, rows = self._labels, self._server.rows
        self._server.rows_in_flight.labels(*labels).dec(ok + failed + skipped)
        for outcome, count in (("ok", ok), ("failed", failed), ("skipped", skipped)):
            if count:
                rows.labels(*labels, outcome).inc(count)
        self._server.bytes.labels(*labels, "out").inc(size)

    def rows_dropped(self, rows: int) -> None:
        """Rows of a stream that ended before they were answered."""
        self._server.rows_in_flight.labels(*self._labels).dec(rows)

    def row_failed(self, code: str, count: int) -> None:
        self._server.row_errors.labels(*self._labels, code).inc(count)

    def calls_lost(self, count: int) -> None:
        self._server.calls_lost.labels(*self._labels).set(count)
