"""Hedge sends a second call of an author's `async def` if the first one takes long, and takes the first answer."""

import asyncio
import collections
import functools
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Generic, ParamSpec, TypeVar

from udf_server.base.call_scope import current_scope, leave_scope
from udf_server.base.errors import RetryableError
from udf_server.declaring.functions import Function

__all__ = ["LEARN_CALLS", "Hedge"]

OVERLOAD_SECONDS = 1.0
"""After a sign of overload, nothing is sent a second time for this time."""
SAMPLES = 500
"""Number of durations from which the delay is learned."""
LEARN_CALLS = 50
"""The delay is computed again after this number of durations. Before that, nothing is sent a second time."""
LEARNED_QUANTILE = 0.95
MOST_SAVED = 100.0
"""What may be sent a second time at once after a long time in which nothing was."""


P = ParamSpec("P")
T = TypeVar("T")


class Hedge:
    """The hedges of one function: after what time second calls are sent, and how many. Safe to use from any thread.

    A hedge takes from the function's limits, as every call.
    """

    def __init__(
        self, after: float | None, share: float, count: Callable[[str], object], waiting: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`after` is the delay in seconds; None to learn it. `share` is the most hedges per call.

        `count` is called for each hedge that was sent, and when it has won or was wasted. `waiting` tells whether rows
        wait.
        """
        self.after, self._learns, self._share = after, after is None, share
        """`after` is None until it is learned."""
        self.count, self._waiting, self._clock = count, waiting, clock
        self._saved = 0.0
        """Number of hedges that may be sent now."""
        self._durations: collections.deque[float] = collections.deque(maxlen=SAMPLES)
        self._new = 0
        self._overloaded_until = 0.0
        self._lock = threading.Lock()

    def begun(self) -> None:
        """Count a call, which may not be a hedge. A call that waits for its limits in vain must not be counted."""
        with self._lock:
            self._saved = min(self._saved + self._share, MOST_SAVED)

    def ended(self, seconds: float) -> None:
        """Learn from the duration of a call, hedged or not."""
        if not self._learns:
            return
        with self._lock:
            self._durations.append(seconds)
            self._new += 1
            if self._new >= LEARN_CALLS:
                self._new = 0
                ordered = sorted(self._durations)
                self.after = ordered[int(LEARNED_QUANTILE * (len(ordered) - 1))]

    def failed(self, error: BaseException) -> None:
        """Note that a call has failed. A RetryableError, also that of an open circuit, is a sign of overload.

        After it no hedge is sent for the time for which it asks. A later sign does not shorten that.
        """
        if isinstance(error, RetryableError):
            until = self._clock() + max(OVERLOAD_SECONDS, error.retry_after or 0.0)
            with self._lock:
                self._overloaded_until = max(self._overloaded_until, until)

    def may_send(self) -> bool:
        """Take a hedge from those that may be sent now. Returns whether there was one: none while rows wait."""
        if self._clock() < self._overloaded_until or self._waiting():
            return False
        with self._lock:
            if self._saved < 1.0:
                return False
            self._saved -= 1.0
        return True

    def counted(self, function: Function) -> Function:
        """The function whose calls are counted when they begin, after what limits them has let them pass."""
        return replace(function, call=_counted(function.call))

    def wrap(self, function: Function) -> Function:
        """The function with hedged calls. It must be `async def`, and its calls must be `counted`."""
        return replace(function, call=self._hedged(function.call))

    def _hedged(self, call: Callable[P, Coroutine[None, None, T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(call)
        async def hedged(*arguments: P.args, **keywords: P.kwargs) -> T:
            return await self._race(functools.partial(call, *arguments, **keywords))

        return hedged

    async def _race(self, call: Callable[[], Coroutine[None, None, T]]) -> T:
        task = asyncio.current_task()
        assert task is not None
        loop, cancelling, began = asyncio.get_running_loop(), task.cancelling(), self._clock()
        race: _Race[T] = _Race(self, task, call)
        scope = current_scope.get()
        current_scope.set(raced := replace(scope, race=race))
        after = self.after
        timer = loop.call_later(after, race.start) if after is not None else None
        try:
            answer = await call()
            race.decided = True
            return answer
        except BaseException as error:
            if race.cancelled and isinstance(error, (asyncio.CancelledError, Exception)):
                # Libraries turn cancellation into errors of their own, such as a closed connection.
                race.cancelled = False
                if task.uncancel() > cancelling:
                    raise  # its deadline has passed at the same moment
                assert race.second is not None
                return race.second.result()
            if isinstance(error, asyncio.CancelledError):
                raise
            race.decided = isinstance(error, Exception)
            self.failed(error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if race.cancelled and task.cancelling() > cancelling:
                # The call has suppressed the cancellation, or has ended at the same moment.
                task.uncancel()
            race.close()
            leave_scope(raced, scope)
            self.ended(self._clock() - began)


def _counted(call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
    @functools.wraps(call)
    async def counted(*arguments: P.args, **keywords: P.kwargs) -> T:
        if (race := current_scope.get().race) is not None:
            race.begins()
        return await call(*arguments, **keywords)

    return counted


class _Race(Generic[T]):
    """A call and its hedge. Use it on the loop of the call."""

    def __init__(self, hedge: Hedge, task: "asyncio.Task[Any]", call: Callable[[], Coroutine[None, None, T]]) -> None:
        self._hedge, self._task, self._call = hedge, task, call
        self.second: asyncio.Task[T] | None = None
        self.won = self.cancelled = False
        """Whether the hedge was the first to answer; whether the first call was cancelled because of that."""
        self.decided = False
        """Whether one of the calls has given the outcome."""
        self._closed = False

    def begins(self) -> None:
        """The first call or its hedge begins."""
        if asyncio.current_task() is self._task:
            self._hedge.begun()

    def start(self) -> None:
        """Send the hedge, if that is allowed."""
        if not self._closed and self._hedge.may_send():
            self._hedge.count("sent")
            self.second = asyncio.get_running_loop().create_task(self._call())
            self.second.add_done_callback(self._answered)

    def _answered(self, second: "asyncio.Task[T]") -> None:
        error = None if second.cancelled() else second.exception()
        if error is not None:
            self._hedge.failed(error)
        if self._closed:
            return
        if error is None and not second.cancelled():
            self.won = self.cancelled = self.decided = True
            self._task.cancel()

    def close(self) -> None:
        """Cancel the hedge if it runs, and count it."""
        self._closed = True
        if self.second is not None:
            self.second.cancel()
            self._hedge.count("won" if self.won else "wasted")
        del self._task, self._call
