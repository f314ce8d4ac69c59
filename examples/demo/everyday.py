"""What a paid service and a model need every day: pay once, although a job is killed, and one model for all tasks."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from examples.demo.services import LookupProcess
from spark_client import RemoteSession, connect
from spark_client.summary.job_summary import JobSummary

__all__ = ["ModelRun", "Paid", "pay_once", "share_a_model"]

IN_FLIGHT = 20
SMALL = 8
"""Rows of a batch, as of a stream with little data."""


@dataclass(frozen=True)
class Paid:
    """A run of the job: its rows, the values that the server had kept, and the requests that the service counted."""

    run: str
    rows: int | None
    kept: int | None
    requests: int


@dataclass(frozen=True)
class ModelRun:
    """A way to call the model: its calls, and the seconds for all rows."""

    way: str
    rows: int
    calls: int
    seconds: float


def lookups(remote: RemoteSession, paths: DataFrame) -> None:
    """Looks all paths up; the server keeps each answer for an hour."""
    look_up = remote.function("http_get_json", cache_ttl="1 h", buffer_capacity=IN_FLIGHT)
    paths.select(look_up("path")).write.format("noop").mode("overwrite").save()


def pay_once(remote: RemoteSession, paths: DataFrame, service: LookupProcess, folder: Path) -> list[Paid]:
    """Kills a job, which is a process of its own with its own Spark, half-way, and runs it again here."""
    assert remote.embedded is not None
    paths.write.parquet(str(folder / "paths"))
    rows = paths.count()
    service.statistics()
    job = subprocess.Popen(
        [sys.executable, "-m", "examples.demo.everyday", remote.embedded.target, str(folder / "paths")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    paid = 0
    try:
        while paid < rows / 2 and job.poll() is None:
            time.sleep(0.02)
            paid += service.statistics().answers
    finally:
        # Spark's JVM is in the group of the process: it does not outlive it.
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
    time.sleep(1)  # the calls that have begun end, and their answers are kept
    runs = [Paid("killed by SIGKILL", None, None, paid + service.statistics().answers)]
    for name in ("again", "once more"):
        with remote.summary(progress=1) as summary:
            lookups(remote, paths)
        _, total = summary.total()
        runs.append(Paid(name, total.rows, total.cache_hits, service.statistics().answers))
    return runs


def share_a_model(spark: SparkSession, names: DataFrame) -> tuple[list[ModelRun], bool]:
    """Calls a model with small batches of each task, and with the rows of all tasks; tells if the answers are equal."""
    remote = connect(spark, plugins=[str(Path(__file__).with_name("model_udfs.py"))])
    runs, answers = [], []
    for name, way in (("kind_per_batch", "a call per batch"), ("kind_shared", "common calls")):
        kind = remote.function(name, batch_rows=SMALL)
        names.limit(1).select(kind("name")).collect()
        with remote.summary() as summary:
            began = time.perf_counter()
            found = names.select("name", kind("name").alias("kind")).collect()
            seconds = time.perf_counter() - began
        runs.append(ModelRun(way, len(found), _calls(summary), seconds))
        answers.append(sorted(map(tuple, found)))
    return runs, answers[0] == answers[1]


def _calls(summary: JobSummary) -> int:
    _, total = summary.total()
    return total.calls


if __name__ == "__main__":
    from examples.session import local_session

    target, folder = sys.argv[1:]
    session = local_session(1)
    lookups(connect(session, target), session.read.parquet(folder))
