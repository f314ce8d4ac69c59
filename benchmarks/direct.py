"""The client without Spark: batches pass through the engine that runs in Spark's Python workers."""

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event
from typing import Any

import pyarrow as pa

from spark_client.base.budget import SessionBudget
from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.base.security import Security
from spark_client.executor.engine.groups import Completed
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.runtime import RUNTIME
from spark_client.functions.directory import Functions, list_functions

__all__ = ["Client", "process_of_calls"]


class Client:
    """Sends batches to functions of one server and waits for every answer."""

    def __init__(self, target: str, budget: SessionBudget | None = None, security: Security | None = None) -> None:
        self._config = ClientConfig(target, security=security or Security(), budget=budget)
        self._functions: Functions = list_functions(self._config)

    def seconds(self, function: str, batches: Sequence[pa.RecordBatch], **options: str) -> float:
        """Time from the first batch to the last answer, including the opening of the stream."""
        start = time.perf_counter()
        rows = sum(self._answers(function, batches, options))
        elapsed = time.perf_counter() - start
        assert rows == sum(batch.num_rows for batch in batches)
        return elapsed

    def values(self, function: str, batches: Sequence[pa.RecordBatch], **options: str) -> list[Any]:
        """The values of the function."""
        return [value for each in self._completed(function, batches, options) for value in each.values[0].to_pylist()]

    def each_row(self, function: str, rows: int, **options: str) -> list[float]:
        """The time of each row, if the next one is sent after the answer."""
        spec = self._functions.find(function)
        call = ScalarCall(spec, 1, options, "benchmark", self._config)
        engine, found = RowEngine([PlannedCall(call, (0,))], RUNTIME, ordered=True), []
        for number in range(rows):
            start = time.perf_counter()
            engine.exchange(pa.record_batch([pa.array([number], pa.int64())], names=["x"]))
            found.append(time.perf_counter() - start)
        engine.finish()
        return found[1:]  # the first one opens the stream

    def _answers(self, function: str, batches: Sequence[pa.RecordBatch], options: dict[str, str]) -> Iterator[int]:
        return (each.table.num_rows for each in self._completed(function, batches, options))

    def _completed(
        self, function: str, batches: Sequence[pa.RecordBatch], options: dict[str, str]
    ) -> Iterator[Completed]:
        spec = self._functions.find(function)
        columns = tuple(range(batches[0].num_columns))
        call = ScalarCall(spec, len(columns), options, "benchmark", self._config)
        return RowEngine([PlannedCall(call, columns)], RUNTIME, ordered=True).run(iter(batches))


@contextlib.contextmanager
def process_of_calls(target: str, function: str, batches: Sequence[pa.RecordBatch]) -> Iterator[None]:
    """Runs another process that sends the batches to a function repeatedly until the block ends."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    process = context.Process(target=_call_again_and_again, args=(target, function, batches, begun), daemon=True)
    process.start()
    try:
        begun.wait(60)
        yield
    finally:
        process.kill()
        process.join()


def _call_again_and_again(target: str, function: str, batches: Sequence[pa.RecordBatch], begun: Event) -> None:
    client = Client(target)
    begun.set()
    while True:
        client.seconds(function, batches)
