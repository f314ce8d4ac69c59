"""Guard limits the calls of an author's `async def`, if the operator has configured it."""

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from udf_server.base.attempts import is_answered, limited
from udf_server.base.errors import CircuitOpen, InvalidConfig, RetryableError
from udf_server.base.fairness import FairQueue, current_party
from udf_server.base.functions import Function
from udf_server.guards.adaptive import AdaptiveLimit
from udf_server.guards.breaker import Breaker
from udf_server.guards.guard_metrics import GuardMetrics
from udf_server.guards.rates import Rate
from udf_server.guards.settings import GuardSettings

__all__ = ["Guard"]

log = logging.getLogger(__name__)

ADAPTIVE_MOST = 1_000
"""Maximum number of concurrent calls if `adaptive` is set without `max_concurrency`."""


class Guard:
    """The guards of one function. Waiting counts towards the row's deadline, and ends when the deadline passes.

    A guard counts a call as failed if it raises RetryableError, TimeoutError or OSError, or if its deadline cancels
    it. Any other exception concerns the row only. A call that is cancelled because its client is gone, or
    because a second call (`hedge-after`) has answered, does not count.
    """

    def __init__(
        self, key: str, settings: GuardSettings, metrics: GuardMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises InvalidConfig if the storage of rates cannot be created."""
        self._key, self._settings, self._metrics, self._clock = key, settings, metrics, clock
        self._adaptive = AdaptiveLimit(settings.max_concurrency or ADAPTIVE_MOST) if settings.adaptive else None
        self._breaker = (
            Breaker(settings.breaker_failures, settings.breaker_delay) if settings.breaker_failures else None
        )
        self._rate = (
            Rate(key, settings.rate, settings.rate_storage_variable, clock) if settings.rate is not None else None
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        """The loop whose calls are counted. If a blocked loop is replaced, its calls are not counted any more."""
        self._lock = threading.Lock()
        """Needed because a loop that was replaced may still run. It is held only for short operations."""
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()
        self._in_use = 0
        self._show()

    def wrap(self, function: Function) -> Function:
        """The function with guarded calls. Raises InvalidConfig unless it is `async def`."""
        if not asyncio.iscoroutinefunction(function.call):
            raise InvalidConfig(
                f"setting guards: function {self._key} is not `async def`; threads_per_function bounds its calls"
            )
        call = function.call

        @functools.wraps(call)
        async def guarded(*arguments: Any, **keywords: Any) -> Any:
            await self._enter()
            began = self._clock()
            went_well: bool | None = True
            try:
                return await limited(call(*arguments, **keywords))
            except asyncio.CancelledError:
                went_well = None if current_party.get().closed or is_answered.get()() else False
                raise
            except (RetryableError, TimeoutError, OSError):
                went_well = False
                raise
            finally:
                self._leave(went_well, self._clock() - began)

        guarded.overloaded = lambda: len(self._waiting) > 0  # type: ignore[attr-defined] # for hedges
        if self._rate is None:
            return replace(function, call=guarded, guarded=True)
        opens, closes = [self._rate.open, *function.opens], [*function.closes, self._rate.close]
        return replace(function, call=guarded, guarded=True, opens=opens, closes=closes)

    async def _enter(self) -> None:
        """Wait for a place and for the rate limit. Raises CircuitOpen."""
        future = self._take()
        if future is not None:
            try:
                await future
            except asyncio.CancelledError:
                # The place may have been assigned to it at the same moment.
                if future.done() and not future.cancelled():
                    self._give_back()
                raise
        try:
            if self._rate is not None:
                await self._rate.wait(self._metrics.rate_waited)
            # The breaker is asked last: after it allows the only test call, that call must be made.
            wait = self._breaker.ask(self._clock()) if self._breaker else 0.0
            if wait:
                self._metrics.circuit_refused()
                raise CircuitOpen(f"function {self._key}: too many calls in a row failed", retry_after=wait)
        except BaseException:
            self._give_back()
            raise

    def _take(self) -> "asyncio.Future[None] | None":
        """Take a place, or queue for one. Returns None, or a future that is done when a place is assigned."""
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._loop is not loop:
                self._loop, self._in_use, self._waiting = loop, 0, FairQueue()
            if self._in_use < self._limit() and not len(self._waiting):
                self._in_use += 1
                return None
            future: asyncio.Future[None] = loop.create_future()
            self._waiting.push(current_party.get(), future)
            self._admit()
            return future

    def _give_back(self) -> None:
        with self._lock:
            if self._loop is asyncio.get_running_loop():
                self._in_use -= 1
                self._admit()

    def _leave(self, went_well: bool | None, seconds: float) -> None:
        with self._lock:
            if self._loop is not asyncio.get_running_loop():
                return
            if went_well is not None:
                self._learn(went_well, seconds)
            self._in_use -= 1
            self._admit()
        self._show()

    def _learn(self, went_well: bool, seconds: float) -> None:
        """Count a call that has ended, while its place is still taken. Call with the lock held."""
        goal = self._settings.latency_goal
        if self._adaptive is not None:
            if went_well and (goal is None or seconds <= goal):
                self._adaptive.succeeded(self._in_use)
            else:
                self._adaptive.failed(self._in_use)
        if self._breaker is not None:
            if went_well:
                self._breaker.succeeded()
            elif self._breaker.failed(self._clock()):
                log.warning("circuit opened", extra={"function": self._key})

    def _limit(self) -> float:
        if self._adaptive is not None:
            return self._adaptive.limit
        return self._settings.max_concurrency or float("inf")

    def _admit(self) -> None:
        """Assign free places to waiting calls, fairly by caller, job and stream. Call with the lock held."""
        # A future that is done belongs to a row that was cancelled.
        while self._in_use < self._limit() and (found := self._waiting.pop(1.0, asyncio.Future.done)) is not None:
            self._in_use += 1
            found[1].set_result(None)

    def _show(self) -> None:
        self._metrics.show(self._limit(), closed=self._breaker is None or self._breaker.closed)
