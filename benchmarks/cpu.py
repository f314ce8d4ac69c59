"""CPU time of all processes of a query: Spark's JVM, its Python workers, and the server."""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import psutil
from pyspark.sql import DataFrame

from benchmarks.spark import run_query

__all__ = ["Spent", "cpu_seconds", "query_cpu_seconds", "spent"]


def query_cpu_seconds(frame: DataFrame) -> float:
    """CPU seconds of this process and all its descendants, while every row is computed and discarded."""
    return cpu_seconds(partial(run_query, frame))


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process and all its descendants, while `work` runs."""
    before = sum(each.own + each.ended for each in spent().values())
    work()
    return sum(each.own + each.ended for each in spent().values()) - before


class Spent(NamedTuple):
    """The CPU seconds of a process so far, and those of its children that ended."""

    name: str
    own: float
    ended: float


def spent() -> dict[psutil.Process, Spent]:
    """What this process and all its descendants have spent.

    The time of a process that ends becomes its parent's. So all are read again if one ended while they were read.
    """
    this = psutil.Process()
    while True:
        processes = [this, *this.children(recursive=True)]
        found = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in processes:
                times = process.cpu_times()
                ended = times.children_user + times.children_system
                found[process] = Spent(process.name(), times.user + times.system, ended)
            if [this, *this.children(recursive=True)] == processes:
                return found
