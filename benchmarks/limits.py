"""The suite of limits: the theoretical maximum of such a system, and the share of it that is reached."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import psutil
import pyarrow as pa
import uvloop
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from benchmarks.direct import Client
from benchmarks.echo import echo_process
from benchmarks.functions import LOOKUP_SECONDS
from benchmarks.in_spark import MESSAGE_ROWS, local_identity
from benchmarks.memory import python_workers
from benchmarks.results import Results
from benchmarks.server import ServerProcess, server_process
from benchmarks.spark import TASKS, local_spark, run_query
from benchmarks.timing import alternating, medians
from spark_client import connect

__all__ = ["run_limits"]


def run_limits(results: Results, quick: bool) -> None:
    """Measures calls that wait, batches between two processes, and batches inside Spark."""
    for in_flight in (100, 1000, 4000):
        _measure_waiting(results, quick, in_flight)
    for suffix, size in MESSAGE_ROWS.items():
        _measure_echo(results, quick, suffix, size)
    with local_spark() as spark, server_process() as server:
        for suffix, size in MESSAGE_ROWS.items():
            _measure_in_spark(results, quick, spark, server, suffix, size)


def _measure_waiting(results: Results, quick: bool, in_flight: int) -> None:
    """Lookups of 10 ms on one core against rows x latency / concurrency, which even a bare loop does not reach."""
    rows = (10 if quick else 200) * in_flight
    numbers, options = _cut([pa.array(range(rows))], 10_000), {"buffer-capacity": str(in_flight)}
    with server_process(one_core=True) as server:
        client = Client(server.target)
        found = alternating({
            "ours": partial(client.seconds, "look_up", numbers, **options),
            "bare loop": partial(_bare_loop_elsewhere, rows, in_flight),
        }, 1 if quick else 5)  # fmt: skip
    ideal = rows * LOOKUP_SECONDS / in_flight
    time_ = results.medians(f"look_ups_{in_flight}", found)
    note = f"rows x latency / concurrency over the time, {in_flight} in flight, one core"
    results.add(f"look_ups_{in_flight}_fraction_of_ideal", ideal / time_["ours"], note)
    note = "the same of asyncio.sleep in as many coroutines, and nothing else"
    results.add(f"bare_loop_{in_flight}_fraction_of_ideal", ideal / time_["bare loop"], note)


def _bare_loop_elsewhere(rows: int, in_flight: int) -> float:
    """Runs the loop below in a process on the core that servers are pinned to; returns seconds without its start."""
    core = max(os.sched_getaffinity(0))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.limits", *map(str, (rows, in_flight, core))],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(done.stdout)


def _bare_loop(rows: int, in_flight: int) -> float:
    async def wait(left: Iterator[int]) -> None:
        for _ in left:
            await asyncio.sleep(LOOKUP_SECONDS)

    async def run() -> float:
        left = iter(range(rows))
        began = time.perf_counter()
        await asyncio.gather(*(wait(left) for _ in range(in_flight)))
        return time.perf_counter() - began

    return uvloop.run(run())


def _measure_echo(results: Results, quick: bool, suffix: str, size: int) -> None:
    """A function that returns its first column, against a socket that returns everything."""
    rows = 100_000 if quick else 20_000_000
    batches = _cut([pa.array(range(rows)), pa.array(range(rows))], size)
    with server_process() as server, echo_process() as echo:
        client = Client(server.target)
        sides = {
            "ours": partial(client.seconds, "first_of_two", batches),
            "echo": partial(echo.seconds, batches),
        }
        time_ = results.medians(f"echo{suffix}", alternating(sides, 1 if quick else 5))
    note = f"rows/s of ours over a raw Arrow echo's over a Unix socket, two longs, {size} rows at a time"
    results.add(f"vectorized_vs_socket_echo{suffix}", time_["echo"] / time_["ours"], note)


def _measure_in_spark(
    results: Results, quick: bool, spark: SparkSession, server: ServerProcess, suffix: str, size: int
) -> None:
    """Two longs in, one out, against Spark's own ways to Python and back; and CPU time per row of each process."""
    rows, repetitions = (200_000, 1) if quick else (10_000_000, 5)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(size))
    frame = spark.range(0, rows, 1, TASKS).select(F.col("id").alias("a"), (F.col("id") * 2).alias("b"))
    first = connect(spark, server.target).function("first_of_two")
    sides = {
        "ours": frame.select(first("a", "b")),
        "arrow_udf": frame.select(local_identity()("a", "b")),
        "map_in_arrow": frame.mapInArrow(_first_column, "a bigint"),
    }
    work: dict[str, dict[str, list[float]]] = {name: {"server": [], "worker": [], "jvm": []} for name in sides}

    def measure(name: str) -> float:
        before = _processor(server)
        seconds = run_query(sides[name])
        for process, after in _processor(server).items():
            work[name][process].append((after - before[process]) / rows * 1e9)
        return seconds

    time_ = results.medians(
        f"in_spark{suffix}", alternating({name: partial(measure, name) for name in sides}, repetitions)
    )
    note = f"rows/s of ours over {{}}, {size} rows at a time"
    results.add(
        f"vectorized_vs_local_arrow_udf{suffix}", time_["arrow_udf"] / time_["ours"], note.format("a local one's")
    )
    results.add(
        f"vectorized_vs_map_in_arrow{suffix}", time_["map_in_arrow"] / time_["ours"],
        note.format("a mapInArrow's that does the same"),
    )  # fmt: skip
    for name, used in work.items():
        for process, nanoseconds in medians({process: values[1:] for process, values in used.items()}).items():
            results.add(f"cpu_ns_{name}_{process}{suffix}", nanoseconds, f"CPU time of the {process} per row")


def _first_column(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["a"])


def _processor(server: ServerProcess) -> dict[str, float]:
    """CPU seconds used so far by the server, by Spark's Python workers, and by the JVM."""
    workers = python_workers()
    java = [child for child in psutil.Process().children(recursive=True) if child.name() == "java"]
    return {"server": server.cpu_seconds(), "worker": _used(workers), "jvm": _used(java)}


def _used(processes: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _cut(columns: list[pa.Array], size: int) -> list[pa.RecordBatch]:
    whole = pa.RecordBatch.from_arrays(columns, [f"x{index}" for index in range(len(columns))])
    return [whole.slice(first, size) for first in range(0, whole.num_rows, size)]


if __name__ == "__main__":
    rows_of_all, at_once, core_of_servers = map(int, sys.argv[1:])
    os.sched_setaffinity(0, {core_of_servers})
    print(_bare_loop(rows_of_all, at_once))
