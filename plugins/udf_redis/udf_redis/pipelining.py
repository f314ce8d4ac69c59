"""RedisLookups: sends commands of many rows in few pipelines; each row gets an answer or the matching error."""

import asyncio
from typing import Any

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from udf_redis.settings import RedisSettings
from udf_server import RetryableError

__all__ = ["LookupRefused", "RedisLookups"]

Command = tuple[str, bytes]
"""Its name and its key."""

TRY_AGAIN = (
    RedisConnectionError,
    RedisTimeoutError,
    TimeoutError,
    OSError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    TryAgainError,
)
REFUSED = (AuthenticationError, AuthorizationError)
"""Connection errors by class, and yet no other attempt would help."""


class LookupRefused(Exception):
    """Redis refused a command, or its answer is unusable; another attempt would not help."""


class RedisLookups:
    """Commands that read one key, for the event loop on which it was created.

    Commands issued in one iteration of the loop are sent as one pipeline; equal commands are sent once. The number
    of unanswered commands is bounded by the rows in flight, whose futures hold them.
    """

    def __init__(self, settings: RedisSettings) -> None:
        self._address = settings.address
        self._prefix = settings.key_prefix
        self._most = settings.pipeline_rows
        given: dict[str, Any] = {"password": settings.password} if settings.password else {}
        self._pool = BlockingConnectionPool.from_url(
            settings.url,
            max_connections=settings.connections,
            # Waiting for a connection has no timeout of its own: the server enforces the row's deadline.
            timeout=None,
            socket_timeout=settings.attempt_seconds,
            socket_connect_timeout=settings.attempt_seconds,
            # The server retries rows, so the client does not.
            retry=Retry(NoBackoff(), 0),
            **given,
        )
        self._redis = Redis(connection_pool=self._pool)
        self._waiting: dict[Command, asyncio.Future[Any]] = {}
        self._sending: set[asyncio.Task[None]] = set()

    async def get(self, key: str) -> str | None:
        """Returns the string at a key, or None if the key does not exist.

        Raises RetryableError for what may succeed later, LookupRefused for a key that holds another type or an
        answer that is not text.
        """
        found = await self._ask("GET", key)
        return None if found is None else _text(found, "GET", key)

    async def hash(self, key: str) -> dict[str, str] | None:
        """Returns the fields of the hash at a key, or None if the key does not exist; raises the errors of `get`."""
        found = await self._ask("HGETALL", key)
        return {_text(k, "HGETALL", key): _text(v, "HGETALL", key) for k, v in found.items()} or None

    async def close(self) -> None:
        """Closes every connection; commands in flight fail. May be called twice."""
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._redis.aclose()
        await self._pool.disconnect()

    def __repr__(self) -> str:
        return f"<Redis lookups at {self._address}>"

    async def _ask(self, name: str, key: str) -> Any:
        command = (name, (self._prefix + key).encode())
        answer = self._waiting.get(command)
        if answer is None:
            loop = asyncio.get_running_loop()
            if not self._waiting:
                # Rows that are ready to run now issue their commands before `_send` runs.
                loop.call_soon(self._send)
            answer = self._waiting[command] = loop.create_future()
        try:
            # If this row is cancelled, another row may still wait for the same answer.
            found = await asyncio.shield(answer)
        except REFUSED as error:
            raise LookupRefused(f"{name} {key}: {type(error).__name__}: {error}") from None
        except TRY_AGAIN as error:
            raise RetryableError(f"{name} {key}: {type(error).__name__}: {error}") from None
        except RedisError as error:
            raise LookupRefused(f"{name} {key}: {error}") from None
        return found

    def _send(self) -> None:
        waiting, self._waiting = list(self._waiting.items()), {}
        for start in range(0, len(waiting), self._most):
            task = asyncio.get_running_loop().create_task(self._pipeline(waiting[start : start + self._most]))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def _pipeline(self, commands: list[tuple[Command, "asyncio.Future[Any]"]]) -> None:
        answers: list[Any]
        try:
            pipeline = self._redis.pipeline(transaction=False)
            for (name, key), _ in commands:
                pipeline.execute_command(name, key)
            answers = await pipeline.execute(raise_on_error=False)
        except asyncio.CancelledError:
            answers = [RedisConnectionError("the function was closed")] * len(commands)
        except Exception as error:
            answers = [error] * len(commands)
        for (_, future), answer in zip(commands, answers, strict=True):
            if isinstance(answer, BaseException):
                future.set_exception(answer)
                # If every row that waited was cancelled, nothing else reads the error, and asyncio would log it.
                future.exception()
            else:
                future.set_result(answer)


def _text(value: bytes, name: str, key: str) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise LookupRefused(f"{name} {key}: the answer is not text in UTF-8") from None
