"""Timing: sides alternate in one process after a warm-up, and the median counts."""

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["alternating", "medians", "seconds", "spread"]


def seconds(work: Callable[[], object]) -> float:
    """The wall-clock time of `work`."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alternating(
    sides: Mapping[str, Callable[[], float]], repetitions: int, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Measures the sides alternately, so that a disturbance affects all of them.

    A warm-up round comes first and is not counted: first use imports modules, starts workers, opens
    channels.
    """
    found: dict[str, list[float]] = {name: [] for name in sides}
    for round_ in range(repetitions + warm_up):
        for name, measure in sides.items():
            value = measure()
            if round_ or not warm_up:
                found[name].append(value)
    return found


def medians(found: Mapping[str, list[float]]) -> dict[str, float]:
    """The median of each side."""
    return {name: statistics.median(values) for name, values in found.items()}


def spread(found: Mapping[str, list[float]]) -> float:
    """The largest distance between values of a side, as a share of its median; smaller differences mean nothing."""
    return max((max(values) - min(values)) / statistics.median(values) for values in found.values())
