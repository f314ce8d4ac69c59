"""The metrics of functions that are called with bundles."""

from udf_server.base.metrics import ServerMetrics

__all__ = ["BundleMetrics", "ProcessMetrics"]


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
