"""Hedge sends a second call of an author's `async def` if the first one takes long, and takes the first answer."""

import asyncio
import collections
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

from udf_server.base.attempts import is_answered
from udf_server.base.errors import RetryableError
from udf_server.base.functions import Function

__all__ = ["Hedge", "HedgeCounter"]

OVERLOAD_SECONDS = 1.0
"""After a call that asks for a retry, no hedge is sent for this time."""
SAMPLES = 500
"""Number of calls from whose durations the delay of hedges is learned."""
LEARN_CALLS = 50
"""The delay is computed again after this number of calls. Before that, no hedge is sent."""
LEARNED_QUANTILE = 0.95
MOST_SAVED = 100.0
"""Hedges that may be sent at once after many calls without hedges."""


class HedgeCounter(Protocol):
    """Counts hedges by outcome."""

    def __call__(self, outcome: str) -> object:
        """Count a hedge that was sent, or that has won or was wasted."""


class Hedge:
    """The hedges of one function. A hedge goes through the function's guard, as every call."""

    def __init__(
        self, after: float | None, share: float, count: HedgeCounter, waiting: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`after` is the delay of hedges in seconds; None to learn it. `waiting` counts rows that wait for a turn."""
        self._after, self._learns, self._share = after, after is None, share
        self._count, self._waiting, self._clock = count, waiting, clock
        self._guard_waits: Callable[[], bool] = lambda: False
        """Whether calls wait for the function's guard."""
        self._saved = 0.0
        """Number of hedges that may be sent now."""
        self._durations: collections.deque[float] = collections.deque(maxlen=SAMPLES)
        self._new = 0
        self._overloaded_until = 0.0
        self._lock = threading.Lock()
        """Needed because a loop that was replaced may still run."""

    def wrap(self, function: Function) -> Function:
        """The function with hedged calls. It must be `async def`."""
        call = function.call
        self._guard_waits = getattr(call, "overloaded", self._guard_waits)

        @functools.wraps(call)
        async def hedged(*arguments: Any, **keywords: Any) -> Any:
            return await self._race(functools.partial(call, *arguments, **keywords))

        return replace(function, call=hedged)

    async def _race(self, call: Callable[[], Any]) -> Any:
        task = asyncio.current_task()
        assert task is not None
        loop, cancelling, began = asyncio.get_running_loop(), task.cancelling(), self._clock()
        with self._lock:
            self._saved = min(self._saved + self._share, MOST_SAVED)
        race = _Race(self, task, call)
        token = is_answered.set(race.is_answered)
        timer = loop.call_later(self._after, race.start) if self._after is not None else None
        try:
            answer = await call()
            race.answered = True
            return answer
        except asyncio.CancelledError:
            if not race.cancelled:
                raise
            race.cancelled = False
            if task.uncancel() > cancelling:
                raise  # its deadline has passed at the same moment
            assert race.second is not None
            return race.second.result()
        except BaseException as error:
            self.failed(error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if race.cancelled and task.cancelling() > cancelling:
                # The call has suppressed the cancellation, or has ended at the same moment.
                task.uncancel()
            race.close()
            is_answered.reset(token)
            if self._learns:
                self._learn(self._clock() - began)

    def may_send(self) -> bool:
        """Take a hedge from those that may be sent now. Returns whether there was one."""
        if self._clock() < self._overloaded_until or self._waiting() > 0 or self._guard_waits():
            return False
        with self._lock:
            if self._saved < 1.0:
                return False
            self._saved -= 1.0
        return True

    def failed(self, error: BaseException) -> None:
        """Note that a call has failed. A RetryableError, also that of an open circuit, is a sign of overload."""
        if isinstance(error, RetryableError):
            self._overloaded_until = self._clock() + max(OVERLOAD_SECONDS, error.retry_after or 0.0)

    def count(self, outcome: str) -> None:
        self._count(outcome)

    def _learn(self, seconds: float) -> None:
        with self._lock:
            self._durations.append(seconds)
            self._new += 1
            if self._new >= LEARN_CALLS:
                self._new = 0
                ordered = sorted(self._durations)
                self._after = ordered[int(LEARNED_QUANTILE * (len(ordered) - 1))]


class _Race:
    """A call and its hedge. Use it on the loop of the call."""

    def __init__(self, hedge: Hedge, task: "asyncio.Task[Any]", call: Callable[[], Any]) -> None:
        self._hedge, self._task, self._call = hedge, task, call
        self.second: asyncio.Task[Any] | None = None
        self.won = self.cancelled = False
        """Whether the hedge was the first to answer; whether the first call was cancelled because of that."""
        self.answered = False
        self._closed = False

    def is_answered(self) -> bool:
        return self.answered

    def start(self) -> None:
        """Send the hedge, if that is allowed."""
        if not self._closed and self._hedge.may_send():
            self._hedge.count("sent")
            self.second = asyncio.get_running_loop().create_task(self._call())
            self.second.add_done_callback(self._answered)

    def _answered(self, second: "asyncio.Task[Any]") -> None:
        error = None if second.cancelled() else second.exception()
        if error is not None:
            self._hedge.failed(error)
        if self._closed:
            return
        if error is None and not second.cancelled():
            self.won = self.cancelled = self.answered = True
            self._task.cancel()

    def close(self) -> None:
        """Cancel the hedge if it runs, and count it."""
        self._closed = True
        if self.second is not None:
            self.second.cancel()
            self._hedge.count("won" if self.won else "wasted")
        del self._task, self._call
