"""Memory of Spark's Python workers and the server while many rows pass."""

import os
import threading

import psutil
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.results import Results
from benchmarks.server import ServerProcess
from benchmarks.spark import TASKS, run_query
from spark_client import connect

__all__ = ["MEGABYTE", "measure_memory", "peak_memory", "python_workers", "resident_memory"]

SAMPLE_SECONDS = 0.02
MEGABYTE = 1 << 20


def measure_memory(results: Results, quick: bool, spark: SparkSession, server: ServerProcess) -> None:
    """Peak resident memory over 1M rows and over 20M, with the same query and the same processes."""
    few, many = (10_000, 50_000) if quick else (1_000_000, 20_000_000)
    remote = connect(spark, server.target)
    vectorized, rowwise = remote.function("first_of_two"), remote.function("async_identity")

    def frames(rows: int) -> list[DataFrame]:
        numbers = spark.range(0, rows, 1, TASKS).select(F.col("id").alias("a"), (F.col("id") * 2).alias("b"))
        return [numbers.select(vectorized("a", "b")), numbers.select(rowwise("a"))]

    growth = []
    for name, small, large in zip(("vectorized", "rowwise"), frames(few), frames(many), strict=True):
        # It runs three times, because messages grow with the pace of a function, which 1M rows alone may not show.
        before = max(peak_memory(server, small) for _ in range(3))
        after = peak_memory(server, large)
        results.add(f"rss_{name}_1m", before / MEGABYTE, "MB, Python workers and server, 1M rows")
        results.add(f"rss_{name}_20m", after / MEGABYTE, "MB, the same, 20M rows")
        growth.append((after - before) / MEGABYTE)
    results.add("rss_growth_1m_to_20m", max(growth), "MB that 20M rows take more than 1M, the larger of both")


def resident_memory(server: ServerProcess) -> int:
    """The current sum of the server's memory and that of Spark's Python workers."""
    return _resident([server.process, *python_workers()])


def peak_memory(server: ServerProcess, frame: DataFrame) -> int:
    """The highest sum that is seen while the query runs."""
    highest, done = 0, threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.wait(SAMPLE_SECONDS):
            highest = max(highest, resident_memory(server))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        run_query(frame)
    finally:
        done.set()
        thread.join()
    return highest


def python_workers() -> list[psutil.Process]:
    """Spark's Python workers: the children of its daemon, a child of the JVM, a child of this process."""
    found = []
    for child in psutil.Process(os.getpid()).children(recursive=True):
        try:
            if "pyspark.daemon" in child.cmdline():
                found.append(child)
        except psutil.Error:
            continue  # it ended before it was read
    return found


def _resident(processes: list[psutil.Process]) -> int:
    total = 0
    for process in processes:
        try:
            total += process.memory_info().rss
        except psutil.Error:
            continue
    return total
