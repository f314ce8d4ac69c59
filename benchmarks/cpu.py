"""CPU time of all processes of a query: Spark's JVM, its Python workers, and the server."""

from collections.abc import Callable
from functools import partial

import psutil
from pyspark.sql import DataFrame

from benchmarks.spark import run_query

__all__ = ["cpu_seconds", "query_cpu_seconds"]


def query_cpu_seconds(frame: DataFrame) -> float:
    """CPU seconds of this process and all its descendants, while every row is computed and discarded."""
    return cpu_seconds(partial(run_query, frame))


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process and all its descendants, while `work` runs."""
    before = _spent()
    work()
    after = _spent()
    return sum(seconds - before.get(process, 0.0) for process, seconds in after.items())


def _spent() -> dict[psutil.Process, float]:
    """The CPU seconds of each process so far; those of its children that ended are its own."""
    spent = {}
    this = psutil.Process()
    for process in [this, *this.children(recursive=True)]:
        try:
            spent[process] = sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue  # it ended, and its parent has its time
    return spent
