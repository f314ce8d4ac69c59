"""Opens the client of a Redis that a setting names. The library redis-py is needed only by servers that have one."""

from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from udf_server.base.errors import InvalidConfig
from udf_server.stores.redis_answers import bounded_parser

__all__ = ["CONNECTIONS", "CONNECT_SECONDS", "redis_client"]

CONNECT_SECONDS = 2.0
CONNECTIONS = 16
"""Operations of a client beyond this number wait for a connection. Most versions of redis-py fail beyond 100."""


def redis_client(url: str, setting: str, answer_bytes: int, answer_seconds: float) -> tuple[Any, ModuleType]:
    """A client that is not connected yet, and the module of the library's errors.

    Args:
        url: The value of the setting.
        setting: Name of the setting, for messages.
        answer_bytes: An answer with more bytes is an error, and closes its connection.
        answer_seconds: How long an operation may take.

    Raises:
        InvalidConfig: redis-py is not installed, or the URL is not valid. The message has no secret of the URL.
    """
    try:
        from redis import asyncio as redis  # noqa: PLC0415 - it is optional
        from redis import exceptions  # noqa: PLC0415 - it is optional
        from redis.asyncio.connection import DefaultParser  # noqa: PLC0415 - it is optional
    except ImportError:
        raise InvalidConfig(f"setting {setting!r}: redis:// needs redis-py: pip install 'remote-udf[cache]'") from None
    try:
        parser = bounded_parser(DefaultParser, exceptions.InvalidResponse, answer_bytes)
        client = redis.from_url(
            url, socket_connect_timeout=CONNECT_SECONDS, parser_class=parser, socket_timeout=answer_seconds
        )
        pool = client.connection_pool
        pool.connection_class(**pool.connection_kwargs)  # raises TypeError for unknown parameters of the URL
        parts = urlsplit(url)
        number = "" if parts.scheme == "unix" else parts.path.strip("/")
        valid = url.startswith(f"{parts.scheme}://") and (not number or number.isdecimal())
    except (ValueError, TypeError):
        valid = False
    if not valid or pool.connection_kwargs.get("decode_responses"):
        raise InvalidConfig(
            f"setting {setting!r} is not a valid URL of a Redis: write redis://host:port/number, rediss:// for TLS or "
            "unix:///path, and after ? only parameters of connections of redis-py, without decode_responses"
        )
    return client, exceptions
