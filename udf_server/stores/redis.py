"""RedisStore keeps entries in a Redis, for all servers. The library redis-py is needed for it only."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import UnionType
from typing import TypeVar

from udf_server.base.errors import InvalidConfig
from udf_server.base.key_value_store import (
    BEGINNING_BYTES,
    ENTRY_BYTES,
    LARGEST_OWN,
    Change,
    Store,
    Stored,
    StoreError,
    bounded_entry,
)
from udf_server.stores.leases import LEASE_SECONDS, LONGEST_SECONDS, Beats
from udf_server.stores.redis_client import CONNECTIONS, redis_client
from udf_server.stores.redis_scripts import CHANGE_SCRIPT, CLAIM_SCRIPT, OWN_SCRIPT, PUT_SCRIPT, RELEASE_SCRIPT

__all__ = ["RedisStore"]

log = logging.getLogger(__name__)

KEYS_AT_ONCE = 1_000
"""Maximum number of keys of one command, because Redis answers nobody else meanwhile."""
ENTRIES_AT_ONCE = 250
"""Maximum number of entries of one answer, because of their size."""
ANSWER_BYTES = ENTRIES_AT_ONCE * (LARGEST_OWN + 1_000)
ANSWER_SECONDS = 5.0
"""A command without an answer in this time has failed, and so has one that gets no connection. Versions of redis-py
have different defaults, even none."""
MOST_SECONDS = 1e11
"""Redis refuses times that 64 bits of milliseconds do not hold. Callers choose how long a value is kept."""
CLAIM_MILLISECONDS = 24 * 3_600_000
"""A claim is removed after this time in any case."""
CHANGED_BYTES = 4 << 20
"""Maximum bytes of the changes of one command, unless one of them has more."""
T = TypeVar("T")
_PREFIX, _CLAIM, _SERVER = b"udf:entry:", b"udf:claim:", b"udf:server:"
_OWN, _EXPIRY = b"udf:keyvalue:", b"udf:keyvalue-expiry:"


class RedisStore(Store):
    """Entries in one Redis (not a cluster). It evicts outcomes, which have an expiry, by its own `maxmemory`."""

    shared = True

    def __init__(self, url: str) -> None:
        """Raises InvalidConfig if redis-py is not installed, or if the URL is not valid. The message has no secret."""
        self._client, self._errors = redis_client(url, "cache_url", ANSWER_BYTES, answer_seconds=ANSWER_SECONDS)
        self._claims, self._puts, self._releases, self._owns, self._changes = map(
            self._client.register_script, (CLAIM_SCRIPT, PUT_SCRIPT, RELEASE_SCRIPT, OWN_SCRIPT, CHANGE_SCRIPT)
        )
        self._beats = Beats(self._beat)
        self._closed = False
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

    async def open_own(self) -> None:
        async with self._asking():
            try:
                memory = await self._client.info("memory")
            except self._errors.ResponseError:
                log.warning("Redis does not tell its maxmemory-policy; it must not be one of allkeys-*")
                return
            policy = str(memory.get("maxmemory_policy", ""))
            if policy.startswith("allkeys") and memory.get("maxmemory"):
                raise StoreError(
                    f"Redis has maxmemory-policy {policy}, so it may evict entries before they expire; set it to "
                    "volatile-lru, which evicts values of the cache only, or to noeviction"
                )

    async def close(self) -> None:
        self._closed = True
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
        milliseconds = _milliseconds(seconds)
        async with self._asking():
            for part in _parts(entries):
                names = _names(function, [key for key, _ in part])
                await self._puts(names, [milliseconds, *(entry for _, entry in part)])

    async def claim(self, function: str, keys: Sequence[bytes], useless: Mapping[bytes, bytes]) -> list[bool]:
        self._beats.start()
        claimed: list[bool] = []
        lease, longest = _milliseconds(LEASE_SECONDS), _milliseconds(LONGEST_SECONDS)
        arguments: list[bytes | str | int] = [
            self._beats.name, _SERVER, CLAIM_MILLISECONDS, lease, longest, BEGINNING_BYTES - 1,
        ]  # fmt: skip
        async with self._asking():
            for part in _parts(keys):
                beginnings = [useless.get(key, b"") for key in part]
                claimed += _marks(await self._claims(_names(function, part), [*arguments, *beginnings]), len(part))
        return claimed

    async def release(self, function: str, keys: Sequence[bytes]) -> None:
        async with self._asking():
            for part in _parts(keys):
                await self._releases(_names(function, part)[::2], [self._beats.name])

    async def own(self, function: str, keys: Sequence[bytes]) -> list[bytes | None]:
        names, found = [_OWN + function.encode(), _EXPIRY + function.encode()], list[bytes | None]()
        async with self._asking():
            for part in _parts(keys, ENTRIES_AT_ONCE):
                found += _checked(await self._owns(names, part), len(part), bytes | None)
        return found

    async def compare_and_set(self, function: str, changes: Sequence[Change], seconds: float) -> list[bool]:
        names, made = [_OWN + function.encode(), _EXPIRY + function.encode()], list[bool]()
        async with self._asking():
            for part in _small_parts(changes):
                arguments: list[bytes | int] = [_milliseconds(seconds)]
                for key, before, after in part:
                    arguments += [key, b"0" if before is None else b"1", before or b"", after]
                made += _marks(await self._changes(names, arguments), len(part))
        return made

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
            await self._client.set(_SERVER + name.encode(), b"", px=_milliseconds(LEASE_SECONDS))

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
            if self._closed:
                raise StoreError("the store is closed")
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._gate.acquire()
            try:
                yield
            finally:
                self._gate.release()
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


def _entries(answer: Sequence[bytes | None], number: int) -> list[bytes | None]:
    """The entries of an answer, after a check that it has this number of them, and nothing else."""
    found = _checked(answer, number, bytes | None)
    return [None if entry is None else bounded_entry(entry) for entry in found]


def _marks(answer: Sequence[int], number: int) -> list[bool]:
    """For each key of a command whether it was done."""
    found = _checked(answer, number, int)
    if any(each not in (0, 1) for each in found):
        raise StoreError(f"Redis has answered {max(found, key=abs)}; expected 0 or 1")
    return [each == 1 for each in found]


def _checked(answer: Sequence[T], number: int, type_: type | UnionType) -> Sequence[T]:
    """The answer. Raises StoreError, whose message does not quote it, if it is not a list of this number and type."""
    if not isinstance(answer, list) or len(answer) != number:
        size = f"{len(answer)} values" if isinstance(answer, list) else type(answer).__name__
        raise StoreError(f"Redis has answered {size}; expected {number} values")
    if wrong := [each for each in answer if not isinstance(each, type_)]:
        raise StoreError(f"Redis has answered a value of type {type(wrong[0]).__name__}")
    return answer


def _parts(items: Sequence[T], size: int = KEYS_AT_ONCE) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _small_parts(changes: Sequence[Change]) -> list[list[Change]]:
    """The changes in commands of bounded size."""
    parts: list[list[Change]] = []
    size = 0
    for change in changes:
        added = len(change.before or b"") + len(change.after)
        if not parts or len(parts[-1]) == ENTRIES_AT_ONCE or size + added > CHANGED_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(change)
        size += added
    return parts


def _milliseconds(seconds: float) -> int:
    return max(round(min(seconds, MOST_SECONDS) * 1000), 1)
