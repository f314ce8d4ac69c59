"""The functions: a command that reads one key for each row."""

from typing import Any

import udf_server as udf
from udf_redis.pipelining import RedisLookups
from udf_redis.settings import RedisSettings

__all__ = ["redis_get", "redis_hash"]

_OPTIONS: dict[str, Any] = {
    "retry_strategy": "exponential-delay",
    "max_attempts": 4,
    "timeout": "30 s",
    # The number of rows in flight limits the length of a pipeline.
    "buffer_capacity": 1_000,
}


class _Lookup:
    """A function with its own connections, opened on the function's event loop."""

    lookups: RedisLookups

    async def open(self) -> None:
        """Raises InvalidSetting. Runs again if the function gets another event loop."""
        self.lookups = RedisLookups(RedisSettings.from_environment())

    async def close(self) -> None:
        await self.lookups.close()


class _Get(_Lookup):
    """The string at the key (GET); null if there is none."""

    async def eval(self, key: str) -> str | None:
        return await self.lookups.get(key)


class _Hash(_Lookup):
    """The fields of the hash at the key (HGETALL); null if there is none."""

    async def eval(self, key: str) -> dict[str, str] | None:
        return await self.lookups.hash(key)


redis_get = udf.scalar(name="redis_get", nulls="skip", **_OPTIONS)(_Get)
redis_hash = udf.scalar(name="redis_hash", nulls="skip", **_OPTIONS)(_Hash)
