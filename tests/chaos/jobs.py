"""Jobs without Spark: tasks that send rows as Spark's Python workers do, and check the results."""

import itertools
import threading
import time
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from spark_client.base.calls import ScalarCall
from spark_client.base.config import ClientConfig
from spark_client.executor.engine.row_engine import PlannedCall, RowEngine
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.runtime import Runtime
from spark_client.executor.stream.task import TaskInfo
from spark_client.executor.stream.transport import transport_for
from spark_client.functions.directory import list_functions

__all__ = ["Job", "Tally"]

BATCH_ROWS = 10_000
TASKS = 2


@dataclass
class Tally:
    """The outcomes of the rows of a job."""

    rows: int
    seconds: float = 0.0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    replays: int = 0
    reconnects: int = 0
    note: str = ""
    served: int = 0
    failures: list[str] = field(default_factory=list)
    not_exercised: str = ""
    """Why the fault was not exercised, if it did not occur; the rows were checked anyway."""

    @property
    def good(self):
        return not (self.lost or self.doubled or self.wrong or self.failures)


class Job:
    """Sends the numbers below `rows` through a function, with a thread per task; x must return as 3x + 1, once."""

    def __init__(self, target, function, rows, *, ordered=True, tasks=TASKS, options=None, **config):
        self._config = ClientConfig(target, **{"connect_seconds": 60.0, **config})
        self._spec = list_functions(self._config).find(function)
        self._ordered, self._tasks, self._options = ordered, tasks, options or {}
        self._stopped = False
        self.tally = Tally(rows)
        self._seen = np.zeros(rows, np.uint8)
        self._streams = []
        self._threads = []
        self._answered = 0

    @property
    def share(self):
        """The share of rows that were answered, from 0 to 1."""
        return self._answered / self.tally.rows

    def start(self):
        self._began = time.monotonic()
        bounds = np.linspace(0, self.tally.rows, self._tasks + 1).astype(int)
        for task, (first, last) in enumerate(itertools.pairwise(bounds)):
            thread = threading.Thread(target=self._run, args=(task, int(first), int(last)), daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    @property
    def running(self):
        return any(thread.is_alive() for thread in self._threads)

    def stop(self):
        """End the job soon, even if it is incomplete."""
        self._stopped = True
        for thread in self._threads:
            thread.join(60.0)

    def wait(self, seconds=600.0):
        """The tally after all tasks have ended. Raises TimeoutError if they hang."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))
            if thread.is_alive():
                raise TimeoutError(f"the job hangs at {self.share:.0%}")
        tally = self.tally
        tally.seconds = time.monotonic() - self._began
        tally.lost = int(np.count_nonzero(self._seen == 0))
        tally.doubled = int(np.count_nonzero(self._seen > 1))
        tally.replays = sum(stream.statistics.replays for stream in self._streams)
        tally.reconnects = sum(stream.statistics.reconnects for stream in self._streams)
        return tally

    def _run(self, task, first, last):
        def open_stream(call, schema):
            info = TaskInfo(partition=task)
            self._streams.append(CallStream(call, schema, info, transport_for(call.config)))
            return self._streams[-1]

        options = {"output-mode": "ordered" if self._ordered else "unordered", **self._options}
        call = ScalarCall(self._spec, 1, options, "chaos", self._config)
        batches = (
            pa.record_batch({"x": pa.array(np.arange(start, min(start + BATCH_ROWS, last)))})
            for start in range(first, last, BATCH_ROWS)
        )
        expected = first
        try:
            engine = RowEngine([PlannedCall(call, (0,))], Runtime(open_stream), ordered=self._ordered)
            for completed in engine.run(batches):
                if self._stopped:
                    break
                rows = completed.table.column("x").to_numpy()
                values = completed.values[0].to_numpy(zero_copy_only=False)
                if any(completed.errors):
                    raise AssertionError(f"row failed: {next(iter(completed.errors[0].values()))}")
                np.add.at(self._seen, rows, 1)
                self._answered += len(rows)
                self.tally.wrong += int(np.count_nonzero(values != rows * 3 + 1))
                if self._ordered:
                    self.tally.wrong += int(np.count_nonzero(rows != np.arange(expected, expected + len(rows))))
                    expected += len(rows)
        except Exception as error:
            self.tally.failures.append(f"{type(error).__name__}: {error}"[:500])
