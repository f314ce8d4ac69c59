"""The metrics that only some functions report: those with a guard, and those that are called with bundles."""

from udf_server.base.metric_kinds import Series
from udf_server.base.metrics import ServerMetrics

__all__ = ["BundleMetrics", "GuardMetrics", "ProcessMetrics"]


class BundleMetrics:
    """The metrics that the calls of one aggregate function report, once per bundle."""

    def __init__(self, server: ServerMetrics, name: str, version: str) -> None:
        labels = name, version
        self._rows = server.bundle_rows.labels(*labels)
        self._segments = server.bundle_segments.labels(*labels)
        self._accumulated = server.applied_rows.labels(*labels, "accumulate")
        self._retracted = server.applied_rows.labels(*labels, "retract")
        self._merged = server.merged_accumulators.labels(*labels)

    def applied(self, segments: int, rows: int, retracted: int, merged: int) -> None:
        """Count a call that has returned its results. Safe to call from any thread."""
        self._segments.observe(segments)
        self._rows.observe(rows)
        self._accumulated.inc(rows - retracted)
        self._retracted.inc(retracted)
        self._merged.inc(merged)


class ProcessMetrics:
    """The metrics that the calls of one process table function report, once per bundle."""

    def __init__(self, server: ServerMetrics, name: str, version: str) -> None:
        labels = name, version
        self._rows = server.bundle_rows.labels(*labels)
        self._segments = server.bundle_segments.labels(*labels)
        self._emitted = server.emitted_rows.labels(*labels)
        self._fired = server.timers_fired.labels(*labels)
        self._state_in = server.state_bytes.labels(*labels, "in")
        self._state_out = server.state_bytes.labels(*labels, "out")

    def processed(self, segments: int, rows: int, emitted: int, fired: int, state_in: int, state_out: int) -> None:
        """Count a bundle that has returned its results. States are in bytes. Safe to call from any thread."""
        self._segments.observe(segments)
        self._rows.observe(rows)
        self._emitted.inc(emitted)
        self._fired.inc(fired)
        self._state_in.inc(state_in)
        self._state_out.inc(state_out)


class GuardMetrics:
    """The metrics that the guard of one function reports. Those of events appear with the first one."""

    refusals = Series("circuit_refusals")
    rate_waits = Series("rate_waits")

    def __init__(self, server: ServerMetrics, name: str, version: str) -> None:
        self.server, self.labels = server, (name, version)
        self._limit = server.concurrency_limit.labels(name, version)
        self._open = server.circuit_open.labels(name, version)
        self._shown: tuple[float, bool] | None = None

    def show(self, limit: float, *, closed: bool) -> None:
        """Show the number of calls that may run at once, and whether the breaker is closed."""
        if (limit, closed) != self._shown:  # setting a metric costs as much as the rest of a guarded call
            self._shown = limit, closed
            self._limit.set(limit)
            self._open.set(0.0 if closed else 1.0)
