"""SimulatedLoop is an asyncio event loop on virtual time; several of them, of several processes, share one scheduler.

`looptime` and `async-solipsism` advance the time of one loop. Here the loops of many processes must interleave
with each other and with threads, and a process must be able to freeze and to end without any clean-up. That takes a
loop that is driven from outside, so that there is no selector and nothing to patch.
"""

import asyncio
import contextvars
import weakref
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.scheduler import Process
from tests.simulation.threads import SimulatedThreads

__all__ = ["SimulatedLoop"]

STEP_SECONDS = 10e-6
"""What an iteration of the loop takes."""
FEW = 50


class _Task(asyncio.Task[Any]):
    """A task whose hash is its number in the world, so that a set of tasks has the same order in every run."""

    number: int

    def __new__(cls, coroutine: Coroutine[Any, Any, Any], *, loop: "SimulatedLoop", **_: Any) -> "_Task":
        task = super().__new__(cls)
        task.number = loop.next_number()
        return task

    def __hash__(self) -> int:
        return self.number


class _Handle(asyncio.TimerHandle):
    """A callback of a loop, with less around it than asyncio's own."""

    __slots__ = ()

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], context: contextvars.Context | None
    ) -> None:
        self._callback, self._args, self._cancelled = callback, args, False
        self._context = contextvars.copy_context() if context is None else context

    def cancel(self) -> None:
        self._cancelled = True
        self._args = ()


class SimulatedLoop(asyncio.AbstractEventLoop):
    """The loop of one process. Callbacks run in the order in which they were scheduled, as in any asyncio loop."""

    def __init__(self, process: Process, threads: SimulatedThreads, *, running: bool = False) -> None:
        """A `running` loop needs no thread that calls `run_forever`."""
        self.process = process
        self._scheduler = process.scheduler
        self._threads = threads
        self._ready: deque[_Handle] = deque()
        self._running, self._closed, self._stopping = running, False, False
        self._step_due = False
        self._busy_until = 0.0
        self._posted_until = 0.0
        self._stopped = threads.event()
        self.watch: Callable[[], object] | None = None
        """Called after each iteration."""
        self._tasks: list[weakref.ref[_Task]] = []
        self._most_tasks = FEW
        """Number of tasks at which those that are done are forgotten."""

    def time(self) -> float:
        return self._scheduler.clock()

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def block(self, seconds: float) -> None:
        """Run nothing for this time, as if a callback computed."""
        self._busy_until = max(self._busy_until, self._scheduler.now) + seconds

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, context)
        if not self._closed:
            self._ready.append(handle)
            if not self._step_due:
                self._schedule_step()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        if events._get_running_loop() is self:
            return self.call_soon(callback, *args, context=context)
        handle = _Handle(callback, args, context)
        # What one thread posts arrives in order, and later than at once.
        due = max(self._posted_until, self._scheduler.now + self.process.switch_seconds())
        self._posted_until = due
        self._scheduler.at(due, self.process, self._arrive, handle)
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Handle(callback, args, context)
        self.process.after(max(delay, 0.0), self._arrive, handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coroutine: Any, **keywords: Any) -> "asyncio.Task[Any]":
        task = _Task(coroutine, loop=self, **keywords)
        if len(self._tasks) >= self._most_tasks:
            self._tasks = [weakref.ref(task) for task in self.tasks()]
            self._most_tasks = 2 * len(self._tasks) + FEW
        self._tasks.append(weakref.ref(task))
        return task

    def next_number(self) -> int:
        """A number that nothing else in this world has."""
        return self._scheduler.next_number()

    def tasks(self) -> list["_Task"]:
        """The tasks of this loop that are not done. `asyncio.all_tasks` looks at those of every world so far."""
        tasks = (reference() for reference in self._tasks)
        return [task for task in tasks if task is not None and not task.done()]

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        future = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                self.call_soon_threadsafe(_settle, future, None, error)
            else:
                self.call_soon_threadsafe(_settle, future, result, None)

        self._threads.start("executor", work)
        return future

    def run_forever(self) -> None:
        """Block the calling simulated thread until `stop`. The scheduler runs the callbacks."""
        self._running = True
        self._stopped.clear()
        self._schedule_step()
        try:
            if not self._stopping:
                self._stopped.wait()
        finally:
            self._running = self._stopping = False

    def run_until_complete(self, future: Any) -> Any:
        future = asyncio.ensure_future(future, loop=self)
        if not future.done():
            future.add_done_callback(lambda _: self.stop())
            self.run_forever()
        return future.result()

    def stop(self) -> None:
        self._stopping = True
        self._stopped.set()

    def close(self) -> None:
        self._closed = True
        self._ready.clear()

    async def shutdown_asyncgens(self) -> None:
        pass

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Whatever asyncio cannot raise anywhere is a defect, unless the process has ended."""
        if self.process.alive:
            error = context.get("exception") or RuntimeError(context["message"])
            self._scheduler.fail(AssertionError(f"{self.process.name}: {context['message']}: {error!r}"))

    def _arrive(self, handle: _Handle) -> None:
        """Add what a timer or another thread has for this loop. If the loop is idle, it runs now."""
        if handle._cancelled or self._closed:
            return
        self._ready.append(handle)
        if self._running and not self._step_due:
            self._step()

    def _schedule_step(self) -> None:
        if not self._step_due and self._running and self._ready:
            self._step_due = True
            self._scheduler.at(self._busy_until, self.process, self._step)

    def _step(self) -> None:
        """Run iterations until nothing is ready or something else comes first."""
        self._step_due = False
        if not self._running:
            return
        if self._busy_until > self._scheduler.now:
            self._schedule_step()
            return
        events._set_running_loop(self)
        try:
            self._iterate()
            while self._ready and self._running and self.process.alive and self._scheduler.pass_to(self._busy_until):
                self._iterate()
        finally:
            events._set_running_loop(None)
        self._schedule_step()

    def _iterate(self) -> None:
        self._busy_until = self._scheduler.now + STEP_SECONDS * self.process.slow
        # No step is scheduled meanwhile, because what is ready afterwards follows at once, or is scheduled then.
        self._step_due = True
        try:
            ready, process = self._ready, self.process
            for _ in range(len(ready)):
                if not ready or not process.alive:
                    break
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:
                    self.call_exception_handler({"message": f"in {handle._callback}", "exception": error})
        finally:
            self._step_due = False
        if self.watch is not None:
            self.watch()


def _settle(future: "asyncio.Future[Any]", result: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
