"""The suite of groups: scrapes of many idle functions, what functions take, calls through a group, neighbours,
reloads and edits.

The functions are served by two worker processes; a scrape is one request to the parent, as Prometheus makes it.
"""

import statistics
import tempfile
import time
import urllib.request
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks.direct import Client
from benchmarks.edits import measure_edits
from benchmarks.group_calls import measure_group_calls
from benchmarks.memory import MEGABYTE
from benchmarks.neighbours import measure_group_neighbours
from benchmarks.reloads import measure_reloads
from benchmarks.results import Results
from benchmarks.server import ServerProcess, server_process

__all__ = ["run_groups"]

FUNCTION = """
@udf.scalar
async def {name}(x: int) -> int:
    return x
"""
PROCESSES = 2
APART_SECONDS = 1.2
"""The time between two scrapes: longer than a gathered page is kept."""


def run_groups(results: Results, quick: bool) -> None:
    """Measures scrapes of 36 and 2,000 functions, memory and threads, calls through a group, and reloads, edits."""
    few, many = 36, 200 if quick else 2_000
    with tempfile.TemporaryDirectory() as folder:
        with _served(Path(folder), few) as server:
            _call_each(server, few)
            page = _scraped(server)
        note = f"{few} functions, each called once, {PROCESSES} processes"
        results.add(f"scrape_kB_{few}_functions", len(page) / 1000, f"kB of a scrape, {note}")
        results.add(f"scrape_samples_{few}_functions", _samples(page), f"samples of a scrape, {note}")
        with _served(Path(folder), many) as server:
            note = f"{many} functions, {PROCESSES} processes"
            results.add(f"loaded_threads_{many}_functions", _threads(server), f"threads, {note}, none called")
            results.add(f"loaded_mb_{many}_functions", _megabytes(server), f"MB of memory, {note}, none called")
            _measure_scrapes(results, server, f"{many}_functions", f"{note}, none called", quick)
            _call_each(server, many)
            results.add(f"called_threads_{many}_functions", _threads(server), f"threads, {note}, each called once")
            results.add(f"called_mb_{many}_functions", _megabytes(server), f"MB of memory, {note}, each called once")
            _measure_scrapes(results, server, f"{many}_called", f"{note}, each called once", quick)
    measure_group_calls(results, quick)
    measure_group_neighbours(results, quick)
    measure_reloads(results, quick)
    measure_edits(results, quick)


def _served(folder: Path, functions: int) -> AbstractContextManager[ServerProcess]:
    plugin = folder / f"functions_{functions}.py"
    texts = (FUNCTION.format(name=f"f{number}") for number in range(functions))
    plugin.write_text("import udf_server as udf\n" + "".join(texts))
    return server_process(plugin, settings=["--processes", str(PROCESSES)])


def _call_each(server: ServerProcess, functions: int) -> None:
    client, row = Client(server.target), [pa.record_batch([pa.array([1])], ["x"])]
    for number in range(functions):
        client.seconds(f"f{number}", row)


def _measure_scrapes(results: Results, server: ServerProcess, name: str, note: str, quick: bool) -> None:
    spent, took, page = list[float](), list[float](), b""
    for _ in range(1 if quick else 5):
        time.sleep(APART_SECONDS)
        before, began = _cpu(server), time.perf_counter()
        page = _scraped(server)
        took.append(time.perf_counter() - began)
        spent.append(_cpu(server) - before)
    results.add(f"scrape_cpu_seconds_{name}", statistics.median(spent), f"CPU seconds of a scrape, {note}")
    results.add(f"scrape_seconds_{name}", statistics.median(took), f"seconds of a scrape, {note}")
    results.add(f"scrape_kB_{name}", len(page) / 1000, f"kB of a scrape, {note}")


def _scraped(server: ServerProcess) -> bytes:
    with urllib.request.urlopen(f"{server.metrics}/metrics", timeout=120) as answer:
        page: bytes = answer.read()
    return page


def _samples(page: bytes) -> int:
    return sum(not line.startswith(b"#") for line in page.splitlines())


def _processes(server: ServerProcess) -> list[psutil.Process]:
    return [server.process, *server.process.children()]


def _cpu(server: ServerProcess) -> float:
    return sum(times.user + times.system for times in (each.cpu_times() for each in _processes(server)))


def _threads(server: ServerProcess) -> int:
    return sum(each.num_threads() for each in _processes(server))


def _megabytes(server: ServerProcess) -> float:
    return sum(each.memory_info().rss for each in _processes(server)) / MEGABYTE
