"""Distributes cases over worker processes, each with its own Spark session."""

import multiprocessing
import queue
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.conformance.reading import CaseFile, load_folder
from tests.conformance.report import Entry
from tests.conformance.runner import prepared, run_case, spark_session

__all__ = ["WorkerFailed", "run_all"]

WAIT_SECONDS = 1.0


class WorkerFailed(RuntimeError):
    """A worker could not start, or exited without a result; the message is the worker's."""


def run_all(
    folder: Path, files: Sequence[CaseFile], functions: Path | None, workers: int, *, mutate: bool
) -> Iterator[Entry]:
    """Entries as they are made. Raises WorkerFailed."""
    count = sum(len(file.cases) for file in files)
    # Spark and gRPC do not survive a fork.
    context = multiprocessing.get_context("spawn")
    todo: Any = context.Queue()
    done: Any = context.Queue()
    # Neighbouring cases cost about the same, so that no worker gets all slow ones.
    for file in files:
        for case in file.cases:
            todo.put((file.name, case.id))
    for _ in range(workers):
        todo.put(None)
    given = (folder, functions, mutate, todo, done)
    running = [context.Process(target=_work, args=given) for _ in range(max(1, min(workers, count)))]
    for process in running:
        process.start()
    try:
        for _ in range(count):
            yield _next(done, running)
    finally:
        for process in running:
            process.join(30)
            if process.is_alive():
                process.terminate()
                process.join()


def _next(done: Any, running: Sequence[Any]) -> Entry:
    while True:
        try:
            entry = done.get(timeout=WAIT_SECONDS)
        except queue.Empty:
            if all(process.exitcode is not None for process in running):
                raise WorkerFailed(f"all workers ended, with status {[each.exitcode for each in running]}") from None
            continue
        if isinstance(entry, str):
            raise WorkerFailed(entry)
        assert isinstance(entry, Entry)
        return entry


def _work(folder: Path, functions: Path | None, mutate: bool, todo: Any, done: Any) -> None:
    files = load_folder(folder)
    cases = {(file.name, case.id): case for file in files for case in file.cases}
    try:
        with spark_session() as spark, prepared(spark, folder, functions, files) as environment:
            while (name := todo.get()) is not None:
                done.put(run_case(cases[name], environment, mutate=mutate))
    except Exception:
        done.put(traceback.format_exc(limit=3))
