"""Runtime: what a task uses of the process in which it runs, so that a simulation can run the same task elsewhere."""

import time
from collections.abc import Callable

import pyarrow as pa
from pyarrow import fs

from remote_udf.threads import THREADS, Threads
from spark_client.base.calls import ScalarCall
from spark_client.executor.files import file_system
from spark_client.executor.listings import LISTINGS, Listings
from spark_client.executor.stream.call_stream import CallStream
from spark_client.executor.stream.opening import open_stream
from spark_client.executor.stream.task import TaskInfo, current_task

__all__ = ["RUNTIME", "OpenStream", "Runtime"]

OpenStream = Callable[[ScalarCall, pa.Schema], CallStream]
"""Opens the stream of a call whose arguments have this schema."""


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

    def __reduce__(self) -> str:
        # What is pickled with a plan is used in another process, so only the default can be: by its name.
        return "RUNTIME"


RUNTIME = Runtime()
