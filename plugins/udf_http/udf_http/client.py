"""HttpClient: GET requests below one base URL; returns the body or null, or raises an error of the right kind."""

import asyncio
import re
import time
from collections.abc import Callable
from urllib.parse import unquote

import aiohttp
from yarl import URL

from udf_http.settings import HttpSettings
from udf_server import RetryableError
from udf_server.retry_after import retry_after_seconds

__all__ = ["HttpClient", "HttpError", "url_below"]

NOTHING_THERE = (404, 410)
TRY_AGAIN = (408, 425, 429)
"""RFC 9110 sections 15.5.9 and 15.6, RFC 8470, RFC 6585; 5xx besides."""
SHOWN = 200
"""Characters of an answer that an error shows."""
_IGNORED = str.maketrans("", "", "\t\n\r")
"""What parsers of URLs remove."""


class HttpError(Exception):
    """The service refused a request, or its answer is unusable; another attempt would not help."""


class HttpClient:
    """One pool of connections, for the event loop on which it was created."""

    def __init__(self, settings: HttpSettings, *, clock: Callable[[], float] = time.time) -> None:
        """`clock` returns the time of day, which dates in Retry-After are compared with."""
        self._base = settings.base_url
        self._host = settings.base_url.host
        self._max_bytes = settings.max_bytes
        self._clock = clock
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=settings.connections),
            # Waiting for a connection has no timeout of its own: the server enforces the row's deadline.
            timeout=aiohttp.ClientTimeout(sock_connect=settings.attempt_seconds, sock_read=settings.attempt_seconds),
            headers={"Authorization": f"Bearer {settings.token}"} if settings.token else None,
            # Cookies would let the answer of one row change the request of another.
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def get(self, path: str) -> str | None:
        """Returns the body as text, or None if the resource does not exist (404, 410).

        Raises RetryableError for what may succeed later, HttpError for an unusable answer, and
        ValueError for a path that leaves the base URL.
        """
        url = url_below(self._base, path)
        try:
            # A redirect could send the token to another host.
            async with self._session.get(url, allow_redirects=False) as response:
                if response.status in NOTHING_THERE:
                    return None
                body = await self._body(response, path)
                if 200 <= response.status < 300:
                    return _text(response, body, path)
                raise self._refusal(response, body, path)
        except TimeoutError:
            raise RetryableError(f"GET {path}: no answer in time") from None
        except aiohttp.ClientSSLError as error:
            raise HttpError(f"GET {path}: {type(error).__name__}: {error}") from None
        except aiohttp.ClientError as error:
            # The error is not chained: its repr contains the headers, and so the token.
            raise RetryableError(f"GET {path}: {type(error).__name__}: {error}") from None

    async def close(self) -> None:
        """Closes every connection. May be called twice."""
        await self._session.close()
        # Transports close in the next iteration of the event loop.
        await asyncio.sleep(0)

    def __repr__(self) -> str:
        return f"<HTTP client of {self._host}>"

    async def _body(self, response: aiohttp.ClientResponse, path: str) -> bytes:
        # The body is read in chunks, so that an answer that is too large is never held in memory.
        chunks, size = [], 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self._max_bytes:
                raise HttpError(f"GET {path}: the answer is larger than {self._max_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)

    def _refusal(self, response: aiohttp.ClientResponse, body: bytes, path: str) -> Exception:
        shown = body[: 4 * SHOWN].decode(errors="replace")[:SHOWN].strip()
        message = f"GET {path}: {response.status} {response.reason}" + (f": {shown}" if shown else "")
        if response.status in TRY_AGAIN or response.status >= 500:
            wait = retry_after_seconds(response.headers.get("Retry-After"), self._clock())
            return RetryableError(message, retry_after=wait)
        return HttpError(message)


def url_below(base: URL, path: str) -> URL:
    """The URL of a path below `base`. Raises ValueError for a path that leaves it, or that names another resource."""
    if (dots := _dot_segment(path)) is not None:
        raise ValueError(f"path {path!r} has the segment {dots!r}, so it would address another resource")
    # The URL is joined as text, so that nothing in a path can change the host or the scheme.
    try:
        url = URL(str(base) + path.lstrip("/"))
    except ValueError:
        raise ValueError(f"path {path!r} makes no URL") from None
    if not url.raw_path.startswith(base.raw_path):
        raise ValueError(f"path {path!r} leaves the base URL")
    if "#" in path:
        raise ValueError(f"path {path!r} has a fragment, which is never sent; write %23 for the character")
    return url


def _dot_segment(path: str) -> str | None:
    """The first segment of a path that servers or parsers of URLs may take for . or .., before any of them does."""
    plain = unquote(re.split("[?#]", path, maxsplit=1)[0].translate(_IGNORED)).translate(_IGNORED)
    # Some servers take a backslash for a slash, and ignore what is behind a semicolon.
    return next((each for each in re.split(r"[/\\]", plain) if each.partition(";")[0].strip() in (".", "..")), None)


def _text(response: aiohttp.ClientResponse, body: bytes, path: str) -> str:
    try:
        return body.decode(response.charset or "utf-8")
    except (LookupError, UnicodeDecodeError):
        raise HttpError(f"GET {path}: the answer is not text in {response.charset or 'utf-8'}") from None
