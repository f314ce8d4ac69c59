"""Metrics of plugins. They are counted where functions run, and `/metrics` shows them beside the server's own."""

import re
import threading
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import prometheus_client
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector

from udf_server.base.call_scope import running_function
from udf_server.base.errors import DeclarationError

__all__ = ["PLUGIN_METRICS", "Counter", "Gauge", "Histogram", "counter", "gauge", "histogram"]

MOST_SERIES = 500
"""Number of combinations of function and label values of one metric. Further ones are counted together."""
MOST_CHARACTERS = 200
"""Longest value of a label; the rest is cut."""
REST = "other"
"""The value of all labels of the series that counts what is beyond MOST_SERIES."""
OURS = ("function", "version", "process", "le")
"""Labels that the server, and Prometheus' histograms, add."""
_NAME, _LABEL = re.compile(r"[a-z][a-z0-9_]*"), re.compile(r"[a-zA-Z][a-zA-Z0-9_]*")
_TAKEN = ("udf_", "python_", "process_")
"""Prefixes of names of the server and of Prometheus' client."""


MetricT = TypeVar("MetricT", bound=MetricWrapperBase)


class _PluginMetric(Generic[MetricT]):
    """A metric of a plugin. Its labels are the author's, and `function` and `version` of the function that runs."""

    _make: ClassVar[Any]

    def __init__(self, name: str, doc: str, labels: Sequence[str], **settings: Any) -> None:
        self.declared = (type(self), name, doc, tuple(labels), settings)
        self._name, self._labels = name, tuple(labels)
        self.metric: MetricT = self._make(name, doc, ("function", "version", *labels), registry=None, **settings)
        self._series: dict[tuple[str, ...], MetricT] = {}
        self._lock = threading.Lock()

    def _of(self, values: dict[str, object]) -> MetricT:
        """The series of the function that runs, and of these values of labels. Raises ValueError for other labels."""
        if values.keys() != set(self._labels):
            raise ValueError(
                f"metric {self._name!r}: found the labels {sorted(values) or 'none'}; it is declared with "
                f"{list(self._labels) or 'none'}"
            )
        key = (*running_function(), *(str(values[label]) for label in self._labels))
        found = self._series.get(key)
        return found if found is not None else self._new(key)

    def _new(self, key: tuple[str, ...]) -> MetricT:
        with self._lock:
            # One value that cannot be written would be an error of every scrape.
            key = tuple(text.encode(errors="replace").decode()[:MOST_CHARACTERS] for text in key)
            if key not in self._series and len(self._series) >= MOST_SERIES:
                key = (*key[:2], *(REST for _ in self._labels))
            if key not in self._series:
                self._series[key] = self.metric.labels(*key)
            return self._series[key]


class Counter(_PluginMetric[prometheus_client.Counter]):
    """A count that only grows. Make it with `udf.counter`."""

    _make = prometheus_client.Counter

    def inc(self, amount: float = 1, **labels: object) -> None:
        """Add an amount of at least 0, with a value for each label. Safe to call from any thread."""
        self._of(labels).inc(amount)


class Gauge(_PluginMetric[prometheus_client.Gauge]):
    """A number that grows and shrinks. Make it with `udf.gauge`."""

    _make = prometheus_client.Gauge

    def set(self, value: float, **labels: object) -> None:
        """Set the number, with a value for each label. Safe to call from any thread."""
        self._of(labels).set(value)

    def inc(self, amount: float = 1, **labels: object) -> None:
        """Add an amount. Safe to call from any thread."""
        self._of(labels).inc(amount)

    def dec(self, amount: float = 1, **labels: object) -> None:
        """Subtract an amount. Safe to call from any thread."""
        self._of(labels).dec(amount)


class Histogram(_PluginMetric[prometheus_client.Histogram]):
    """The distribution of observed values. Make it with `udf.histogram`."""

    _make = prometheus_client.Histogram

    def observe(self, value: float, **labels: object) -> None:
        """Add a value, with a value for each label. Safe to call from any thread."""
        self._of(labels).observe(value)


DeclaredT = TypeVar("DeclaredT", bound=_PluginMetric[Any])


