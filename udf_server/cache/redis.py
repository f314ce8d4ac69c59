"""RedisStore keeps entries in a Redis, for all servers. The library redis-py is needed for it only."""

import asyncio
import contextlib
import logging
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from udf_server.base.errors import InvalidConfig
from udf_server.cache.leases import LEASE_SECONDS, Beats
from udf_server.cache.store import BEGINNING_BYTES, ENTRY_BYTES, NONE, Store, Stored, StoreError
from udf_server.coordination.redis_client import CONNECTIONS, redis_client

__all__ = ["RedisStore"]

log = logging.getLogger(__name__)

KEYS_AT_ONCE = 1_000
"""Maximum number of keys of one command, because Redis answers nobody else meanwhile."""
ANSWER_SECONDS = 5.0
"""A command without an answer in this time has failed. Versions of redis-py have different defaults, even none."""
MOST_SECONDS = 1e11
"""Redis refuses times that 64 bits of milliseconds do not hold. Callers choose how long a value is kept."""
CLAIM_MILLISECONDS = 24 * 3_600_000
"""A claim is removed after this time in any case."""
_PREFIX, _CLAIM, _SERVER = b"udf:entry:", b"udf:claim:", b"udf:server:"
_IDENTITY = b"udf:identity"
# KEYS are pairs of a claim and its entry. ARGV has the name of this server, the prefix of servers, the milliseconds of
# a claim, and those of the lease of this server, which is renewed; the number of the last byte of the beginning of an
# entry, and the beginning of each that counts as none.
_CLAIM_SCRIPT = """
redis.call('SET', ARGV[2] .. ARGV[1], '', 'PX', ARGV[4])
local mine = {}
for i = 1, #KEYS, 2 do
  mine[#mine + 1] = 0
  local beginning = redis.call('GETRANGE', KEYS[i + 1], 0, ARGV[5])
  if beginning == '' or beginning == ARGV[5 + (i + 1) / 2] then
    local server = redis.call('GET', KEYS[i])
    if not server or server == ARGV[1] or redis.call('EXISTS', ARGV[2] .. server) == 0 then
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
        client, self._errors = redis_client(url, "cache_url", socket_timeout=ANSWER_SECONDS)
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
            await self._identify()
        except self._errors.AuthenticationError as error:
            await self.close()
            raise InvalidConfig(f"setting 'cache_url': Redis refuses the password: {error}") from None
        except (self._errors.ConnectionError, self._errors.TimeoutError, OSError) as error:
            # The server can do its work without a cache.
            log.warning("cache is unavailable; functions are called without it", extra={"why": type(error).__name__})
        except self._errors.RedisError as error:
            await self.close()
            raise InvalidConfig(f"setting 'cache_url': {error}") from None

    async def close(self) -> None:
        await self._beats.stop()
        with contextlib.suppress(self._errors.RedisError, OSError):
            await self._client.aclose()

    async def get(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        prefix, found = _PREFIX + function.encode() + b":", []
        async with self._asking():
            for part in _parts(keys):
                found += await self._client.mget([prefix + key for key in part])
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
        arguments: list[bytes | str | int] = [self._beats.name, _SERVER, CLAIM_MILLISECONDS, lease, BEGINNING_BYTES - 1]
        async with self._asking():
            for part in _parts(keys):
                beginnings = [useless.get(key, b"") for key in part]
                claimed += map(bool, await self._claims(_names(function, part), [*arguments, *beginnings]))
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
                    sizes = await pipeline.execute()
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
                for name, entry in zip(names, await self._client.mget(names), strict=True):
                    if entry is not None:
                        function = _function_of(name)
                        yield function, name[len(_PREFIX) + len(function.encode()) + 1 :], entry

    async def _refuse_cluster(self) -> None:
        """Raise InvalidConfig for a cluster: it refuses commands with several keys. Not every user may ask for that."""
        with contextlib.suppress(self._errors.ResponseError):
            if (await self._client.info("cluster")).get("cluster_enabled"):
                await self.close()
                raise InvalidConfig(
                    "setting 'cache_url' is a Redis cluster: use one instance, with replicas if need be"
                )

    async def _identify(self) -> None:
        """Read or set the text by which servers find out whether they use the same Redis. A full Redis refuses that."""
        with contextlib.suppress(self._errors.ResponseError):
            await self._client.set(_IDENTITY, self.identity or f"redis {uuid.uuid4().hex}", nx=True)
            found: bytes | None = await self._client.get(_IDENTITY)
            self.identity = self.identity or (found or b"").decode(errors="replace")

    async def _beat(self, name: str) -> None:
        async with self._asking():
            await self._client.set(_SERVER + name.encode(), b"", px=round(LEASE_SECONDS * 1000))
            # Redis keeps the identity if it is used.
            await self._identify()

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
        """Limit the connections, and raise StoreError for the errors of the library."""
        try:
            async with self._gate:
                yield
        except (self._errors.RedisError, OSError) as error:
            raise StoreError(f"{type(error).__name__}: {error}") from None


def _names(function: str, keys: Sequence[bytes]) -> list[bytes]:
    """The names of claims and entries, in pairs."""
    claim, entry = _CLAIM + function.encode() + b":", _PREFIX + function.encode() + b":"
    return [name for key in keys for name in (claim + key, entry + key)]


def _function_of(name: bytes) -> str:
    return name[len(_PREFIX) :].partition(b":")[0].decode(errors="replace")


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), KEYS_AT_ONCE):
        yield items[start : start + KEYS_AT_ONCE]
