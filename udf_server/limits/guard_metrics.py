"""The metrics that guards report."""

from udf_server.base.metric_kinds import Series
from udf_server.base.metrics import ServerMetrics

__all__ = ["GuardMetrics"]


class GuardMetrics:
    """The metrics that the guard of one function reports. Those of events appear with the first one."""

    _refusals = Series("circuit_refusals")
    _rate_waits = Series("rate_waits")

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

    def circuit_refused(self) -> None:
        self._refusals.inc()

    def rate_waited(self) -> None:
        self._rate_waits.inc()
