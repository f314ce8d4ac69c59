"""Guard: stands between a runner and the author's `async def`, if the operator wants that."""

import asyncio
import collections
import functools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from udf_server.errors import CircuitOpen, InvalidConfig, RetryableError
from udf_server.functions import Function
from udf_server.guards.adaptive import AdaptiveLimit
from udf_server.guards.breaker import Breaker
from udf_server.guards.rates import Rate
from udf_server.guards.settings import GuardSettings
from udf_server.metrics import GuardMetrics

__all__ = ["Guard"]

log = logging.getLogger(__name__)

ADAPTIVE_MOST = 1_000
"""Calls at once with `adaptive` alone."""


class Guard:
    """The guards of one function. Waiting counts towards the row's deadline, which ends it.

    A call fails, for a guard, with RetryableError, TimeoutError or OSError, or when its deadline ends it. Any other
    exception is the row's own.
    """

    def __init__(
        self, key: str, settings: GuardSettings, metrics: GuardMetrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises InvalidConfig if the storage of rates cannot be made."""
        self._key, self._settings, self._metrics, self._clock = key, settings, metrics, clock
        self._adaptive = AdaptiveLimit(settings.max_concurrency or ADAPTIVE_MOST) if settings.adaptive else None
        self._breaker = (
            Breaker(settings.breaker_failures, settings.breaker_delay) if settings.breaker_failures else None
        )
        self._rate = Rate(key, settings.rate, settings.rate_storage_variable) if settings.rate is not None else None
        # A loop that blocks is replaced by another, so the books are no loop's.
        self._lock = threading.Lock()
        self._waiting: collections.deque[asyncio.Future[None]] = collections.deque()
        self._in_use = 0
        self._show()

    def wrap(self, function: Function) -> Function:
        """The function with its calls guarded. Raises InvalidConfig for one that is not `async def`, a call per row."""
        if not asyncio.iscoroutinefunction(function.call):
            raise InvalidConfig(
                f"setting guards: function {self._key} is not `async def`; threads_per_function bounds its calls"
            )
        call = function.call

        @functools.wraps(call)
        async def guarded(*arguments: Any, **keywords: Any) -> Any:
            await self._enter()
            began, went_well = self._clock(), True
            try:
                return await call(*arguments, **keywords)
            except (RetryableError, TimeoutError, OSError, asyncio.CancelledError):
                went_well = False
                raise
            finally:
                self._leave(went_well, self._clock() - began)

        if self._rate is None:
            return replace(function, call=guarded)
        opens, closes = [self._rate.open, *function.opens], [*function.closes, self._rate.close]
        return replace(function, call=guarded, opens=opens, closes=closes)

    async def _enter(self) -> None:
        """Waits for a place and for the rate. Raises CircuitOpen."""
        while not self._take():
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            with self._lock:
                self._waiting.append(future)
                if self._in_use < self._limit():
                    self._wake()
            try:
                await future
            except asyncio.CancelledError:
                with self._lock:
                    if future in self._waiting:
                        self._waiting.remove(future)
                    else:
                        self._wake()
                raise
        try:
            if self._rate is not None:
                await self._rate.wait(self._metrics.rate_waited)
            # Last, since the only call that probes must be made.
            wait = self._breaker.ask(self._clock()) if self._breaker else 0.0
            if wait:
                self._metrics.circuit_refused()
                raise CircuitOpen(f"function {self._key}: too many calls in a row failed", retry_after=wait)
        except BaseException:
            with self._lock:
                self._in_use -= 1
                self._wake()
            raise

    def _take(self) -> bool:
        with self._lock:
            if self._in_use >= self._limit():
                return False
            self._in_use += 1
            return True

    def _leave(self, went_well: bool, seconds: float) -> None:
        goal = self._settings.latency_goal
        with self._lock:
            if self._adaptive is not None:
                if went_well and (goal is None or seconds <= goal):
                    self._adaptive.succeeded(self._in_use)
                else:
                    self._adaptive.failed(self._in_use)
            self._in_use -= 1
            while self._waiting and self._in_use + 1 <= self._limit():
                self._wake()
                break
            if self._breaker is not None:
                if went_well:
                    self._breaker.succeeded()
                elif self._breaker.failed(self._clock()):
                    log.warning("circuit opened", extra={"function": self._key})
        self._show()

    def _limit(self) -> float:
        if self._adaptive is not None:
            return self._adaptive.limit
        return self._settings.max_concurrency or float("inf")

    def _wake(self) -> None:
        """Lets the one that has waited longest look again."""
        while self._waiting:
            future = self._waiting.popleft()
            try:
                future.get_loop().call_soon_threadsafe(_settle, future)
            except RuntimeError:
                continue  # of a loop that is gone
            return

    def _show(self) -> None:
        self._metrics.show(self._limit(), closed=self._breaker is None or self._breaker.closed)


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
