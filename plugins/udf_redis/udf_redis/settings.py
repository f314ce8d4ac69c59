"""Settings of the plugin, from the server's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

from udf_server.settings import InvalidSetting, from_environment, setting

__all__ = ["InvalidSetting", "RedisSettings"]

TLS_FILES = {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile"}


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        _ = parts.port  # raises if the port is invalid
        options = parse_qs(parts.query, strict_parsing=True) if parts.query else {}
    except ValueError:
        raise InvalidSetting("is not a URL") from None
    if parts.scheme not in ("redis", "rediss", "unix") or not (
        parts.path if parts.scheme == "unix" else parts.hostname
    ):
        raise InvalidSetting("is not a redis, rediss or unix URL with a host or a path")
    # The client ignores a path that is no number and uses the default database.
    database = parts.path.strip("/") if parts.scheme != "unix" else options.get("db", [""])[0]
    if database and not (database.isascii() and database.isdecimal()):
        raise InvalidSetting("names a database that is not a number")
    # Any other option could change the type of the client's answers.
    allowed = {"unix": {"db"}, "rediss": TLS_FILES}.get(parts.scheme, set())
    if not options.keys() <= allowed:
        raise InvalidSetting(f"has options other than {', '.join(sorted(allowed)) or 'none'}")
    return text


@dataclass(frozen=True)
class RedisSettings:
    """The address of Redis and the limits of requests. Its repr shows no secret."""

    url: str = setting("where Redis is, such as redis://cache.example:6379/0", secret=True, read=_url)
    """redis://, rediss:// for TLS, or unix://; may hold a user name and a password."""
    password: str | None = setting("for a URL that has none", default=None, secret=True)
    key_prefix: str = ""
    """Put before every key."""
    connections: int = 4
    """Connections at most, and so pipelines in flight, per function."""
    pipeline_rows: int = 1_000
    """Commands of one pipeline at most."""
    attempt_seconds: float = 5.0
    """Longest wait for a connection, and for an answer."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "RedisSettings":
        """Raises InvalidSetting, naming the variable."""
        return from_environment(cls, "UDF_REDIS_", environment)

    @property
    def address(self) -> str:
        """The address of the server without any secret, for messages."""
        parts = urlsplit(self.url)
        return parts.path if parts.scheme == "unix" else f"{parts.hostname}:{parts.port or 6379}"
