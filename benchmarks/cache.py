"""The suite of the cache: calls that it saves, the cost of rows that miss, and rows per second that hit."""

import contextlib
import multiprocessing
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa

from benchmarks.cache_functions import LOOKUP_SECONDS
from benchmarks.direct import Client
from benchmarks.results import Results
from benchmarks.server import ServerProcess, server_process
from benchmarks.timing import alternating

__all__ = ["redis_server", "run_cache"]

FUNCTIONS = Path(__file__).with_name("cache_functions.py")
CACHED = {"cache-ttl": "1 h", "cache-timeout": "10 s"}
IN_FLIGHT = 1_000
MESSAGE_ROWS = 10_000


def run_cache(results: Results, quick: bool) -> None:
    """Measures without Spark: the client of its Python workers sends the rows."""
    with _stores() as stores:
        for name, url in stores.items():
            if name != "memory":
                _measure_kill(results, quick, name, url)
        _measure_duplicates(results, quick)
        if "redis" in stores:
            _measure_two_servers(results, quick, stores["redis"])
        _measure_misses(results, quick)
        for name, url in stores.items():
            _measure_hits(results, quick, name, url)


def _measure_kill(results: Results, quick: bool, name: str, url: str) -> None:
    """A job that is killed after half of its calls and runs again."""
    rows = 2_000 if quick else 20_000
    numbers = _cut(range(10**9, 10**9 + rows), 500)
    with _server(url) as server:
        context = multiprocessing.get_context("spawn")
        job = context.Process(target=_run, args=(server.target, numbers), daemon=True)
        job.start()
        while _calls(server) < rows / 2:
            time.sleep(0.02)
        job.kill()
        job.join()
        Client(server.target).seconds("paid", numbers, **_options(200))
        results.add(f"calls_after_kill_at_half_{name}", _calls(server) / rows, "calls in all over distinct rows")


def _run(target: str, numbers: Sequence[pa.RecordBatch]) -> None:
    Client(target).seconds("paid", numbers, **_options(200))


def _measure_duplicates(results: Results, quick: bool) -> None:
    rows = 5_000 if quick else 50_000
    distinct = rows * 6 // 10
    with _server("memory:") as server:
        Client(server.target).seconds("paid", _cut(number % distinct for number in range(rows)), **_options())
        results.add("calls_with_40pct_duplicates", _calls(server) / rows, "calls over rows; 60% are distinct")


def _measure_two_servers(results: Results, quick: bool, url: str) -> None:
    rows = 2_000 if quick else 20_000
    numbers = _cut(range(2 * 10**9, 2 * 10**9 + rows), 500)
    with _server(url) as one, _server(url) as two:
        context = multiprocessing.get_context("spawn")
        jobs = [context.Process(target=_run, args=(server.target, numbers), daemon=True) for server in (one, two)]
        for job in jobs:
            job.start()
        for job in jobs:
            job.join()
        calls = _calls(one) + _calls(two)
        results.add(
            "two_servers_same_keys_calls", calls / rows, "calls of both over distinct rows; the same job on each"
        )


def _measure_misses(results: Results, quick: bool) -> None:
    """The cost of a cache that never hits: every row of every run is new."""
    rows, fresh = (20 if quick else 200) * IN_FLIGHT, _Fresh()
    with _server("memory:") as server:
        client = Client(server.target)
        for name, function, extra in (("miss_cost", "paid", _capacity()), ("vectorized_miss_cost", "computed", {})):

            def seconds(options: Mapping[str, str], function: str = function) -> float:
                return client.seconds(function, _cut(fresh.take(rows)), **options)

            found = alternating(
                {"without": partial(seconds, extra), "with": partial(seconds, {**extra, **CACHED})}, 1 if quick else 5
            )
            times = results.medians(name, found)
            note = f"rows/s, a cache that never hits over none; {LOOKUP_SECONDS * 1000:g} ms, {IN_FLIGHT:,} in flight"
            if function == "computed":
                note = "the same for a vectorized function of a microsecond per row"
            results.add(name, times["without"] / times["with"], note)


def _measure_hits(results: Results, quick: bool, name: str, url: str) -> None:
    rows = 20_000 if quick else 300_000
    numbers = _cut(range(3 * 10**9, 3 * 10**9 + rows))
    with _server(url) as server:
        client = Client(server.target)
        client.seconds("computed", numbers, **CACHED)
        time.sleep(3)  # entries of a shared store are written after the rows were answered
        before = server.cpu_seconds()
        times = [client.seconds("computed", numbers, **CACHED) for _ in range(3)]
        cpu = (server.cpu_seconds() - before) / 3 / rows
        results.add(f"hit_rows_per_second_{name}", rows / min(times), "rows/s that hit, the best of 3 runs")
        results.add(f"hit_server_cpu_{name}", cpu * 1e6, "CPU time of the server per row that hits, microseconds")


class _Fresh:
    """Numbers that were not taken before."""

    def __init__(self) -> None:
        self._next = 0

    def take(self, count: int) -> range:
        first, self._next = self._next, self._next + count
        return range(first, self._next)


def _calls(server: ServerProcess) -> int:
    found = Client(server.target).values("paid_calls", _cut([0]))
    return int(found[0])


def _capacity() -> dict[str, str]:
    return {"buffer-capacity": str(IN_FLIGHT)}


def _options(capacity: int = IN_FLIGHT) -> dict[str, str]:
    return {"buffer-capacity": str(capacity), **CACHED}


def _cut(numbers: "range | Iterator[int] | Sequence[int]", size: int = MESSAGE_ROWS) -> list[pa.RecordBatch]:
    column = pa.array(numbers, pa.int64())
    batches = pa.table({"x": column}).to_batches(max_chunksize=size)
    return [pa.record_batch([pa.concat_arrays([batch.column(0)])], names=["x"]) for batch in batches]


@contextlib.contextmanager
def _server(url: str) -> Iterator[ServerProcess]:
    with server_process(FUNCTIONS, settings=["--cache-url", url]) as server:
        yield server


@contextlib.contextmanager
def _stores() -> Iterator[dict[str, str]]:
    """The URLs of the stores that can be tried here: Redis only if its server is installed."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        stores = {"memory": "memory:", "file": f"file://{folder}/cache"}
        if shutil.which("redis-server"):
            stores["redis"] = stack.enter_context(redis_server())
        yield stores


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """A Redis on a free port, until the block ends. Yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen(["redis-server", "--port", str(port), "--save", ""], stdout=subprocess.DEVNULL)
    try:
        for _ in range(1_000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()
