"""Admission limits the number of streams, and the rows and bytes that all of them hold together."""

import asyncio
from dataclasses import dataclass

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from udf_server.runners.room import Rooms

__all__ = ["Admission", "AdmissionLimits"]

PATIENCE_SECONDS = 2.0
"""How long a stream without rows in flight may wait for room before it is refused."""
RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class AdmissionLimits:
    """Limits that apply to all streams of the server together."""

    function_rows: int = 10_000_000
    """Unanswered rows of one function."""
    server_bytes: int = 2 << 30
    """Bytes of unanswered messages and of unsent results."""
    streams: int = 4_000
    streams_per_caller: int = 3_000
    idle_seconds: float = 300.0
    """How long a client may keep a stream open without sending rows, or leave a message unread."""


class Admission:
    """Counts what all streams hold. Use it on the server's event loop only.

    A batch larger than a limit is admitted if nothing else is held.
    """

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self.limits = limits or AdmissionLimits()
        self.rooms = Rooms(self.limits.server_bytes)
        """The bytes that all streams hold."""
        self._rows: dict[str, int] = {}
        self._changed = asyncio.Event()

    @property
    def bytes(self) -> int:
        """Bytes that all streams hold."""
        return self.rooms.held

    def rows(self, function: str) -> int:
        """Rows that all streams of a function hold."""
        return self._rows.get(function, 0)

    async def take(self, function: str, rows: int, size: int, *, patient: bool) -> None:
        """Wait until there is room, then take it.

        Pass `patient=False` for a stream without rows in flight, because its client would take it for unresponsive.
        Such a stream is refused after PATIENCE_SECONDS: StreamError OVERLOADED names the limit and when to retry.
        """
        try:
            async with asyncio.timeout(None if patient else PATIENCE_SECONDS):
                while (full := self._full(function, rows, size)) is not None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise StreamError(
                ErrorKind.WORKER, ErrorCode.OVERLOADED, full or "the server is full", retryable=True,
                retry_after=RETRY_SECONDS,
            ) from None  # fmt: skip
        self._rows[function] = self.rows(function) + rows
        self.rooms.add(size)

    def give_back(self, function: str, rows: int, size: int) -> None:
        """Return room. Call when rows were answered or dropped, or when bytes of results were sent."""
        self._rows[function] = self.rows(function) - rows
        self.rooms.add(-size)
        self._changed.set()

    def _full(self, function: str, rows: int, size: int) -> str | None:
        held, limits = self.rows(function), self.limits
        if held and held + rows > limits.function_rows:
            return f"function {function} has {held} rows in flight; max_function_rows is {limits.function_rows}"
        if self.bytes and self.bytes + size > limits.server_bytes:
            return f"the server holds {self.bytes} bytes in flight; max_server_bytes is {limits.server_bytes}"
        return None
