"""Runtime: what a task uses of the process in which it runs, so that a simulation can run the same task elsewhere."""

import functools
import gc
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyarrow import fs

from remote_udf.segments import checked_segments
from remote_udf.threads import THREADS, Threads
from remote_udf.tracing import start_span
from spark_client.base.calls import AggregateCall, ProcessTableCall, ScalarCall
from spark_client.executor.files import file_system
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.task import TaskInfo, current_task
from spark_client.executor.stream.transport import transport_for

__all__ = ["RUNTIME", "Found", "Listings", "OpenStream", "Runtime", "open_stream"]

OpenStream = Callable[[ScalarCall, pa.Schema], CallStream]
"""Opens the stream of a call whose arguments have this schema."""
QUERIES_KEPT = 64
"""The number of restarts of queries whose directories a process remembers."""

Found = dict[int, list[str]]
"""The names of files by micro-batch."""


def open_stream(call: ScalarCall, arguments: pa.Schema) -> CallStream:
    """A stream to the call's server. The types of the arguments are checked before anything is sent."""
    if isinstance(call, AggregateCall):
        checked_segments(call.spec, arguments)
    elif not isinstance(call, ProcessTableCall):
        call.spec.check_arguments(arguments.types)
    task = current_task()
    if task.stage >= 0:
        spare_modules()
    parent = [("traceparent", task.traceparent)] if task.traceparent else []
    span = start_span(
        "remote-udf-client", f"udf.call {call.spec.key}", parent,
        function=call.spec.key, operation_id=call.operation_id, target=call.config.target, job=task.job,
        stage=task.stage, partition=task.partition, task_attempt=task.task_attempt, micro_batch=task.micro_batch,
    )  # fmt: skip
    return CallStream(call, arguments, task, transport_for(call.config, span.headers()), span=span)


@functools.cache
def spare_modules() -> None:
    """Exempt from garbage collection, once, what exists in this process: modules, for the most part.

    Between two tasks of a worker Spark collects garbage. With these modules that takes longer than a short task, and
    the next stage of a query waits for it.
    """
    gc.freeze()


class Listings:
    """The files found in directories of dead letters, by directory, query and restart, each of which is listed once."""

    def __init__(self, threads: Threads = THREADS) -> None:
        self._found: OrderedDict[tuple[str, str, str], Found] = OrderedDict()
        self._lock = threads.lock()

    def get(self, key: tuple[str, str, str], look: Callable[[], Found]) -> Found:
        """The files of this key. `look` finds them if this process has not looked yet."""
        with self._lock:
            if key not in self._found:
                self._found[key] = look()
                while len(self._found) > QUERIES_KEPT:
                    self._found.popitem(last=False)
            return self._found[key]


LISTINGS = Listings()


class Runtime:
    """The default is a Python worker of Spark. Tasks of one process share their `threads` and `listings`."""

    def __init__(
        self, open_stream: OpenStream = open_stream, *, task: Callable[[], TaskInfo] = current_task,
        clock: Callable[[], float] = time.monotonic, now: Callable[[], float] = time.time, threads: Threads = THREADS,
        file_system: Callable[[str], tuple[fs.FileSystem, str]] = file_system,
        listings: Listings = LISTINGS,
    ) -> None:  # fmt: skip
        """`now` is the time since 1970 in seconds; `task` and `file_system` are like the functions of these names."""
        self.open_stream = open_stream
        self.task = task
        self.clock = clock
        self.now = now
        self.threads = threads
        self.file_system = file_system
        self.listings = listings

    def open_streams(self, calls: Sequence[tuple[ScalarCall, pa.Schema]]) -> list[CallStream]:
        """The streams of these calls, which are opened at the same time, because functions may take long to open.

        If some cannot be opened, raises what the first of them raises, and closes the others.
        """
        if len(calls) == 1:
            return [self.open_stream(*calls[0])]
        # It gets an item for each call.
        opened: queue.SimpleQueue[tuple[int, CallStream | BaseException]] = self.threads.queue()
        given_up = self.threads.event()

        def start(place: int) -> None:
            try:
                stream = self.open_stream(*calls[place])
            except BaseException as error:
                opened.put((place, error))
                return
            opened.put((place, stream))
            if given_up.is_set():
                stream.close()

        for place in range(len(calls)):
            self.threads.start("remote-udf-opener", start, place)
        found: dict[int, CallStream | BaseException] = {}
        streams: list[CallStream] = []
        try:
            for place in range(len(calls)):
                while place not in found:
                    found.update([opened.get()])
                if isinstance(result := found[place], BaseException):
                    raise result
                streams.append(result)
        except BaseException:
            given_up.set()
            while not opened.empty():
                found.update([opened.get()])
            for each in found.values():
                if not isinstance(each, BaseException):
                    each.close()
            raise
        return streams

    def __reduce__(self) -> str:
        # What is pickled with a plan is used in another process, so only the default can be: by its name.
        return "RUNTIME"


RUNTIME = Runtime()
