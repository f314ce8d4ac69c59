"""RedisStore keeps entries in a Redis, for all servers. The library redis-py is needed for it only."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from udf_server.base.errors import InvalidConfig
from udf_server.cache.leases import LEASE_SECONDS, LONGEST_SECONDS, Beats
from udf_server.cache.store import (
    BEGINNING_BYTES,
    ENTRY_BYTES,
    LARGEST_ENTRY,
    NONE,
    Store,
    Stored,
    StoreError,
    bounded_entry,
)
from udf_server.stores.redis_client import CONNECTIONS, redis_client

__all__ = ["RedisStore"]

log = logging.getLogger(__name__)

KEYS_AT_ONCE = 1_000
"""Maximum number of keys of one command, because Redis answers nobody else meanwhile."""
ENTRIES_AT_ONCE = 250
"""Maximum number of entries of one answer, because of their size."""
ANSWER_BYTES = ENTRIES_AT_ONCE * (LARGEST_ENTRY + 1_000)
ANSWER_SECONDS = 5.0
"""A command without an answer in this time has failed. Versions of redis-py have different defaults, even none."""
MOST_SECONDS = 1e11
"""Redis refuses times that 64 bits of milliseconds do not hold. Callers choose how long a value is kept."""
CLAIM_MILLISECONDS = 24 * 3_600_000
"""A claim is removed after this time in any case."""
_PREFIX, _CLAIM, _SERVER = b"udf:entry:", b"udf:claim:", b"udf:server:"
# KEYS are pairs of a claim and its entry. ARGV has the name of this server, the prefix of servers, the milliseconds of
# a claim, those of the lease of this server, which is renewed, and those that a lease may have left at most; the number
# of the last byte of the beginning of an entry, and the beginning of each that counts as none.
_CLAIM_SCRIPT = """
redis.call('SET', ARGV[2] .. ARGV[1], '', 'PX', ARGV[4])
local function text(...)
  local found = redis.pcall(...)
  return type(found) == 'string' and found or '' -- it may be of another type, whoever has written it
