"""LoopExecutor is the thread with the event loop of one `async` function. If it blocks, other functions continue."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TypeVar, TypeVarTuple

from remote_udf.threads import THREADS, Threads
from udf_server.base.call_scope import runs
from udf_server.hosting.function_loop import FunctionLoop
from udf_server.hosting.turns import DEFAULT_CALLS, Turns

__all__ = ["LoopExecutor"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CANCEL_SECONDS = 1.0
"""How long tasks left on an executor may take to clean up when the executor stops."""
STOP_SECONDS = 3.0
"""How long to wait for the thread of a stopped executor. A blocked loop never ends; other loops need little more than
CANCEL_SECONDS."""


class LoopExecutor:
    """A daemon thread that runs an event loop."""

    def __init__(
        self,
        name: str,
        calls: int = DEFAULT_CALLS,
        *,
        threads: Threads = THREADS,
        new_loop: Callable[[], asyncio.AbstractEventLoop] = FunctionLoop,
        new_turns: Callable[[int], Turns] = Turns,
    ) -> None:
        """`calls` is the maximum number of rows, or of batches of vectorized functions, in flight."""
        self.turns = new_turns(calls)
        """Use it only in code that runs on the loop."""
        self._function = name
        self._loop = new_loop()
        self._stopped = False
        self._ended: Future[None] = Future()
        try:
            self._thread = threads.start(f"loop-{name}", self._run)
        except BaseException:
            self._loop.close()
            raise

    def _run(self) -> None:
        runs(self._function)
        asyncio.set_event_loop(self._loop)
        try:
            while not self._stopped:
                try:
                    self._loop.run_forever()
                except BaseException:
                    # A task of the author's raised SystemExit or a similar exception, which asyncio does not catch.
                    log.exception("event loop continues after an exception", extra={"function": self._function})
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_SECONDS))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            self._ended.set_result(None)

    @property
    def has_tasks(self) -> bool:
        """Whether a task is left on the loop, such as one that the author has started. Safe to call from any thread."""
        return bool(asyncio.all_tasks(self._loop))

    @property
    def thread_id(self) -> int:
        """Identifier of the thread that runs the loop; 0 before the thread runs."""
        return self._thread.ident or 0

    @property
    def native_id(self) -> int:
        """The identifier that the kernel gives the thread; 0 before the thread runs."""
        return self._thread.native_id or 0

    def post(self, callback: Callable[[*Ts], object], *arguments: *Ts) -> None:
        """Schedule the callback on the loop. Safe to call from any thread. Ignored after the executor has stopped."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def run(self, coroutine: Coroutine[None, None, T]) -> "Future[T]":
        """Run the coroutine on the loop. Call it from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def stop(self) -> None:
        """End the thread after the callbacks that are ready have run. If the loop is blocked, its thread remains."""
        self._stopped = True
        self.post(self._loop.stop)

    async def ended(self) -> None:
        """Wait on another loop until the thread of a stopped executor has ended, at most STOP_SECONDS.

        If the process exits while the thread still runs, the interpreter ends the thread wherever it is. If that is in
        C++ code, such as Arrow's, the process aborts.
        """
        await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=STOP_SECONDS)
