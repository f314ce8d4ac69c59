"""Settings of the plugin, from the server's environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from yarl import URL

from udf_server.settings import InvalidSetting, from_environment, setting

__all__ = ["HttpSettings", "InvalidSetting"]


def _base_url(text: str) -> URL:
    try:
        url = URL(text)
    except ValueError:
        raise InvalidSetting("is not a URL") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise InvalidSetting("is not an http or https URL with a host")
    if url.query_string or url.fragment:
        raise InvalidSetting("has a query or a fragment, which paths would replace")
    return url if url.path.endswith("/") else url.with_path(url.path + "/")


def _token(text: str) -> str:
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise InvalidSetting("is not a bearer token: it has spaces or characters beyond ASCII")
    return text


@dataclass(frozen=True)
class HttpSettings:
    """The address of the service and the limits of requests. Its repr shows no secret."""

    base_url: URL = setting(
        "what paths are relative to, such as https://lookup.example/v1/", secret=True, read=_base_url
    )
    """Ends with a slash; may hold a user name and a password."""
    token: str | None = setting("a bearer token", default=None, secret=True, read=_token)
    """Goes into the Authorization header (RFC 6750)."""
    connections: int = 1_000
    """Connections at most, per function."""
    attempt_seconds: float = 30.0
    """Longest wait for one answer, the connection included."""
    max_bytes: int = 1 << 20
    """Largest body."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> "HttpSettings":
        """Raises InvalidSetting, naming the variable."""
        return from_environment(cls, "UDF_HTTP_", environment)