end
local mine = {}
for i = 1, #KEYS, 2 do
  mine[#mine + 1] = 0
  local beginning = text('GETRANGE', KEYS[i + 1], 0, ARGV[6])
  if beginning == '' or beginning == ARGV[6 + (i + 1) / 2] then
    local server = text('GET', KEYS[i])
    local left = redis.call('PTTL', ARGV[2] .. server)
    if server == ARGV[1] or left < 0 or left > tonumber(ARGV[5]) then
      redis.call('SET', KEYS[i], ARGV[1], 'PX', ARGV[3])
      mine[#mine] = 1
    end
  end
end
return mine
"""
# KEYS are pairs of a claim and its entry; ARGV has the milliseconds, then the entries.
_PUT_SCRIPT = """
for i = 1, #KEYS, 2 do
  redis.call('SET', KEYS[i + 1], ARGV[(i + 1) / 2 + 1], 'PX', ARGV[1])
  redis.call('DEL', KEYS[i])
end
"""
_RELEASE_SCRIPT = """
for i = 1, #KEYS do
  if redis.call('GET', KEYS[i]) == ARGV[1] then redis.call('DEL', KEYS[i]) end
end
"""


class RedisStore(Store):
    """Entries in one Redis (not a cluster), which evicts them by its own `maxmemory` and `maxmemory-policy`."""

    shared = True

    def __init__(self, url: str) -> None:
        """Raises InvalidConfig if redis-py is not installed, or if the URL is not valid. The message has no secret."""
        client, self._errors = redis_client(url, "cache_url", ANSWER_BYTES, socket_timeout=ANSWER_SECONDS)
        self._client: Any = client
        self._claims = self._client.register_script(_CLAIM_SCRIPT)
        self._puts = self._client.register_script(_PUT_SCRIPT)
        self._releases = self._client.register_script(_RELEASE_SCRIPT)
        self._beats = Beats(self._beat)
        self._gate = asyncio.Semaphore(CONNECTIONS)

    async def open(self) -> None:
        try:
            await self._client.ping()
            await self._refuse_cluster()
        except self._errors.AuthenticationError as error:
            await self.close()
            raise InvalidConfig(f"setting 'cache_url': Redis refuses the password: {error}") from None
        except (self._errors.ConnectionError, self._errors.TimeoutError, OSError) as error:
            # The server can do its work without a cache.
            log.warning("cache is unavailable; functions are called without it", extra={"why": type(error).__name__})
        except InvalidConfig:
            await self.close()
            raise
        except Exception as error:  # the library raises errors of any class if something else than a Redis answers
            await self.close()
            raise InvalidConfig(f"setting 'cache_url': {type(error).__name__}: {error}") from None

    async def close(self) -> None:
        await self._beats.stop()
        with contextlib.suppress(self._errors.RedisError, OSError):
            await self._client.aclose()

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix = _PREFIX + function.encode() + b":"
        found: list[bytes | None] = []
        async with self._asking():
            for part in _parts(keys, ENTRIES_AT_ONCE):
                found += _entries(await self._client.mget([prefix + key for key in part]), len(part))
        return found

    async def put(self, function: str, entries: Sequence[tuple[bytes, bytes]], seconds: float) -> None:
        milliseconds = max(round(min(seconds, MOST_SECONDS) * 1000), 1)
        async with self._asking():
            for part in _parts(entries):
                names = _names(function, [key for key, _ in part])
                await self._puts(names, [milliseconds, *(entry for _, entry in part)])

    async def claim(self, function: str, keys: Sequence[bytes], useless: Mapping[bytes, bytes] = NONE) -> list[bool]:
        self._beats.start()
        claimed: list[bool] = []
        lease = round(LEASE_SECONDS * 1000)
        longest = round(LONGEST_SECONDS * 1000)
        arguments: list[bytes | str | int] = [
            self._beats.name, _SERVER, CLAIM_MILLISECONDS, lease, longest, BEGINNING_BYTES - 1,
        ]  # fmt: skip
        async with self._asking():
            for part in _parts(keys):
                beginnings = [useless.get(key, b"") for key in part]
                claimed += _claimed(await self._claims(_names(function, part), [*arguments, *beginnings]), len(part))
        return claimed

    async def release(self, function: str, keys: Sequence[bytes]) -> None:
        async with self._asking():
            for part in _parts(keys):
                await self._releases(_names(function, part)[::2], [self._beats.name])

    async def stats(self) -> list[Stored]:
        sums: dict[str, tuple[int, int]] = {}
        async with self._asking():
            async for names in self._scanned(_PREFIX + b"*"):
                async with self._client.pipeline(transaction=False) as pipeline:
                    for name in names:
                        pipeline.strlen(name)
                    sizes = _checked(await pipeline.execute(), len(names), int)
                for name, size in zip(names, sizes, strict=True):
                    function = _function_of(name)
                    count, total = sums.get(function, (0, 0))
                    sums[function] = count + 1, total + size + ENTRY_BYTES
        return [Stored(function, *each) for function, each in sorted(sums.items())]

    async def clear(self, function: str | None = None) -> int:
        count = 0
        async with self._asking():
            async for names in self._scanned(_PREFIX + (b"" if function is None else function.encode() + b":") + b"*"):
                count += await self._client.unlink(*names)
        return count

    async def export(self) -> AsyncIterator[tuple[str, bytes, bytes]]:
        async with self._asking():
            async for names in self._scanned(_PREFIX + b"*"):
                for part in _parts(names, ENTRIES_AT_ONCE):
                    for name, entry in zip(part, _entries(await self._client.mget(part), len(part)), strict=True):
                        if entry is not None:
                            function = _function_of(name)
                            yield function, name[len(_PREFIX) + len(function.encode()) + 1 :], entry

    async def _refuse_cluster(self) -> None:
        """Raise InvalidConfig for a cluster: it refuses commands with several keys. Not every user may ask for that."""
        with contextlib.suppress(self._errors.ResponseError):
            if (await self._client.info("cluster")).get("cluster_enabled"):
                raise InvalidConfig(
                    "setting 'cache_url' is a Redis cluster: use one instance, with replicas if need be"
                )

    async def _beat(self, name: str) -> None:
        async with self._asking():
            await self._client.set(_SERVER + name.encode(), b"", px=round(LEASE_SECONDS * 1000))

    async def _scanned(self, pattern: bytes) -> AsyncIterator[list[bytes]]:
        """The names that match, in lists. SCAN may return a name twice."""
        names: list[bytes] = []
        async for name in self._client.scan_iter(match=pattern, count=KEYS_AT_ONCE):
            names.append(name)
            if len(names) == KEYS_AT_ONCE:
                yield names
                names = []
        if names:
            yield names

    @contextlib.asynccontextmanager
    async def _asking(self) -> AsyncIterator[None]:
        """Limit the connections, and raise StoreError for errors, whose class may be any if something else answers."""
        try:
            async with self._gate:
                yield
        except StoreError:
            raise
        except Exception as error:
            raise StoreError(f"{type(error).__name__}: {error}") from None


def _names(function: str, keys: Sequence[bytes]) -> list[bytes]:
    """The names of claims and entries, in pairs."""
    claim, entry = _CLAIM + function.encode() + b":", _PREFIX + function.encode() + b":"
    return [name for key in keys for name in (claim + key, entry + key)]


def _function_of(name: bytes) -> str:
    return name[len(_PREFIX) :].partition(b":")[0].decode(errors="replace")


def _entries(answer: Any, number: int) -> list[bytes | None]:
    """The entries of an answer, after a check that it has this number of them, and nothing else."""
    found = _checked(answer, number, bytes | None)
    return [None if entry is None else bounded_entry(entry) for entry in found]


def _claimed(answer: Any, number: int) -> list[bool]:
    found = _checked(answer, number, int)
    if any(each not in (0, 1) for each in found):
        raise StoreError(f"Redis has answered a claim with {max(found, key=abs)}; expected 0 or 1")
    return [each == 1 for each in found]


def _checked(answer: Any, number: int, type_: Any) -> list[Any]:
    """The answer. Raises StoreError, whose message does not quote it, if it is not a list of this number and type."""
    if not isinstance(answer, list) or len(answer) != number:
        size = f"{len(answer)} values" if isinstance(answer, list) else type(answer).__name__
        raise StoreError(f"Redis has answered {size}; expected {number} values")
    if wrong := [each for each in answer if not isinstance(each, type_)]:
        raise StoreError(f"Redis has answered a value of type {type(wrong[0]).__name__}")
    return answer


def _parts(items: Sequence[Any], size: int = KEYS_AT_ONCE) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
