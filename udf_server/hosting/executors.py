"""Executors makes the threads that run the authors' code, separate from the server's own event loop, within limits."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from remote_udf.threads import THREADS, Threads
from udf_server.base.open_files import open_files, out_of_files
from udf_server.hosting.loop_executor import FunctionLoop, LoopExecutor
from udf_server.hosting.thread_executor import ThreadExecutor
from udf_server.hosting.turns import DEFAULT_CALLS, Turns

__all__ = ["Executors", "HostLimits", "Timer"]


@dataclass(frozen=True)
class HostLimits:
    """What one function may use of its server."""

    calls: int = DEFAULT_CALLS
    """Maximum number of calls in flight on the function's event loop, over all streams."""
    threads: int = 64
    """Maximum number of threads that run the function's calls, over all streams."""
    lost_calls: int = 16
    """If this number of calls have not returned, the function is refused. Each of them may hold a thread."""
    open_seconds: float = 600.0
    """How long a function's `open` hooks may take, for each of its instances. Loading a model may take minutes."""
    close_seconds: float = 5.0
    """How long its `close` hooks may take when the server stops."""


class Timer(Protocol):
    """What calls back later."""

    def cancel(self) -> None:
        """Do not call back. Safe to call twice."""


@dataclass(frozen=True)
class Executors:
    """Makes the executors of a server's functions. A test can replace what they run on."""

    threads: Threads = THREADS
    clock: Callable[[], float] = time.monotonic
    new_loop: Callable[[], asyncio.AbstractEventLoop] = FunctionLoop
    new_turns: Callable[[int], Turns] = Turns
    later: Callable[[float, Callable[[], object]], Timer] = lambda seconds, callback: (
        asyncio.get_running_loop().call_later(seconds, callback)
    )
    """Calls back on the running loop after this time."""

    def loop_executor(self, name: str, calls: int) -> LoopExecutor:
        """Raises StreamError OVERLOADED if there are too few file descriptors for an event loop."""
        files = open_files()
        if files is not None and not files.for_loops:
            raise out_of_files(f"function {name} cannot be called", files)
        return LoopExecutor(name, calls, threads=self.threads, new_loop=self.new_loop, new_turns=self.new_turns)

    def thread_executor(self, name: str, limit: int, losable: int) -> ThreadExecutor:
        return ThreadExecutor(name, limit, losable, threads=self.threads, clock=self.clock)