class PluginMetrics(Collector):
    """All metrics of the plugins of this process, by name."""

    def __init__(self) -> None:
        self._metrics: dict[str, _PluginMetric[MetricWrapperBase]] = {}
        self._registry = CollectorRegistry()
        self._lock = threading.Lock()

    def declare(self, metric: _PluginMetric[MetricWrapperBase]) -> Any:
        """The metric; the one that exists if it is declared again, as when a module is imported a second time.

        Raises DeclarationError if the name is used by a metric that is declared otherwise.
        """
        _, name, *_ = metric.declared
        with self._lock:
            found = self._metrics.get(name)
            if found is None:
                try:
                    self._registry.register(metric.metric)
                except ValueError as error:  # another metric has a sample of this name
                    raise DeclarationError(f"metric {name!r}: {error}; give it another name") from None
                found = self._metrics[name] = metric
        if found.declared != metric.declared:
            raise DeclarationError(
                f"metric {name!r} is declared twice, as {_told(found)} and as {_told(metric)}; give one another name"
            )
        return found

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._registry.collect()


PLUGIN_METRICS = PluginMetrics()
"""The metrics of all plugins of this process. Modules declare them when they are imported, so there is one."""


def counter(name: str, doc: str, labels: Sequence[str] = ()) -> Counter:
    """Declare a counter at the top of a plugin's module.

    Args:
        name: The name in Prometheus, in lower case and without `_total`, which is added. Begin it with the plugin's
            name: names are shared by all plugins of a server.
        doc: What it counts, in a sentence. Prometheus and Grafana show it.
        labels: Names of further labels. Each combination of values is a time series that Prometheus keeps: use what
            has few values, such as a status, and never a key of a row. Beyond 500 combinations, values are counted
            together under `other`.

    Returns:
        The counter. It is counted with the labels `function` and `version` of the function that calls `inc`; both are
        empty in a thread that the author has started.

    Raises:
        DeclarationError: The name or a label is not valid, or is used already.

    Example:
        >>> requests = udf.counter("geocoder_requests", "Requests to the geocoder.", ["status"])
        >>> requests.inc(status=200)
    """
    return _declared(Counter, name.removesuffix("_total"), doc, labels)


def gauge(name: str, doc: str, labels: Sequence[str] = ()) -> Gauge:
    """Declare a gauge at the top of a plugin's module: a number that grows and shrinks, such as open connections.

    Arguments, result and errors are those of `counter`.

    Example:
        >>> connections = udf.gauge("geocoder_connections", "Open connections.")
        >>> connections.inc()
    """
    return _declared(Gauge, name, doc, labels)


def histogram(name: str, doc: str, labels: Sequence[str] = (), *, buckets: Sequence[float] | None = None) -> Histogram:
    """Declare a histogram at the top of a plugin's module, such as of response sizes or of seconds.

    Args:
        name: As in `counter`. End it with the unit, such as `_seconds` or `_bytes`.
        doc: As in `counter`.
        labels: As in `counter`.
        buckets: Upper bounds, ascending; by default those of Prometheus, which suit seconds.

    Returns:
        The histogram.

    Raises:
        DeclarationError: As in `counter`, or the bounds are not ascending.

    Example:
        >>> sizes = udf.histogram("geocoder_answer_bytes", "Size of answers.", buckets=[100, 1_000, 10_000])
        >>> sizes.observe(412)
    """
    settings = {} if buckets is None else {"buckets": tuple(float(bound) for bound in buckets)}
    return _declared(Histogram, name, doc, labels, **settings)


def _declared(make: type[DeclaredT], name: str, doc: str, labels: Sequence[str], **settings: Any) -> DeclaredT:
    if not _NAME.fullmatch(name) or name.startswith(_TAKEN):
        raise DeclarationError(
            f"metric {name!r}: a name has lower-case letters, digits and underscores, and does not begin with "
            f"{', '.join(_TAKEN)}"
        )
    wrong = [label for label in labels if label in OURS or not _LABEL.fullmatch(label)]
    if isinstance(labels, str) or wrong or len(set(labels)) < len(labels):
        raise DeclarationError(
            f"metric {name!r}: labels={labels!r}: expected a list of different names with letters, digits "
            f"and underscores, other than {', '.join(OURS)}"
        )
    try:
        metric = make(name, doc, labels, **settings)
    except ValueError as error:
        raise DeclarationError(f"metric {name!r}: {error}") from error
    return PLUGIN_METRICS.declare(metric)


def _told(metric: _PluginMetric[MetricWrapperBase]) -> str:
    kind, _, doc, labels, settings = metric.declared
    return f"{kind.__name__.lower()}({doc!r}, {list(labels)}{''.join(f', {k}={v}' for k, v in settings.items())})"
