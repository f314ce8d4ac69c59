"""Reloads of a group under load: rows that are lost, doubled, called again, or answered by code that was replaced."""

import collections
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pyarrow as pa

from benchmarks.direct import Client
from benchmarks.results import Results
from benchmarks.server import server_process

__all__ = ["measure_reloads", "reload"]

PLUGIN = """
import asyncio
import os
import time

import pyarrow as pa
import udf_server as udf

CALLS = os.open({calls!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def answered(x: int) -> int:
    os.write(CALLS, x.to_bytes(8, "little"))
    return x * 1_000 + {version}


@udf.scalar(deterministic=False)
async def row(x: int) -> int:
    await asyncio.sleep(0.05)
    return answered(x)


@udf.scalar(vectorized=True, deterministic=False)
def rows(x: pa.Int64Array) -> pa.Int64Array:
    time.sleep(0.05)
    return pa.array([answered(each) for each in x.to_pylist()], pa.int64())
"""
FUNCTIONS = ("row", "rows")
BATCH = 500
"""Rows of a batch; a stream has 40."""


class _Load(threading.Thread):
    """Calls a function all the time, each row with a number of its own."""

    def __init__(self, client: Client, function: str, first: int) -> None:
        super().__init__(daemon=True)
        self._client, self._function, self._next = client, function, first
        self.sent, self.values = list[int](), list[int]()
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.is_set():
            numbers = range(self._next, self._next + 40 * BATCH)
            self._next = numbers.stop
            self.sent += numbers
            self.values += self._client.values(self._function, _batches(numbers))


def measure_reloads(results: Results, quick: bool) -> None:
    """Reloads a group whose functions are called all the time, each time with other code."""
    reloads = 3 if quick else 100
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        calls, plugin, settings = folder / "calls", folder / "reloaded.py", folder / "server.toml"
        settings.write_text(f"[groups.reloaded]\nplugins = [{json.dumps(str(plugin))}]\n")
        plugin.write_text(PLUGIN.format(calls=str(calls), version=0))
        nothing = folder / "nothing.py"
        nothing.write_text(
            "import udf_server as udf\n\n\n@udf.scalar\nasync def nothing(x: int) -> int:\n    return x\n"
        )
        with server_process(nothing, settings=["--config", str(settings)]) as server:
            client = Client(server.target)
            loads = [_Load(client, function, (1 + place) << 40) for place, function in enumerate(FUNCTIONS)]
            for load in loads:
                load.start()
            took, old, probes = list[float](), 0, list[int]()
            for version in range(1, reloads + 1):
                plugin.write_text(PLUGIN.format(calls=str(calls), version=version))
                took.append(reload(server.metrics))
                numbers = range(version * 10, version * 10 + 10)
                probes += numbers
                old += sum(value % 1_000 != version for value in client.values("row", _batches(numbers)))
            for load in loads:
                load.stopped.set()
            for load in loads:
                load.join()
        called = collections.Counter(memoryview(calls.read_bytes()).cast("Q").tolist())
    sent = sum(len(load.sent) for load in loads)
    answered = collections.Counter(value // 1_000 for load in loads for value in load.values)
    note = f"{reloads} reloads, {sent:,} rows of a scalar and of a vectorized function"
    results.add("reloads_rows_lost", sent - len(answered), f"rows without an answer, {note}")
    results.add("reloads_rows_doubled", answered.total() - len(answered), f"rows with two answers, {note}")
    results.add(
        "reload_calls_repeated", called.total() - len(called), f"calls for rows that were called already, {note}"
    )
    results.add("reload_old_answers", old, f"answers of replaced code, of {len(probes)} rows of new streams")
    results.add("reload_seconds", statistics.median(took), "seconds of `udf-server reload`, median")


def reload(metrics: str) -> float:
    """Reload all groups of the server with this HTTP address. Returns the seconds that it took."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "udf_server", "reload", "--metrics-port", metrics.rpartition(":")[2]]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def _batches(numbers: range) -> list[pa.RecordBatch]:
    return pa.table({"x": pa.array(numbers, pa.int64())}).to_batches(BATCH)
