"""What prometheus_client does not have: histograms of many observations at once, and series from their first use."""

import bisect
import itertools
import operator
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

__all__ = ["BulkHistogram", "Series"]

FEW = 16
"""For up to this many values, NumPy is slower than plain Python."""


class BulkHistogram(Collector):
    """A Prometheus histogram that adds many observations at once. Safe to use from any thread."""

    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], buckets: Sequence[float],
        registry: CollectorRegistry | None = None,
    ) -> None:  # fmt: skip
        self._name, self._documentation, self._labels = name, documentation, labels
        self._bounds = tuple(buckets)
        self._counts: dict[tuple[str, ...], list[float]] = {}
        """Label values to a count per bucket, followed by the sum of the observations."""
        self._lock = threading.Lock()
        if registry is not None:
            registry.register(self)

    def observe(self, labels: tuple[str, ...], values: Sequence[float], counts: Sequence[int]) -> None:
        """Add each value the number of times that `counts` gives."""
        if not values:
            return
        if len(values) <= FEW:
            added: dict[int, float] = {}
            for value, weight in zip(values, counts, strict=True):
                place = bisect.bisect_left(self._bounds, value)
                added[place] = added.get(place, 0) + weight
        else:
            places = np.searchsorted(self._bounds, values)
            added = {place: count for place, count in enumerate(np.bincount(places, counts).tolist()) if count}
        total = sum(map(operator.mul, values, counts))
        with self._lock:
            row = self._counts.get(labels)
            if row is None:
                row = self._counts[labels] = [0.0] * (len(self._bounds) + 2)
            for place, count in added.items():
                row[place] += count
            row[-1] += total

    def describe(self) -> Iterable[HistogramMetricFamily]:
        return [HistogramMetricFamily(self._name, self._documentation, labels=self._labels)]

    def collect(self) -> Iterator[HistogramMetricFamily]:
        family = HistogramMetricFamily(self._name, self._documentation, labels=self._labels)
        names = [*(f"{bound:g}" for bound in self._bounds), "+Inf"]
        with self._lock:
            for labels, row in self._counts.items():
                running = itertools.accumulate(row[:-1])
                family.add_metric(labels, list(zip(names, running, strict=True)), row[-1])
        yield family


class Series:
    """A series of a metric of functions, from its first use. Its owner has `server` and the `labels` of a function.

    Labels are looked up once: that costs more than counting.
    """

    def __init__(self, metric: str, *more: str) -> None:
        """`metric` is a name in ServerMetrics, `more` are the labels after those of the function."""
        self._metric, self._more = metric, more

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, kind: type) -> Any:
        made = getattr(owner.server, self._metric).labels(*owner.labels, *self._more)
        vars(owner)[self._name] = made  # which is found before this object from now on
        return made
