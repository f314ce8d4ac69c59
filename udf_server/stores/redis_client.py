"""Opens the client of a Redis that a setting names, and bounds the answers that it reads.

The library redis-py is needed only by servers that have a Redis. Its parser makes a list as soon as its length is
announced, and keeps what arrives until an answer is complete. A length of two thousand million would hold up the
event loop for seconds.
"""

import asyncio
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from udf_server.base.errors import InvalidConfig

__all__ = [
    "CONNECTIONS",
    "CONNECT_SECONDS",
    "MOST_ELEMENTS",
    "AnswerSizes",
    "TooLarge",
    "bounded_parser",
    "redis_client",
]

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


MOST_ELEMENTS = 100_000
"""Maximum number of elements of one answer, those of inner lists included."""
LINE_BYTES = 1 << 16
"""Longest line: a number, an error, or a simple text. Other texts have their length before them."""
_TEXTS, _LISTS, _PAIRS = b"$!=", b"*~>", b"%|"
_SCALARS = b"+-:_,#("
_KINDS = _TEXTS + _LISTS + _PAIRS + _SCALARS


class TooLarge(Exception):
    """An answer is larger than any that was asked for, or is none."""


class AnswerSizes:
    """The sizes of the answers of one connection, in the protocol RESP (2 or 3)."""

    def __init__(self, most_bytes: int, most_elements: int = MOST_ELEMENTS) -> None:
        self._most_bytes, self._most_elements = most_bytes, most_elements
        self._line = b""
        """The beginning of a line whose end has not arrived."""
        self._skipped = 0
        """Bytes of a text that have not arrived."""
        self._expected = 1
        """Elements of the answer that have not begun."""
        self._bytes = self._elements = 0
        """Of the answer, so far and announced."""

    def check(self, data: bytes) -> None:
        """Check what has arrived next. Raises TooLarge."""
        place, length = self._skipped, len(data)
        while place < length:
            end = data.find(b"\n", place)
            if end < 0 or end - place > LINE_BYTES or self._line:
                end = self._rest_of_line(data, place, end)
                if end < 0:
                    return
                line, self._line = self._line, b""
            else:
                line = data[place:end]
            place = end + 1 + self._element(line)
        self._skipped = place - length

    def _rest_of_line(self, data: bytes, place: int, end: int) -> int:
        """Add to the line whose end has not arrived. Returns its end; -1 if that has not arrived either."""
        self._line += data[place : end if end >= 0 else len(data)]
        if len(self._line) > LINE_BYTES:
            raise TooLarge(f"a line has more than {LINE_BYTES} bytes")
        if end < 0:
            self._skipped = 0
        return end

    def _element(self, line: bytes) -> int:
        """Count the element that begins with a line. Returns the number of bytes that follow it."""
        if not self._expected:
            self._expected, self._bytes, self._elements = 1, 0, 0
        kind = line[:1]
        if not kind or kind not in _KINDS:
            raise TooLarge("the answer is not one of a Redis")
        size = announced = 0
        if kind not in _SCALARS:
            try:
                number = int(line[1:])
            except ValueError:
                raise TooLarge("the answer is not one of a Redis") from None
            if kind in _TEXTS:
                size = number + 2 if number >= 0 else 0  # the end of its line, too
            elif number > 0:
                announced = number if kind in _LISTS else 2 * number
        self._bytes += size + len(line)
        self._elements += announced
        if self._bytes > self._most_bytes or self._elements > self._most_elements:
            raise TooLarge(
                f"an answer has more than {self._most_bytes} bytes, or more than {self._most_elements} elements"
            )
        # What has attributes follows them.
        self._expected += announced - (kind != b"|")
        return size


def bounded_parser(parser: Any, failed: type[Exception], most_bytes: int) -> Any:
    """A class of parsers of redis-py, based on one of its own, that accepts answers up to a size.

    `failed` is the error of the library for a larger one, after which it closes the connection.
    """

    class Checked:
        """A StreamReader whose data is checked as it is read."""

        def __init__(self, stream: asyncio.StreamReader) -> None:
            self._stream, self._sizes = stream, AnswerSizes(most_bytes)

        async def read(self, size: int) -> bytes:
            return self._checked(await self._stream.read(size))

        async def readline(self) -> bytes:
            return self._checked(await self._stream.readline())

        async def readexactly(self, size: int) -> bytes:
            return self._checked(await self._stream.readexactly(size))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def _checked(self, data: bytes) -> bytes:
            try:
                self._sizes.check(data)
            except TooLarge as error:
                raise failed(str(error)) from None
            return data

    class Bounded(parser):  # type: ignore[misc]
        def on_connect(self, connection: Any) -> None:
            super().on_connect(connection)
            self._stream: Any = Checked(self._stream)

    return Bounded
