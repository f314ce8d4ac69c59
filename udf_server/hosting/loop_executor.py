"""LoopExecutor is the thread with the event loop of one `async` function. If it blocks, other functions continue.

The loop is uvloop's, with one of uvloop's timers for all callbacks of the same millisecond. uvloop gives up the
interpreter's lock twice for each of its timers: when it is due and when it is freed. Each time, another thread that
wants the lock may take it. Of 1,000 calls that wait for 10 ms, 100 are due in each millisecond.
"""

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar, TypeVarTuple, cast

import uvloop

from remote_udf.threads import THREADS, Threads
from udf_server.base.call_scope import runs
from udf_server.hosting.turns import DEFAULT_CALLS, Turns

__all__ = ["FunctionLoop", "LoopExecutor"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

CANCEL_SECONDS = 1.0
"""How long tasks left on an executor may take to clean up when the executor stops."""
STOP_SECONDS = 3.0
"""How long to wait for the thread of a stopped executor. A blocked loop never ends; other loops need little more than
CANCEL_SECONDS."""
SOON_SECONDS = 0.0005
"""uvloop rounds times to milliseconds, and calls back in its next iteration if no time is left."""
LONG_SECONDS = 86_400.0


class FunctionLoop(uvloop.Loop):
    """The event loop of a function. Callbacks of one millisecond are called in the order of their `call_later`."""

    def __init__(self) -> None:
        super().__init__()
        self._due: dict[int, tuple[dict[_LoopTimer, None], asyncio.TimerHandle]] = {}
        """The timers of each millisecond that has some, and uvloop's timer for them."""

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        # `call_at` comes here too.
        if not SOON_SECONDS < delay < LONG_SECONDS:
            return super().call_later(delay, callback, *args, context=context)
        when = self.time() + delay
        tick = round(when * 1000)
        due = self._due.get(tick)
        if due is None:
            due = self._due[tick] = {}, super().call_later(delay, self._call, tick)
        # A context without variables is false.
        own = contextvars.copy_context() if context is None else context
        timer = _LoopTimer(self, when, tick, callback, args, own)
        due[0][timer] = None
        return cast(asyncio.TimerHandle, timer)

    def forget(self, timer: "_LoopTimer") -> None:
        """Forget a timer that was cancelled before it was due."""
        due = self._due.get(timer.tick)
        if due is not None:
            due[0].pop(timer, None)
            if not due[0]:
                del self._due[timer.tick]
                due[1].cancel()

    def close(self) -> None:
        super().close()
        self._due.clear()

    def _call(self, tick: int) -> None:
        self._call_each(iter(self._due.pop(tick)[0]))

    def _call_each(self, timers: Iterator["_LoopTimer"]) -> None:
        try:
            for timer in timers:
                timer.call()
        except BaseException:
            # It ends `run_forever`. The others are called all the same, at the latest when the loop runs again.
            self.call_soon(self._call_each, timers)
            raise


class _LoopTimer:
    """Has the methods of an `asyncio.TimerHandle`, which takes twice as long to make."""

    __slots__ = ("__weakref__", "_args", "_callback", "_cancelled", "_context", "_loop", "_when", "tick")

    def __init__(
        self,
        loop: FunctionLoop,
        when: float,
        tick: int,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
    ) -> None:
        self._loop = loop
        self._when = when
        self.tick = tick
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self._context = context
        self._cancelled = False

    def when(self) -> float:
        return self._when

    def cancelled(self) -> bool:
        return self._cancelled

    def cancel(self) -> None:
        self._cancelled = True
        if self._taken()[0] is not None:
            self._loop.forget(self)

    def call(self) -> None:
        callback, args = self._taken()
        if callback is None:
            return  # cancelled by another one of the same millisecond
        try:
            self._context.run(callback, *args)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            self._loop.call_exception_handler(
                {"message": f"Exception in callback {callback!r}", "exception": error, "handle": self}
            )

    def _taken(self) -> tuple[Callable[..., object] | None, tuple[Any, ...]]:
        """What is to be called, which is then not kept: not until it would be due, nor by who keeps its own timer."""
        callback, args = self._callback, self._args
        self._callback, self._args = None, ()
        return callback, args


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
