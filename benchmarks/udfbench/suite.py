"""Runs the queries of UDFBench with our functions and with PySpark's own, alternately, after checking the rows."""

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.cpu import cpu_by_process
from benchmarks.results import Results
from benchmarks.server import ServerProcess, server_process
from benchmarks.spark import TASKS, local_spark, run_query
from benchmarks.udfbench.data import make_files, make_tables
from benchmarks.udfbench.local import PREFIX, register_local
from benchmarks.udfbench.queries import LOCAL, QUERIES
from spark_client import RemoteSession, connect

__all__ = ["run_udfbench"]

PLUGIN = Path(__file__).with_name("plugin.py")
ENOUGH_SECONDS = 400
"""After this time queries are not repeated, so that the suite ends within ten minutes on a slow machine."""

Cpu = Mapping[str, float]


def run_udfbench(results: Results, quick: bool) -> None:
    """Measures every query, and adds the worst and the geometric mean of the ratios."""
    began = time.monotonic()
    artifacts = 400 if quick else 20_000
    # As many processes as Spark has Python workers.
    served = server_process(PLUGIN, settings=["--processes", str(TASKS)])
    with local_spark() as spark, served as server, tempfile.TemporaryDirectory() as folder:
        spark.conf.set("spark.sql.shuffle.partitions", str(TASKS))
        make_tables(spark, artifacts)
        register_local(spark)
        files = make_files(Path(folder), artifacts)
        remote = connect(spark, server.target)
        ratios = {}
        for name in QUERIES:
            repetitions = 1 if quick or time.monotonic() - began > ENOUGH_SECONDS else 3
            ratios[name] = _measure(results, name, _sides(spark, remote, name, files), server, repetitions)
    worst = max(ratios, key=lambda name: ratios[name])
    results.add("worst_wall_ratio_vs_pyspark", ratios[worst], f"seconds of ours over PySpark's own: {worst}")
    mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
    results.add("geomean_wall_ratio_vs_pyspark", mean, f"over {len(ratios)} queries")


def _sides(
    spark: SparkSession, remote: RemoteSession, name: str, files: Mapping[str, str]
) -> Mapping[str, Callable[[], DataFrame]]:
    ours = QUERIES[name].replace("@", "")
    theirs = LOCAL.get(name, QUERIES[name]).replace("@", PREFIX)
    for file, path in files.items():
        ours, theirs = ours.replace(f"{{{file}}}", path), theirs.replace(f"{{{file}}}", path)
    return {"ours": lambda: remote.sql(ours), "theirs": lambda: spark.sql(theirs)}


def _measure(
    results: Results, name: str, sides: Mapping[str, Callable[[], DataFrame]], server: ServerProcess, repetitions: int
) -> float:
    """Measures from the text to the last row, planning included."""
    rows = {side: _rows(query()) for side, query in sides.items()}  # this also warms both sides up
    if rows["ours"] != rows["theirs"]:
        first = next((pair for pair in zip(*rows.values(), strict=False) if pair[0] != pair[1]), "their number")
        raise RuntimeError(f"{name}: the sides have different rows: {first}")
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    cpu: dict[str, dict[str, float]] = {side: {} for side in sides}
    for _ in range(repetitions):
        for side, query in sides.items():
            for process, used in _cpu(server, partial(_timed, query, seconds[side])).items():
                cpu[side][process] = cpu[side].get(process, 0.0) + used / repetitions
    ours, theirs = (statistics.median(seconds[side]) for side in ("ours", "theirs"))
    results.add(f"{name}_wall_ratio", ours / theirs, f"{ours:.2f} s and {theirs:.2f} s, {len(rows['ours']):,} rows")
    total = {side: sum(used.values()) for side, used in cpu.items()}
    shown = ", ".join(f"{process} {cpu['ours'][process]:.2f}/{cpu['theirs'][process]:.2f}" for process in cpu["ours"])
    results.add(f"{name}_cpu_ratio", total["ours"] / max(total["theirs"], 0.01), f"CPU seconds by process: {shown}")
    return ours / theirs


def _rows(frame: DataFrame) -> list[str]:
    """The rows in an order of their own; sums of floats may differ in the last digits."""
    return sorted(
        repr(tuple(float(f"{value:.9g}") if isinstance(value, float) else value for value in row))
        for row in frame.collect()
    )


def _timed(query: Callable[[], DataFrame], seconds: list[float]) -> None:
    start = time.perf_counter()
    run_query(query())
    seconds.append(time.perf_counter() - start)


def _cpu(server: ServerProcess, work: Callable[[], None]) -> Cpu:
    """The CPU seconds of each process while `work` runs."""
    used = {"driver": 0.0, "jvm": 0.0, "workers": 0.0, "server": 0.0}
    for process, (name, seconds) in cpu_by_process(work).items():
        if process.pid == os.getpid():
            used["driver"] += seconds
        elif process == server.process:
            used["server"] += seconds
        else:
            used["jvm" if name == "java" else "workers"] += seconds
    return used
