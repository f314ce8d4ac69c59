"""The suite of HTTP: look-ups of the shipped plugin per second on one core, against loops of aiohttp alone."""

import asyncio
import contextlib
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import cast

import aiohttp
import pyarrow as pa
import uvloop

from benchmarks.direct import Client
from benchmarks.results import Results
from benchmarks.server import server_process
from benchmarks.timing import alternating

__all__ = ["run_http"]

LATENCY = 0.01
IN_FLIGHT = 1_000
MESSAGE_ROWS = 10_000
BODY = b'{"city": "Larnaca", "country": "CY"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


def run_http(results: Results, quick: bool) -> None:
    """Measures without Spark: the client of its Python workers sends the paths.

    The server and the loops take turns on a core of their own; the service and the client have the others.
    """
    rows, cpu = (2 if quick else 20) * IN_FLIGHT, dict[str, list[float]]()
    measured = max(os.sched_getaffinity(0))  # the core that `server_process` chooses, and then takes from this process
    with (
        _service() as url, _environment(UDF_HTTP_BASE_URL=url),
        server_process(Path("udf_http"), one_core=True) as server,
    ):  # fmt: skip
        client, paths = Client(server.target), _paths(rows)

        def plugin() -> float:
            before = server.cpu_seconds()
            elapsed = client.seconds("http_get", paths, **{"buffer-capacity": str(IN_FLIGHT)})
            cpu.setdefault("plugin", []).append(server.cpu_seconds() - before)
            return elapsed

        def bare(loop: str) -> float:
            elapsed, used = _bare_elsewhere(loop, measured, url, rows)
            cpu.setdefault(f"bare_{loop}", []).append(used)
            return elapsed

        sides: dict[str, Callable[[], float]] = {
            "plugin": plugin, "bare_uvloop": partial(bare, "uvloop"), "bare_asyncio": partial(bare, "asyncio"),
        }  # fmt: skip
        times = results.medians("look_ups", alternating(sides, 1 if quick else 3))
    note = f"per second on one core: {rows:,} rows, {IN_FLIGHT:,} in flight, {LATENCY * 1000:g} ms"
    for side, seconds in times.items():
        results.add(f"{side}_look_ups_per_core", rows / seconds, note)
        spent = statistics.median(cpu[side]) / rows * 1e6
        results.add(f"{side}_cpu", spent, "CPU time of a look-up, microseconds")
    for loop in ("uvloop", "asyncio"):
        note = f"look-ups per core over those of a bare loop of aiohttp on {loop}"
        results.add(f"look_ups_per_core_vs_bare_{loop}", times[f"bare_{loop}"] / times["plugin"], note)


def _paths(rows: int) -> list[pa.RecordBatch]:
    texts = pa.array([f"airport?code={number}" for number in range(rows)])
    whole = pa.RecordBatch.from_arrays([texts], ["path"])
    return [whole.slice(first, MESSAGE_ROWS) for first in range(0, rows, MESSAGE_ROWS)]


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            del os.environ[name]


@contextlib.contextmanager
def _service() -> Iterator[str]:
    """A service in a process of its own, on the first core; yields its URL."""
    command = [sys.executable, "-m", "benchmarks.http", "service", str(min(os.sched_getaffinity(0)))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/"
        finally:
            process.terminate()


def _bare_elsewhere(loop: str, core: int, url: str, rows: int) -> tuple[float, float]:
    """Runs a bare loop in a process on a core; returns its seconds without its start, and those of its CPU time."""
    command = [sys.executable, "-m", "benchmarks.http", loop, str(core), url, str(rows)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    elapsed, used = map(float, done.stdout.split())
    return elapsed, used


async def _bare(url: str, rows: int) -> tuple[float, float]:
    # As in the server, whose collector would otherwise make the difference.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:

        async def send(numbers: Iterator[int]) -> None:
            for number in numbers:
                async with session.get(f"{url}airport?code={number}") as response:
                    await response.text()

        async def send_all(numbers: Iterator[int]) -> None:
            await asyncio.gather(*(send(numbers) for _ in range(IN_FLIGHT)))

        await send_all(iter(range(2 * IN_FLIGHT)))  # connects
        began, before = time.perf_counter(), time.process_time()
        await send_all(iter(range(rows)))
        return time.perf_counter() - began, time.process_time() - before


class _Answering(asyncio.Protocol):
    """Answers each GET after the latency, at little cost: the service must not be what is measured."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Those of uvloop are no subclass of asyncio's.
        self._write = cast(asyncio.Transport, transport).write
        self._later = asyncio.get_running_loop().call_later

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n\r\n")):
            self._later(LATENCY, self._write, ANSWER)


async def _serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Answering, "127.0.0.1", backlog=2 * IN_FLIGHT)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    what, core, *rest = sys.argv[1:]
    os.sched_setaffinity(0, {int(core)})
    if what == "service":
        uvloop.run(_serve())
    runner = uvloop.run if what == "uvloop" else asyncio.run
    print(*runner(_bare(rest[0], int(rest[1]))))
