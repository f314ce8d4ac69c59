"""Settings of the plugin, from the server's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from yarl import URL

__all__ = ["HttpSettings", "InvalidSetting"]


class InvalidSetting(ValueError):
    """An environment variable is missing or malformed; the message never shows its value."""


@dataclass(frozen=True)
class HttpSettings:
    """Where the service is and what it may be asked for. Its repr shows no secret."""

    base_url: URL = field(repr=False)
    """Ends with a slash; may hold a user name and a password."""
    token: str | None = field(default=None, repr=False)
    """Goes into the Authorization header as a bearer token (RFC 6750)."""
    connections: int = 1_000
    """Connections at most, per function."""
    attempt_seconds: float = 30.0
    """Longest wait for one answer, the connection included."""
    max_bytes: int = 1 << 20
    """Largest body."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "HttpSettings":
        """Raises InvalidSetting, naming the variable."""
        return cls(
            base_url=_base_url(environment.get("UDF_HTTP_BASE_URL", "")),
            token=_token(environment.get("UDF_HTTP_TOKEN")),
            connections=int(_number(environment, "UDF_HTTP_CONNECTIONS", cls.connections)),
            attempt_seconds=_number(environment, "UDF_HTTP_ATTEMPT_SECONDS", cls.attempt_seconds),
            max_bytes=int(_number(environment, "UDF_HTTP_MAX_BYTES", cls.max_bytes)),
        )


def _base_url(text: str) -> URL:
    name = "UDF_HTTP_BASE_URL"
    if not text:
        raise InvalidSetting(
            f"{name} is not set; it says what paths are relative to, such as https://lookup.example/v1/"
        )
    try:
        url = URL(text)
    except ValueError:
        raise InvalidSetting(f"{name} is not a URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidSetting(f"{name} is not an http or https URL with a host")
    if url.query_string or url.fragment:
        raise InvalidSetting(f"{name} has a query or a fragment, which paths would replace")
    return url if url.path.endswith("/") else url.with_path(url.path + "/")


def _token(text: str | None) -> str | None:
    if text and not (text.isascii() and text.isprintable() and " " not in text):
        raise InvalidSetting("UDF_HTTP_TOKEN is not a bearer token: it has spaces or characters beyond ASCII")
    return text or None


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
