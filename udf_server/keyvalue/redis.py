"""RedisBackend keeps entries in a Redis, for all servers. The library redis-py is needed for it only."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from udf_server.base.key_value_backend import LARGEST_KEPT, Backend, Change, KeyValueError
from udf_server.stores.redis_client import CONNECTIONS, redis_client

__all__ = ["RedisBackend"]

log = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""A command without an answer in this time has failed, and so has one that gets no connection."""
KEYS_AT_ONCE, BYTES_AT_ONCE = 250, 4 << 20
"""Maximum keys and bytes of one command, because Redis answers nobody else meanwhile."""
ANSWER_BYTES = KEYS_AT_ONCE * (LARGEST_KEPT + 1_000)
_HASH, _EXPIRY = b"udf:keyvalue:", b"udf:keyvalue-expiry:"
# The entries of a function are one hash without an expiry, because Redis evicts what has one, unless it evicts nothing.
# A value begins with its expiry in milliseconds and a colon. KEYS are the hash and a sorted set of the expiries.
_NOW = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function found(key)
  local kept = redis.call('HGET', KEYS[1], key)
  if not kept then return false end
  local colon = string.find(kept, ':', 1, true)
  if tonumber(string.sub(kept, 1, colon - 1)) <= now then return false end
  return string.sub(kept, colon + 1)
end
"""
_GET_SCRIPT = f"""{_NOW}
local all = {{}}
for i = 1, #ARGV do all[i] = found(ARGV[i]) end
return all
"""
# ARGV has the milliseconds that new entries stay, then for each change: key, '1' if it must have an entry, that, the
# new one.
_CHANGE_SCRIPT = f"""{_NOW}
local old = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1000)
for _, key in ipairs(old) do
  redis.call('HDEL', KEYS[1], key)
  redis.call('ZREM', KEYS[2], key)
end
local until_ = string.format('%.0f', now + ARGV[1])
local made = {{}}
for i = 2, #ARGV, 4 do
  local kept = found(ARGV[i])
  made[#made + 1] = 0
  if (ARGV[i + 1] == '0' and not kept) or (ARGV[i + 1] == '1' and kept == ARGV[i + 2]) then
    redis.call('HSET', KEYS[1], ARGV[i], until_ .. ':' .. ARGV[i + 3])
    redis.call('ZADD', KEYS[2], until_, ARGV[i])
    made[#made] = 1
  end
end
return made
"""


class RedisBackend(Backend):
    """Entries in one Redis (not a cluster), which must not evict keys that have no expiry."""

    def __init__(self, url: str) -> None:
        """Raises InvalidConfig if redis-py is not installed, or if the URL is not valid. The message has no secret."""
        self._url = url
        self._client: Any = None
        self._errors: Any = None

    async def open(self) -> None:
        self._client, self._errors = redis_client(
            self._url, "cache_url", ANSWER_BYTES, socket_timeout=ANSWER_SECONDS
        )  # fmt: skip
        self._get = self._client.register_script(_GET_SCRIPT)
        self._change = self._client.register_script(_CHANGE_SCRIPT)
        self._gate = asyncio.Semaphore(CONNECTIONS)
        try:
            await self._require_no_eviction()
        except KeyValueError:
            await self.close()
            raise

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(self._errors.RedisError, OSError):
                await client.aclose()

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        found: list[bytes | None] = []
        async with self._asking():
            for start in range(0, len(keys), KEYS_AT_ONCE):
                part = keys[start : start + KEYS_AT_ONCE]
                found += _checked(await self._get(_names(function), part), len(part), bytes | None)
        return found

    async def compare_and_set(self, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        made: list[bool] = []
        async with self._asking():
            for part in _parts(changes):
                arguments: list[bytes | int] = [max(round(seconds * 1000), 1)]
                for key, before, after in part:
                    arguments += [key, b"0" if before is None else b"1", before or b"", after]
                answer = _checked(await self._change(_names(function), arguments), len(part), int)
                if any(each not in (0, 1) for each in answer):
                    raise KeyValueError(f"Redis has answered a change with {max(answer, key=abs)}; expected 0 or 1")
                made += [each == 1 for each in answer]
        return made

    async def _require_no_eviction(self) -> None:
        async with self._asking():
            try:
                memory = await self._client.info("memory")
            except self._errors.ResponseError:
                log.warning("Redis does not tell its maxmemory-policy; it must not be one of allkeys-*")
                return
        policy = str(memory.get("maxmemory_policy", ""))
        if policy.startswith("allkeys") and memory.get("maxmemory"):
            raise KeyValueError(
                f"setting 'cache_url': Redis has maxmemory-policy {policy}, so it may evict entries before they "
                "expire; set it to volatile-lru, which evicts values of the cache only, or to noeviction"
            )

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Limit the connections, and raise KeyValueError for the errors of the library."""
        if self._client is None:
            raise KeyValueError("the key-value store is closed")
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._gate.acquire()
            try:
                yield
            finally:
                self._gate.release()
        except KeyValueError:
            raise
        except Exception as error:  # the library raises errors of any class if something else than a Redis answers
            raise KeyValueError(f"setting 'cache_url': {type(error).__name__}: {error}") from None


def _names(function: str) -> list[bytes]:
    return [_HASH + function.encode(), _EXPIRY + function.encode()]


def _checked(answer: Any, number: int, type_: Any) -> list[Any]:
    """The answer. Raises KeyValueError, which does not quote it, if it is not a list of this number and type."""
    if isinstance(answer, list) and len(answer) == number and all(isinstance(each, type_) for each in answer):
        return answer
    raise KeyValueError(f"setting 'cache_url': Redis has not answered the {number} values that were asked for")


def _parts(changes: Sequence[Change]) -> list[list[Change]]:
    """The changes in commands of bounded size."""
    parts: list[list[Change]] = []
    size = 0
    for change in changes:
        added = len(change.before or b"") + len(change.after)
        if not parts or len(parts[-1]) == KEYS_AT_ONCE or size + added > BYTES_AT_ONCE:
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += added
    return parts
