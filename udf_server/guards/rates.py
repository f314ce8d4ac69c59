"""Rate limits the calls per time of one function: in memory, or, with `limits`, in a Redis for all servers."""

import asyncio
import collections
import os
import time
from collections.abc import Callable
from typing import Any

from limits import RateLimitItem
from limits.aio.strategies import MovingWindowRateLimiter
from limits.storage import storage_from_string

from udf_server.base.errors import InvalidConfig, RetryableError
from udf_server.base.fairness import FairQueue, current_party

__all__ = ["MovingWindow", "Rate"]

PAUSE_SECONDS = (0.01, 1.0)
"""Shortest and longest time after which a call that must wait asks again."""


class MovingWindow:
    """The calls of this process in the last seconds."""

    def __init__(self, item: RateLimitItem, clock: Callable[[], float]) -> None:
        self._seconds = item.get_expiry()
        self._clock = clock
        self._calls: collections.deque[float] = collections.deque(maxlen=item.amount)

    def hit(self) -> float:
        """Return 0.0 if a call is allowed, and count it; else the seconds until one is."""
        now, calls = self._clock(), self._calls
        if len(calls) == calls.maxlen and (wait := calls[0] + self._seconds - now) > 0:
            return wait
        calls.append(now)
        return 0.0


class Rate:
    """The rate limit of the function `key`.

    Call `open`, `wait` and `close` on the function's event loop, because connections belong to a loop.
    """

    def __init__(
        self, key: str, item: RateLimitItem, variable: str | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises InvalidConfig if the environment `variable` is not the URL of a storage."""
        self._key, self._item, self._variable = key, item, variable
        self._pool: Any = None
        self._window = MovingWindow(item, clock)
        self._limiter = self._made()
        """What counts in Redis; None if this process counts."""
        self._asking = False
        """Whether a call is asking repeatedly. Other calls wait until they may ask."""
        self._waiting: FairQueue[asyncio.Future[None]] = FairQueue()

    async def open(self) -> None:
        """Create new connections for this loop. Calls that wait on an earlier loop are never resumed."""
        self._limiter = self._made()
        self._asking, self._waiting = False, FairQueue()

    async def close(self) -> None:
        """Close the connections."""
        if self._pool is not None:
            await self._pool.disconnect()

    async def wait(self, waited: Callable[[], None]) -> None:
        """Wait until a call is allowed. `waited` is called each time it is not. Raises RetryableError.

        Waiting calls ask one after the other, fairly by caller, job and stream.
        """
        if not self._asking and not await self._ask():
            return
        if self._asking:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.push(current_party.get(), future)
            try:
                await future
            except asyncio.CancelledError:
                if future.done() and not future.cancelled():
                    self._pass_on()
                raise
        self._asking = True
        try:
            while seconds := await self._ask():
                waited()
                await asyncio.sleep(seconds)
        finally:
            self._pass_on()

    async def _ask(self) -> float:
        """Return 0.0 if a call is allowed, and count it; else the seconds after which to ask again."""
        wait = self._window.hit() if self._limiter is None else await self._hit(self._limiter)
        return min(max(wait, PAUSE_SECONDS[0]), PAUSE_SECONDS[1]) if wait else 0.0

    async def _hit(self, limiter: MovingWindowRateLimiter) -> float:
        try:
            if await limiter.hit(self._item, self._key):
                return 0.0
            window = await limiter.get_window_stats(self._item, self._key)
        except Exception as error:
            # Its message is omitted: it may contain the URL of the storage, and so a password.
            raise RetryableError(
                f"function {self._key}: the rate storage does not answer: {type(error).__name__}"
            ) from None
        return max(window.reset_time - time.time(), PAUSE_SECONDS[0])

    def _pass_on(self) -> None:
        """Let the next waiting call ask."""
        # A future that is done belongs to a row that was cancelled.
        if (found := self._waiting.pop(1.0, asyncio.Future.done)) is not None:
            found[1].set_result(None)
        else:
            self._asking = False

    def _made(self) -> MovingWindowRateLimiter | None:
        if self._variable is None:
            return None
        url = os.environ.get(self._variable, "")
        try:
            from redis.asyncio import ConnectionPool  # noqa: PLC0415 - a package that few servers need

            self._pool = ConnectionPool.from_url(url)
            storage = storage_from_string(f"async+{url}", implementation="redispy", connection_pool=self._pool)
            return MovingWindowRateLimiter(storage)
        except Exception as error:
            # The URL is not shown: it may contain a password.
            raise InvalidConfig(
                f"setting guards, function {self._key}: environment variable {self._variable} is not the URL of a "
                f"rate storage: {type(error).__name__}"
            ) from None
