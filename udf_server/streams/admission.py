"""Admission: how many streams there may be, and what all of them hold together, in rows and bytes."""

import asyncio
from dataclasses import dataclass

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from udf_server.runners.room import Rooms

__all__ = ["Admission", "AdmissionLimits"]

PATIENCE_SECONDS = 2.0
"""How long a stream without anything in flight may wait for room before it is sent elsewhere."""
RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class AdmissionLimits:
    """Over every stream of the server."""

    function_rows: int = 10_000_000
    """Unanswered rows of one function."""
    server_bytes: int = 2 << 30
    """Unanswered bytes, and results that were not sent."""
    streams: int = 4_000
    streams_per_caller: int = 3_000
    idle_seconds: float = 300.0
    """How long a client may leave a stream open for nothing, or what it was sent unread."""


class Admission:
    """Lives on the server's event loop. A batch that is larger than a limit is let in while nothing else is there."""

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self.limits = limits or AdmissionLimits()
        self.rooms = Rooms(self.limits.server_bytes)
        """What all streams hold."""
        self._rows: dict[str, int] = {}
        self._changed = asyncio.Event()

    @property
    def bytes(self) -> int:
        """Held by all streams."""
        return self.rooms.held

    def rows(self, function: str) -> int:
        """Held by all streams of a function."""
        return self._rows.get(function, 0)

    async def take(self, function: str, rows: int, size: int, *, patient: bool) -> None:
        """Returns once there is room.

        A stream that is not `patient`, because it has nothing in flight and would seem unresponsive to its client, is
        refused after a while: raises StreamError OVERLOADED, which names the limit and says when to come back.
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
        """Rows were answered or dropped, or bytes of results were sent."""
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
