"""Batches of models: rows that are submitted twice, over restarts of driver, server and service."""

import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.direct import Client
from benchmarks.results import Results
from benchmarks.server import ServerProcess, server_process
from udf_models.testing import Reply, ScriptedService

__all__ = ["measure_batches"]

FUNCTION = "complete_batch_small"
MESSAGE_ROWS = 500
LEASE = "1 s"
POLL_SECONDS = 0.2
MOST_SECONDS = 120.0
STEPS = (
    ("files", Reply(hang=True)),  # the intent is kept
    ("batches", Reply(hang=True)),  # the file is uploaded
    ("batches", Reply(drip_seconds=60.0)),  # the batch is created, its id is not kept
)
"""Where the server is killed, by path, and what holds it there."""


def measure_batches(results: Results, quick: bool) -> None:
    """A driver asks with new rows each time. The server is killed in a submission, the driver while it waits."""
    rows = 300 if quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        with ScriptedService(batch_seconds=3600.0, folder=Path(folder)) as service:
            for number, (path, reply) in enumerate(STEPS):
                service.script(reply, path=path)
                before = _posted(service, path)
                with _server(folder, service.url) as server, _driver(server, rows // len(STEPS) * (number + 1)):
                    _until_posted(service, path, before + 1)
                    server.process.kill()
            with _server(folder, service.url) as server:
                # What was given up is submitted when its lease has ended.
                _until(lambda: bool(_ask(server.target, rows)) and service.batch_rows >= rows)
                port = int(service.url.split(":")[2].split("/")[0])
        with ScriptedService(folder=Path(folder), port=port) as service, _server(folder, service.url) as server:
            began = time.perf_counter()
            answers = _answers(server, rows)
            elapsed = time.perf_counter() - began
            assert answers == _texts(rows)
            note = (
                f"{rows:,} rows; the server and the driver killed in three steps of submissions, the service restarted"
            )
            results.add("batch_resubmitted_rows", service.resubmitted_rows, note)
            results.add("batch_collected_rows_per_second", rows / elapsed, "from files of the service to answers")


@contextmanager
def _server(folder: str, url: str) -> Iterator[ServerProcess]:
    file = Path(folder) / "models.toml"
    file.write_text(
        f'[models.small]\nurl = "{url}"\nmodel = "scripted"\nfunctions = ["complete_batch"]\n'
        f'batch = {{ poll-interval = "{POLL_SECONDS} s", lease = "{LEASE}" }}\n'
    )
    os.environ["UDF_MODELS_FILE"] = str(file)
    try:
        with server_process(Path("udf_models"), settings=["--cache-url", f"file://{folder}/kept"]) as server:
            yield server
    finally:
        os.environ.pop("UDF_MODELS_FILE", None)


@contextmanager
def _driver(server: ServerProcess, rows: int) -> Iterator[None]:
    """A process that asks, and is killed at the end of the block."""
    process = multiprocessing.get_context("spawn").Process(target=_ask, args=(server.target, rows), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _ask(target: str, rows: int) -> list[dict[str, str]]:
    return Client(target).values(FUNCTION, _prompts(rows))


def _posted(service: ScriptedService, path: str) -> int:
    return sum(request.path == path and request.method == "POST" for request in service.requests)


def _until_posted(service: ScriptedService, path: str, number: int) -> None:
    _until(lambda: _posted(service, path) >= number)


def _until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + MOST_SECONDS
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"not so after {MOST_SECONDS:g} s")
        time.sleep(POLL_SECONDS)


def _answers(server: ServerProcess, rows: int) -> list[str]:
    """Ask until all rows are answered."""
    values: list[dict[str, str]] = []

    def answered() -> bool:
        values[:] = _ask(server.target, rows)
        return all(value["state"] == "done" for value in values)

    _until(answered)
    return [value["answer"] for value in values]


def _texts(rows: int) -> list[str]:
    return [f"summarize ticket {number} in one sentence" for number in range(rows)]


def _prompts(rows: int) -> Sequence[pa.RecordBatch]:
    texts = _texts(rows)
    return [
        pa.record_batch([pa.array(texts[first : first + MESSAGE_ROWS], pa.string())], names=["prompt"])
        for first in range(0, rows, MESSAGE_ROWS)
    ]
