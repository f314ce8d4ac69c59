"""The few server metrics that explain the demo's times, scraped as Prometheus would scrape them."""

import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

__all__ = ["FunctionStatistics", "Scrape"]


@dataclass(frozen=True)
class FunctionStatistics:
    """Statistics of one function since the server started."""

    rows_ok: int
    rows_failed: int
    retries: int
    batches: int
    row_seconds: float
    """Sum over all rows."""
    buckets: tuple[tuple[float, float], ...]
    """Upper bound in seconds, and rows that took no longer."""

    @property
    def mean_milliseconds(self) -> float | None:
        rows = self.rows_ok + self.rows_failed
        return 1e3 * self.row_seconds / rows if rows else None

    @property
    def slowest_milliseconds(self) -> float | None:
        """An upper bound for 99 of 100 rows."""
        rows = self.buckets[-1][1] if self.buckets else 0
        return next((1e3 * bound for bound, count in self.buckets if rows and count >= 0.99 * rows), None)


class Scrape:
    """The server's metrics at one moment."""

    def __init__(self, metrics_url: str) -> None:
        with urllib.request.urlopen(f"{metrics_url}/metrics", timeout=10) as response:
            text = response.read().decode()
        self._samples: dict[tuple[str, str], list[tuple[dict[str, str], float]]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                function = sample.labels.get("function", "")
                self._samples.setdefault((sample.name, function), []).append((sample.labels, sample.value))

    def functions(self) -> list[str]:
        """The names of the functions that were called."""
        known = {function for name, function in self._samples if name == "udf_rows_total"}
        return sorted(function for function in known if self._sum("udf_rows_total", function))

    def statistics(self, function: str) -> FunctionStatistics:
        buckets = sorted(
            (float(labels["le"]), value)
            for labels, value in self._samples.get(("udf_row_duration_seconds_bucket", function), ())
        )
        return FunctionStatistics(
            rows_ok=int(self._sum("udf_rows_total", function, outcome="ok")),
            rows_failed=int(self._sum("udf_rows_total", function, outcome="failed")),
            retries=int(self._sum("udf_retries_total", function)),
            batches=int(self._sum("udf_batches_total", function)),
            row_seconds=self._sum("udf_row_duration_seconds_sum", function),
            buckets=tuple(buckets),
        )

    def _sum(self, name: str, function: str, **labels: str) -> float:
        return sum(value for found, value in self._samples.get((name, function), ()) if labels.items() <= found.items())
