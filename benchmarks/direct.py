"""The client without Spark: batches through the same engine a Python worker of Spark's runs."""

import time
from collections.abc import Iterator, Sequence

import pyarrow as pa

from remote_udf.functions import FunctionSpec
from spark_client.calls import ScalarCall
from spark_client.config import ClientConfig
from spark_client.directory import find_function, list_functions
from spark_client.executor.engine import PlannedCall, RowEngine
from spark_client.executor.opening import open_stream

__all__ = ["Client"]


class Client:
    """Sends batches to functions of one server and waits for every answer."""

    def __init__(self, target: str) -> None:
        self._config = ClientConfig(target)
        self._functions: Sequence[FunctionSpec] = list_functions(self._config)

    def seconds(self, function: str, batches: Sequence[pa.RecordBatch], **options: str) -> float:
        """Time from the first batch to the last answer, the opening of the stream included."""
        start = time.perf_counter()
        rows = sum(self._answers(function, batches, options))
        elapsed = time.perf_counter() - start
        assert rows == sum(batch.num_rows for batch in batches)
        return elapsed

    def _answers(self, function: str, batches: Sequence[pa.RecordBatch], options: dict[str, str]) -> Iterator[int]:
        spec = find_function(self._functions, function)
        columns = tuple(range(batches[0].num_columns))
        call = ScalarCall(spec, len(columns), options, "benchmark", self._config)
        engine = RowEngine([PlannedCall(call, columns)], open_stream, ordered=True)
        for completed in engine.run(iter(batches)):
            yield completed.table.num_rows
