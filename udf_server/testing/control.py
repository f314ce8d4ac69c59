"""What a test controls: time that only it moves, and faults of a function."""

import asyncio
import copy
import functools
import heapq
import inspect
import itertools
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import ParamSpec, TypeVar

from udf_server.aggregate.base import AggregateFunction
from udf_server.aggregate.declaration import Aggregate, declare_aggregate
from udf_server.base.errors import RetryableError
from udf_server.declaring.functions import Function

__all__ = ["FaultInjector", "ManualClock"]

SETTLING = 20
"""Iterations of the event loop after each step, so that what a timer starts has begun."""


class _ManualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    """A clock for `FunctionEnvironment`. Calling it returns the seconds that it was advanced.

    It moves the delays of merged calls and of their retries, and deadlines. A function that sleeps really sleeps.
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._order = itertools.count()
        self._timers: list[tuple[float, int, _ManualTimer]] = []

    def __call__(self) -> float:
        return self._now

    def later(self, seconds: float, callback: Callable[[], object]) -> _ManualTimer:
        """Call back once the clock has been advanced by this time. Returns an object with `cancel`."""
        timer = _ManualTimer(callback)
        heapq.heappush(self._timers, (self._now + seconds, next(self._order), timer))
        return timer

    async def advance(self, seconds: float) -> None:
        """Move the clock, and make all calls that are due meanwhile, in order."""
        await self._settle()
        until = self._now + seconds
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
                await self._settle()
        self._now = until

    async def _settle(self) -> None:
        for _ in range(SETTLING):
            await asyncio.sleep(0)


P = ParamSpec("P")
T = TypeVar("T")


class FaultInjector:
    """Wraps a function so that some of its calls are slow, fail or hang. The seed decides which ones.

    An injected error is a RetryableError.

    Args:
        seed: Seed of the random choice of calls.
        latency: Seconds by which a slow call is delayed.
        latency_rate: Share of slow calls, from 0 to 1.
        error_rate: Share of calls that fail, from 0 to 1.
        hang_rate: Share of calls that hang, from 0 to 1.
        hang_seconds: How long a call hangs. The default exceeds any usual deadline.
    """

    def __init__(
        self, seed: int, *, latency: float = 0.0, latency_rate: float = 1.0, error_rate: float = 0.0,
        hang_rate: float = 0.0, hang_seconds: float = 3600.0,
    ) -> None:  # fmt: skip
        self._random = random.Random(seed)
        self._latency, self._latency_rate = latency, latency_rate
        self._error_rate, self._hang_rate, self._hang_seconds = error_rate, hang_rate, hang_seconds
        self.injected = 0
        """Number of injected errors and hangs."""

    def wrap(self, function: Function | AggregateFunction | type[AggregateFunction]) -> Function:
        """Return a copy of the function with faults; the original is unchanged.

        For a classic aggregate function, a call is one of `accumulate`; for any other, it is a bundle.
        """
        if not isinstance(function, Function):
            function = declare_aggregate(function)
        if inspect.iscoroutinefunction(function.call):
            call = self._async(function.call)
        else:
            call = self._sync(function.call)
        if not isinstance(function, Aggregate):
            return replace(function, call=call)
        implementation = copy.copy(function.implementation)
        setattr(implementation, inspect.unwrap(function.call).__name__, call)
        return replace(function, call=call, implementation=implementation)

    def _fate(self) -> tuple[float, bool]:
        """How long to wait before the call, and whether it fails instead."""
        wait = self._latency if self._random.random() < self._latency_rate else 0.0
        hangs, fails = self._random.random() < self._hang_rate, self._random.random() < self._error_rate
        self.injected += hangs or fails
        return wait + (self._hang_seconds if hangs else 0.0), fails

    def _async(self, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        @functools.wraps(call)
        async def faulty(*arguments: P.args, **keywords: P.kwargs) -> T:
            wait, fails = self._fate()
            if wait:
                await asyncio.sleep(wait)
            if fails:
                raise RetryableError("injected fault")
            return await call(*arguments, **keywords)

        return faulty

    def _sync(self, call: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(call)
        def faulty(*arguments: P.args, **keywords: P.kwargs) -> T:
            wait, fails = self._fate()
            if wait:
                time.sleep(wait)
            if fails:
                raise RetryableError("injected fault")
            return call(*arguments, **keywords)

        return faulty
