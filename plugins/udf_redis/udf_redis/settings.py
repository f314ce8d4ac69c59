"""Settings of the plugin, from the server's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

__all__ = ["InvalidSetting", "RedisSettings"]

TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}


class InvalidSetting(ValueError):
    """An environment variable is missing or malformed; the message never shows its value."""


@dataclass(frozen=True)
class RedisSettings:
    """Where Redis is and how it is asked. Its repr shows no secret."""

    url: str = field(repr=False)
    """redis://, rediss:// for TLS, or unix://; may hold a user name and a password."""
    password: str | None = field(default=None, repr=False)
    """For a URL that has none."""
    key_prefix: str = ""
    """Put before every key."""
    connections: int = 4
    """Connections at most, and so pipelines under way, per function."""
    pipeline_rows: int = 1_000
    """Commands of one pipeline at most."""
    attempt_seconds: float = 5.0
    """Longest wait for a connection, and for an answer."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "RedisSettings":
        """Raises InvalidSetting, naming the variable."""
        return cls(
            url=_url(environment.get("UDF_REDIS_URL", "")),
            password=environment.get("UDF_REDIS_PASSWORD") or None,
            key_prefix=environment.get("UDF_REDIS_KEY_PREFIX", ""),
            connections=int(_number(environment, "UDF_REDIS_CONNECTIONS", cls.connections)),
            pipeline_rows=int(_number(environment, "UDF_REDIS_PIPELINE_ROWS", cls.pipeline_rows)),
            attempt_seconds=_number(environment, "UDF_REDIS_ATTEMPT_SECONDS", cls.attempt_seconds),
        )

    @property
    def address(self) -> str:
        """The server without any secret, for messages."""
        parts = urlsplit(self.url)
        return parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"


def _url(text: str) -> str:
    name = "UDF_REDIS_URL"
    if not text:
        raise InvalidSetting(f"{name} is not set; it says where Redis is, such as redis://cache.example:6379/0")
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if it is no port
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise InvalidSetting(f"{name} is not a URL") from None
    if parts.scheme not in ("redis", "rediss", "unix") or not (
        parts.path if parts.scheme == "unix" else parts.hostname
    ):
        raise InvalidSetting(f"{name} is not a redis, rediss or unix URL with a host or a path")
    # The client passes over a path that is no number, and then asks another database.
    database = parts.path.strip("/") if parts.scheme != "unix" else options.get("db", [""])[0]
    if database and not (database.isascii() and database.isdecimal()):
        raise InvalidSetting(f"{name} names a database that is not a number")
    # Any other one could change what the client answers with.
    allowed = {"unix": {"db"}, "rediss": TLS_FILES}.get(parts.scheme, set())
    if not options.keys() <= allowed:
        raise InvalidSetting(f"{name} has options other than {', '.join(sorted(allowed)) or 'none'}")
    return text


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = environment.get(name, str(default))
    try:
        number = type(default)(text)
    except ValueError:
        number = 0
    if not 0 < number < float("inf"):
        kind = "whole number" if isinstance(default, int) else "number"
        raise InvalidSetting(f"{name} is not a {kind} greater than zero")
    return number
