"""CPU time of all processes of a query: Spark's JVM, its Python workers, and the server.

PySpark's daemon ignores that its workers end, so the time of such a worker becomes nobody's. Therefore the times of all
processes are read while the work runs. What a process uses between the last reading and its end is not counted.

`python -m benchmarks.cpu COMMAND` runs a command and prints its time; `make test` is run so.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import psutil
from pyspark.sql import DataFrame

from benchmarks.spark import run_query

__all__ = ["Used", "cpu_by_process", "cpu_seconds", "query_cpu_seconds"]

READING_SECONDS = 0.05
RARELY_SECONDS = 0.5
"""For a command of minutes, of whose time reading more often would be a part."""


class Used(NamedTuple):
    """The CPU time that a process has used."""

    name: str
    seconds: float


def query_cpu_seconds(frame: DataFrame) -> float:
    """CPU seconds of this process and all its descendants, while every row is computed and discarded."""
    return cpu_seconds(partial(run_query, frame))


def cpu_seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process and all its descendants, while `work` runs."""
    return sum(used.seconds for used in cpu_by_process(work).values())


def cpu_by_process(work: Callable[[], object], every: float = READING_SECONDS) -> dict[psutil.Process, Used]:
    """CPU seconds of this process and each of its descendants, also those that end, while `work` runs.

    `every` is the time between readings, in seconds.
    """
    before = _spent()
    last, ended = dict(before), threading.Event()
    reading = 0.0

    def read() -> None:
        nonlocal reading
        while not ended.wait(every):
            last.update(_spent())
        reading = time.thread_time()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        work()
    finally:
        ended.set()
        reader.join()
    last.update(_spent())
    this = psutil.Process()
    last[this] = last[this]._replace(seconds=last[this].seconds - reading)
    return {
        process: Used(used.name, used.seconds - (before[process].seconds if process in before else 0.0))
        for process, used in last.items()
    }


def _spent() -> dict[psutil.Process, Used]:
    """What this process and all its descendants have used so far, without their children that ended."""
    this = psutil.Process()
    found = {}
    for process in [this, *this.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            found[process] = Used(process.name(), times.user + times.system)
    return found


def main(command: list[str]) -> int:
    """Runs a command, prints the CPU seconds of all its processes, and returns its status."""
    # What this package sets for itself is not for the command.
    environment = {name: each for name, each in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}
    child = subprocess.Popen(command, env=environment)
    # Ctrl-C reaches the command, too, which says what it has done so far.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    used = cpu_by_process(child.wait, RARELY_SECONDS)
    total = sum(each.seconds for process, each in used.items() if process != psutil.Process())
    print(f"{total:,.0f} CPU seconds, user and system, of all processes", flush=True)
    return child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
