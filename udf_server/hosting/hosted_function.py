"""HostedFunction is a function in a running server, with the executors that it runs on and the state of its hooks."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import Coroutine, Iterator
from typing import Protocol

from remote_udf.durations import format_seconds
from udf_server.base.errors import FunctionBlocked
from udf_server.base.failures import describe
from udf_server.base.open_files import are_exhausted, open_files, out_of_files
from udf_server.declaring.functions import Function
from udf_server.declaring.hooks import FunctionContext
from udf_server.declaring.instances import open_failed
from udf_server.hosting.executors import Executors, HostLimits
from udf_server.hosting.function_options import FunctionOptions
from udf_server.hosting.load import Load
from udf_server.hosting.loop_executor import LoopExecutor
from udf_server.hosting.thread_executor import ThreadExecutor
from udf_server.limits.hedge import Hedge
from udf_server.limits.limiter import Limiter
from udf_server.stores.opening import KeyValueStores, OpenedStore

__all__ = ["HostedFunction"]

log = logging.getLogger(__name__)

IDLE_SECONDS = 300.0
"""A function without hooks that no stream has used for this time gives back its threads and descriptors."""


ACTIVE_SECONDS = 1.0
"""A function without streams counts as active for this time: calls one after the other leave gaps."""


class Closing(Protocol):
    def close(self) -> None:
        """Stop what runs. Call when the server stops."""

    @property
    def crowded(self) -> bool:
        """Whether rows wait although nothing is idle."""

    def kept(self) -> str:
        """What is kept although no stream needs it; empty if nothing is."""


class HostedFunction:
    """One function of a running server.

    `async` code and the hooks run on the loop executor, which starts with the first stream, and ends with `rest`. Call
    the methods on the server's event loop, unless their docstring allows any thread.
    """

    def __init__(
        self, function: Function, limits: HostLimits, executors: Executors, stores: KeyValueStores, device: str
    ) -> None:  # fmt: skip
        """`stores` opens its key-value store, if it takes one. `device` is where models of the function run."""
        self._stores = stores
        self._store: OpenedStore | None = None
        """The key-value store, for the loop of the executor."""
        self.executors = executors
        self._device = device
        self.function = function
        self.spec = function.spec
        self.options = FunctionOptions(function)
        self._limits = limits
        self._loop_executor: LoopExecutor | None = None
        self._thread_executor: ThreadExecutor | None = None
        self._lost_calls = 0
        self._users = 0
        """Number of streams, and of calls that go on without their stream."""
        self._left = executors.clock()
        """When the last of them has ended."""
        self._opened = False
        self._opening = asyncio.Lock()
        self.batching: Closing | None = None
        """What merges calls of streams, once a stream has needed it."""
        self.hedge: Hedge | None = None
        """The hedges of its calls, once a stream has needed them."""
        self.limiter: Limiter | None = None
        """What budgets need that limit its calls, once a stream has needed it, unless it has a guard."""

    @property
    def running_executor(self) -> LoopExecutor | None:
        """The loop executor, or None if it has not started. Safe to read from any thread."""
        return self._loop_executor

    @property
    def loop_executor(self) -> LoopExecutor:
        if self._loop_executor is None:
            self._loop_executor = self.executors.loop_executor(self.spec.key, self._limits.calls)
        return self._loop_executor

    @property
    def thread_executor(self) -> ThreadExecutor:
        if self._thread_executor is None:
            limits = self._limits
            self._thread_executor = self.executors.thread_executor(self.spec.key, limits.threads, limits.lost_calls)
        return self._thread_executor

    @property
    def active(self) -> bool:
        """Whether it has streams, or calls that go on without theirs, or had them a second ago. Safe on any thread."""
        return self._users > 0 or self.executors.clock() - self._left < ACTIVE_SECONDS

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keep the threads and the event loop of the function within the block."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            self._left = self.executors.clock()

    def rest(self, now: float) -> bool:
        """Give back the threads and the event loop if nothing has used them for IDLE_SECONDS. They start again on use.

        What hooks have opened belongs to the loop, so functions with hooks keep it. So do those with own tasks on it.

        Returns:
            Whether it had any.
        """
        held = [executor for executor in (self._loop_executor, self._thread_executor) if executor is not None]
        if not held or self._users or now - self._left < IDLE_SECONDS or self._opens or self._closes:
            return False
        if self.lost_calls or (self._loop_executor is not None and self._loop_executor.has_tasks):
            return False
        if self.batching is not None and self.batching.kept():
            return False
        self._loop_executor = self._thread_executor = None
        for executor in held:
            executor.stop()
        return True

    def adjust(self, load: Load) -> None:
        """Adapt the number of threads to the load of this process. Safe to call from any thread."""
        threads = self._thread_executor
        if threads is not None:
            threads.adjust(load)

    @property
    def waiting(self) -> int:
        """Number of workers that wait for a turn on the loop or for a thread."""
        loop, threads = self._loop_executor, self._thread_executor
        return (loop.turns.waiting if loop else 0) + (threads.waiting if threads else 0)

    @property
    def crowded(self) -> bool:
        """Whether calls or rows wait because all that could serve them is busy."""
        return self.waiting > 0 or (self.batching is not None and self.batching.crowded)

    @property
    def threads_allowed(self) -> int:
        """Number of threads that may run its calls now; 0 if it has no threads."""
        return self._thread_executor.allowed if self._thread_executor else 0

    @property
    def lost_calls(self) -> int:
        """Number of calls that were given up and have not returned."""
        return self._lost_calls + (self._thread_executor.lost if self._thread_executor else 0)

    def write_off_call(self) -> None:
        """Count a call on the loop executor that does not return. Raises FunctionBlocked if there are too many."""
        if self._lost_calls >= self._limits.lost_calls:
            raise FunctionBlocked(
                f"{self._lost_calls} calls of function {self.spec.key} have not returned; further calls are "
                "rejected until the server is restarted"
            )
        self._lost_calls += 1
        log.warning("call does not return", extra={"function": self.spec.key, "lost_calls": self._lost_calls})

    def replace_loop_executor(self, stuck: LoopExecutor) -> LoopExecutor:
        """Replace an executor whose loop is blocked. Await `open` again afterwards.

        Raises FunctionBlocked if too many executors were replaced.
        """
        if self._loop_executor is stuck:
            self.write_off_call()
            stuck.stop()
            # Resources that the hooks opened belong to the old loop. Without descriptors for a new one, the next stream
            # asks again.
            self._loop_executor, self._opened, self._store = None, False, None
        return self.loop_executor

    async def open(self) -> None:
        """Run the function's `open` hooks unless they have run; those of a class for each of its instances, in turn.

        Raises StreamError OPEN_FAILED if a hook fails or takes too long, or OVERLOADED if there are too few file
        descriptors. The next stream then tries again.
        """
        if self._opened or not self._opens:
            self._opened = True
            return
        async with self._opening:
            if self._opened:
                return
            executor, limit = self.loop_executor, self._limits.open_seconds * (self._own_instances or 1)
            try:
                error = await _run_hooks(executor, self._open(), limit)
            except TimeoutError:
                # This code cannot distinguish a hook that waits from one that blocks its loop.
                self.replace_loop_executor(executor)
                raise open_failed(self.spec.key, f"not done after {format_seconds(limit)}") from None
            if error is not None and are_exhausted(error):
                raise out_of_files(f"function {self.spec.key}: open failed", open_files()) from error
            if error is not None:
                raise open_failed(self.spec.key, describe(error), error) from error
            self._opened = True

    @property
    def _own_instances(self) -> int:
        """The number of objects of a class of which each call has one for itself; 0 if all calls share one."""
        merging = self.options.merging if self.function.instances is not None else None
        return 0 if merging is None else merging.instances

    @property
    def _opens(self) -> bool:
        instances = self.function.instances
        return bool(self.function.opens) or (instances is not None and (instances.has_hooks or self._own_instances > 0))

    async def _open(self) -> None:
        spec, own = self.spec, self._own_instances
        context = FunctionContext(spec.name, spec.version, self._device, instances=own or 1)
        if self.function.durable_store:
            self._stores.require_durable(spec.key)
        if self.function.takes_store:
            await self._close_store()  # of hooks that have failed
            self._store = await self._stores.open(spec.key)
            context = dataclasses.replace(context, store=self._store.store)
        if self.function.instances is not None:
            await self.function.instances.open(
                context, own=own > 0, threads=self.executors.threads, clock=self.executors.clock,
                seconds=self._limits.open_seconds,
            )  # fmt: skip
        await self.function.open(context)

    @property
    def _closes(self) -> bool:
        instances = self.function.instances
        has_hooks = bool(self.function.closes) or (instances is not None and instances.has_hooks)
        return has_hooks or self._store is not None

    async def _close(self) -> None:
        try:
            await self.function.close()
        finally:
            await self._close_store()

    async def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def close(self) -> None:
        """Run the `close` hooks if the function was opened, stop the executors, and wait for the loop's thread."""
        try:
            if self._opened and self._closes:
                error = await _run_hooks(self.loop_executor, self._close(), self._limits.close_seconds)
                if error is not None:
                    log.error("close hook failed", exc_info=error, extra={"function": self.spec.key})
        except TimeoutError:
            log.error("close hook timed out", extra={"function": self.spec.key})
        finally:
            if self.batching is not None:
                self.batching.close()
            if self._thread_executor is not None:
                self._thread_executor.stop()
            if self._loop_executor is not None:
                self._loop_executor.stop()
                await self._loop_executor.ended()


async def _run_hooks(executor: LoopExecutor, hooks: Coroutine[None, None, None], limit: float) -> BaseException | None:
    """Run the hooks on an executor. Returns what they raise: SystemExit must not end it. Raises TimeoutError."""

    async def guarded() -> BaseException | None:
        try:
            await hooks
        except BaseException as error:
            return error
        return None

    # Before Python 3.12, wait_for loses a cancellation at the moment its future is done: the stream would continue.
    async with asyncio.timeout(limit):
        return await asyncio.wrap_future(executor.run(guarded()))
