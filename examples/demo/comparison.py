"""The same lookups three ways, timed: blocking, remote in order, remote as rows complete."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row

from examples.demo.baseline import blocking_look_up
from examples.demo.server_metrics import FunctionStatistics, Scrape
from examples.demo.services import LookupProcess
from spark_client import RemoteSession

__all__ = ["IN_FLIGHT", "TASKS", "Timing", "compare"]

IN_FLIGHT = 50
"""Lookups in flight of each task: the option buffer-capacity."""
TASKS = 2


@dataclass(frozen=True)
class Timing:
    """One way: its rows and seconds, the latency of a row, and the requests that the service counted."""

    way: str
    rows: int
    seconds: float
    row_milliseconds: float
    most_at_once: int


def compare(remote: RemoteSession, frame: DataFrame, service: LookupProcess) -> tuple[list[Timing], bool]:
    """Returns the times of the three ways for the same rows, and whether their answers are equal."""
    look_up = remote.function("http_get_json", buffer_capacity=IN_FLIGHT)
    blocking = blocking_look_up(service.base_url)
    paths = frame.select("path")
    # This starts Spark's Python workers and opens connections, which should not count for any of the ways.
    for warm in (paths.limit(2).select(blocking("path")), paths.limit(2).select(look_up("path"))):
        warm.collect()
    ways: list[tuple[str, Callable[[], list[Row]]]] = [
        ("pandas_udf, blocking", paths.select("path", blocking("path").alias("answer")).collect),
        ("http_get_json, ordered", paths.select("path", look_up("path").alias("answer")).collect),
        (
            "http_get_json, unordered",
            remote.with_columns(paths, {"answer": look_up("path")}, output_mode="unordered").collect,
        ),
    ]
    timings, answers = [], []
    for way, run in ways:
        service.statistics()
        before = _statistics(remote)
        began = time.perf_counter()
        rows = run()
        seconds = time.perf_counter() - began
        after = _statistics(remote)
        # Without a server every task always has one row in flight.
        row_seconds = after.row_seconds - before.row_seconds or TASKS * seconds
        row_milliseconds = 1e3 * row_seconds / len(rows)
        timings.append(Timing(way, len(rows), seconds, row_milliseconds, service.statistics().most_at_once))
        answers.append(sorted((row.path, row.answer or "") for row in rows))
    return timings, all(found == answers[0] for found in answers)


def _statistics(remote: RemoteSession) -> FunctionStatistics:
    assert remote.embedded is not None
    return Scrape(remote.embedded.metrics_url).statistics("http_get_json")
