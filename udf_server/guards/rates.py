"""Rate: calls per time of one function, in memory, or in a Redis for all servers; the arithmetic is of `limits`."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Any

from limits import RateLimitItem
from limits.aio.strategies import MovingWindowRateLimiter
from limits.storage import storage_from_string

from udf_server.errors import InvalidConfig, RetryableError

__all__ = ["Rate"]

_MEMORY = "async+memory://"


class Rate:
    """Of the function `key`. `open`, `wait` and `close` are for its event loop, as connections belong to one."""

    def __init__(self, key: str, item: RateLimitItem, variable: str | None) -> None:
        """Raises InvalidConfig if the environment `variable` holds no URL of a storage."""
        self._key, self._item, self._variable = key, item, variable
        self._pool: Any = None
        self._limiter = self._made()

    async def open(self) -> None:
        """Connections of an earlier loop are not used any more."""
        self._limiter = self._made()

    async def close(self) -> None:
        """Ends the connections."""
        if self._pool is not None:
            await self._pool.disconnect()

    async def wait(self, waited: Callable[[], None]) -> None:
        """Returns once there may be a call, `waited` called whenever there may not yet. Raises RetryableError."""
        while True:
            try:
                if await self._limiter.hit(self._item, self._key):
                    return
                window = await self._limiter.get_window_stats(self._item, self._key)
            except Exception as error:
                # Its message is left out: it may name the URL of the storage, and so a password.
                raise RetryableError(
                    f"function {self._key}: the storage of rates does not answer: {type(error).__name__}"
                ) from None
            waited()
            await asyncio.sleep(min(max(window.reset_time - time.time(), 0.01), 1.0))

    def _made(self) -> MovingWindowRateLimiter:
        if self._variable is None:
            return MovingWindowRateLimiter(storage_from_string(_MEMORY))
        url = os.environ.get(self._variable, "")
        try:
            from redis.asyncio import ConnectionPool  # noqa: PLC0415 - a package that few servers need

            self._pool = ConnectionPool.from_url(url)
            storage = storage_from_string(f"async+{url}", implementation="redispy", connection_pool=self._pool)
            return MovingWindowRateLimiter(storage)
        except Exception as error:
            # The URL is not shown: it may hold a password.
            raise InvalidConfig(
                f"setting guards, function {self._key}: environment variable {self._variable} is no URL of a storage "
                f"of rates: {type(error).__name__}"
            ) from None
