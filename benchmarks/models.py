"""The suite of models: completions in flight against a scripted service, after a job is killed, and in Spark."""

import asyncio
import contextlib
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import aiohttp
import pyarrow as pa

from benchmarks.direct import Client
from benchmarks.model_batches import measure_batches
from benchmarks.model_jobs import measure_cascade, measure_conditions
from benchmarks.model_peers import measure_model_peers
from benchmarks.model_server import model_server
from benchmarks.model_tokens import measure_tokens
from benchmarks.results import Results
from benchmarks.spark import local_spark
from benchmarks.timing import alternating
from udf_models.testing import ScriptedService

__all__ = ["run_models"]

FUNCTION = "complete_small"
LATENCY = 0.2
IN_FLIGHT = 1_000
KILLED_IN_FLIGHT = 200
MESSAGE_ROWS = 500


def run_models(results: Results, quick: bool) -> None:
    """Measures without Spark where it can: the client of its Python workers sends the rows."""
    _measure_in_flight(results, quick)
    _measure_kill(results, quick)
    measure_batches(results, quick)
    measure_tokens(results, quick)
    with local_spark() as spark:
        measure_conditions(results, quick, spark)
        measure_cascade(results, quick, spark)
        with _service() as url:
            measure_model_peers(results, quick, spark, url)


def _measure_in_flight(results: Results, quick: bool) -> None:
    """Every prompt is new, so the cache, which is on as by default, never hits."""
    rows = (2 if quick else 20) * IN_FLIGHT
    ideal = rows / IN_FLIGHT * LATENCY
    with _service() as url, model_server(url) as server:
        client, cpu = Client(server.target), []
        new = iter(range(100))

        def remote() -> float:
            before = server.cpu_seconds()
            elapsed = client.seconds(FUNCTION, _prompts(f"run {next(new)}", rows), **_options(IN_FLIGHT))
            cpu.append((server.cpu_seconds() - before) / rows * 1e6)
            return elapsed

        sides = {"remote": remote, "bare": lambda: asyncio.run(_bare(url, rows))}
        times = results.medians("complete_1000_in_flight", alternating(sides, 1 if quick else 3))
    note = f"ideal time over time; {LATENCY * 1000:g} ms, {IN_FLIGHT:,} in flight, {rows:,} new prompts"
    results.add("complete_1000_in_flight_share_of_ideal", ideal / times["remote"], note)
    results.add("bare_1000_in_flight_share_of_ideal", ideal / times["bare"], "the same for a loop of aiohttp alone")
    results.add("complete_server_cpu", statistics.median(cpu), "CPU time of the server per completion, microseconds")


async def _bare(url: str, rows: int) -> float:
    """The seconds that aiohttp needs to send the same requests and parse their answers."""
    numbers = iter(range(rows))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def send() -> None:
            for number in numbers:
                content = f"summarize ticket {number} in one sentence"
                body = {"model": "scripted", "messages": [{"role": "user", "content": content}]}
                async with session.post(f"{url}chat/completions", json=body) as response:
                    await response.json()

        start = time.perf_counter()
        await asyncio.gather(*(send() for _ in range(IN_FLIGHT)))
        return time.perf_counter() - start


def _measure_kill(results: Results, quick: bool) -> None:
    """A job that is killed after half of its requests and runs again."""
    rows = 2_000 if quick else 10_000
    prompts = _prompts("paid", rows)
    with ScriptedService(latency=LATENCY) as service, model_server(service.url) as server:
        context = multiprocessing.get_context("spawn")
        job = context.Process(target=_run, args=(server.target, prompts), daemon=True)
        job.start()
        while len(service.requests) < rows / 2:
            time.sleep(0.02)
        job.kill()
        job.join()
        _run(server.target, prompts)
        note = f"requests in all over distinct prompts; killed at half, {KILLED_IN_FLIGHT} in flight"
        results.add("kill_and_rerun_calls", len(service.requests) / rows, note)


def _run(target: str, prompts: Sequence[pa.RecordBatch]) -> None:
    Client(target).seconds(FUNCTION, prompts, **_options(KILLED_IN_FLIGHT))


def _options(in_flight: int) -> dict[str, str]:
    return {"buffer-capacity": str(in_flight)}


def _prompts(what: str, rows: int) -> list[pa.RecordBatch]:
    texts = [f"{what}: summarize ticket {number} in one sentence" for number in range(rows)]
    return [
        pa.record_batch([pa.array(texts[first : first + MESSAGE_ROWS], pa.string())], names=["prompt"])
        for first in range(0, rows, MESSAGE_ROWS)
    ]


@contextlib.contextmanager
def _service() -> Iterator[str]:
    """A service in a separate process; yields its URL."""
    command = [sys.executable, "-m", "benchmarks.model_service", "--latency", str(LATENCY)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()
