"""Instances are the objects of a function that is a class. A model that is not thread-safe needs one for each call."""

import asyncio
import collections
import functools
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

from remote_udf.errors import ErrorCode, ErrorKind, StreamError, capped
from remote_udf.threads import THREADS, Threads
from udf_server.base.call_scope import current_scope
from udf_server.base.failures import describe, traceback_of
from udf_server.declaring.annotations import AuthorCode
from udf_server.declaring.hooks import FunctionContext, Hook, close_all, hooks_of, open_all

__all__ = ["Instance", "Instances", "open_failed"]

log = logging.getLogger(__name__)

POLL_SECONDS = 0.25
"""How often a call that waits for an object looks at the clock, which a test may move."""


@dataclass(frozen=True, eq=False)
class Instance:
    """One object: its `eval`, `open` and `close`."""

    call: AuthorCode
    opens: list[Hook]
    closes: list[Hook]

    @classmethod
    def of(cls, made: Any, where: str) -> "Instance":
        """Raises DeclarationError, whose message begins with `where`."""
        return cls(made.eval, hooks_of(made, "open", where), hooks_of(made, "close", where))


class Instances:
    """The objects of one function. All calls share the first one, unless `open` was told to have several.

    With several, each call has an object for itself. If a call does not return before its deadline, its object
    is written off and another one is opened in its place. The object is closed when that call returns.
    """

    def __init__(self, first: Instance, make: Callable[[], Instance]) -> None:
        """`make` returns another object that is not open."""
        self._first, self._make = first, make
        self._own = False
        """Whether each call has an object for itself."""
        self._free: collections.deque[Instance] = collections.deque()
        self._used: dict[Instance, tuple[int, float]] = {}
        """The objects with a call: their numbers, and the deadlines of the calls."""
        self._numbers: dict[Instance, int] = {}
        """The numbers of the objects that are open and not written off."""
        self._vacant: set[int] = set()
        """The numbers of objects that were written off and are not being replaced."""
        self._changed = THREADS.condition()

    @property
    def has_hooks(self) -> bool:
        """Whether the class has `open` or `close`."""
        return bool(self._first.opens or self._first.closes)

    @property
    def opens(self) -> list[Hook]:
        """The open hooks of the class."""
        return self._first.opens

    @property
    def caller(self) -> AuthorCode:
        """The function that calls an object, with the signature of its `eval`."""

        @functools.wraps(self._first.call)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not self._own:
                return self._first.call(*arguments, **keywords)
            instance = self._take()
            try:
                return instance.call(*arguments, **keywords)
            finally:
                self._give(instance)

        return call

    async def open(
        self, context: FunctionContext, *, own: bool, threads: Threads = THREADS,
        clock: Callable[[], float] = time.monotonic, seconds: float = 600.0,
    ) -> None:  # fmt: skip
        """Open `context.instances` objects, one after the other, so that the peak of memory is that of one loading.

        If one of them fails, those that were opened are closed. Call it on the loop on which hooks run.

        Args:
            context: What the first object gets.
            own: Whether each call has an object for itself. Otherwise there is one.
            threads: What calls wait on.
            clock: The clock of deadlines.
            seconds: How long opening an object in place of another may take.
        """
        self._context, self._clock, self._seconds = context, clock, seconds
        self._loop = asyncio.get_running_loop()
        self._changed = threads.condition()
        self._free.clear()
        self._used.clear()
        self._numbers.clear()
        self._vacant.clear()
        try:
            for number in range(context.instances):
                instance = self._make() if number else self._first
                await open_all(instance.opens, replace(context, instance=number))
                self._numbers[instance] = number
        except BaseException:
            if context.instances > 1:
                await self.close()
            raise
        self._free.extend(self._numbers)
        self._own = own

    async def close(self) -> None:
        """Close every object that is open. The first exception is raised after the last object."""
        self._own = False
        instances, self._numbers = list(self._numbers), {}
        await close_all([hook for instance in instances for hook in instance.closes])

    def _take(self) -> Instance:
        """An object that has no call. Opens one if a call has not returned. Raises TimeoutError or StreamError."""
        deadline = current_scope.get().deadline
        with self._changed:
            while not self._free:
                now = self._clock()
                if now >= deadline:
                    raise TimeoutError(f"all {self._context.instances} instances were busy until the call's deadline")
                lost = next((each for each, (_, until) in self._used.items() if now > until), None)
                if lost is not None:
                    number, _ = self._used.pop(lost)
                    self._numbers.pop(lost, None)
                    self._vacant.add(number)
                if self._vacant:
                    vacant = self._vacant.pop()
                    break
                soonest = min([deadline, *(until for _, until in self._used.values())])
                self._changed.wait(min(max(soonest - now, 0.001), POLL_SECONDS))
            else:
                instance = self._free.pop()
                self._used[instance] = self._numbers[instance], deadline
                return instance
        return self._opened(vacant, deadline)

    def _opened(self, number: int, deadline: float) -> Instance:
        """Open an object in place of one that was written off, and take it."""
        log.warning(
            "an object is opened in place of one whose call does not return",
            extra={"function": f"{self._context.function}@{self._context.version}", "instance": number},
        )
        context = replace(self._context, instance=number)
        try:
            instance = self._make()
            self._run(open_all(instance.opens, context))
        except BaseException as error:
            with self._changed:
                self._vacant.add(number)
                self._changed.notify()
            what = f"an object in place of one whose call did not return: {describe(error)}"
            raise open_failed(f"{context.function}@{context.version}", what, error) from error
        with self._changed:
            self._numbers[instance] = number
            self._used[instance] = number, deadline
        return instance

    def _run(self, hooks: Coroutine[None, None, None]) -> None:
        try:
            ended = asyncio.run_coroutine_threadsafe(hooks, self._loop)
        except RuntimeError:  # the function was closed meanwhile
            hooks.close()
            raise
        try:
            ended.result(self._seconds)
        except TimeoutError:
            ended.cancel()
            raise

    def _give(self, instance: Instance) -> None:
        with self._changed:
            if self._used.pop(instance, None) is not None:
                self._free.append(instance)
                self._changed.notify()
                return
        if instance.closes:
            try:
                self._run(close_all(instance.closes))
            except Exception:
                log.exception("close hook failed", extra={"function": self._context.function})


def open_failed(key: str, why: str, error: BaseException | None = None) -> StreamError:
    """What a stream gets if a hook of the function fails."""
    traceback = "" if error is None else capped(traceback_of(error))
    message = f"function {key}: open failed: {why}"
    return StreamError(ErrorKind.USER, ErrorCode.OPEN_FAILED, message, traceback=traceback, retryable=True)
