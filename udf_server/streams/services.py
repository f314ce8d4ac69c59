"""What the streams of one server share: their limits, what they hold together, and the parts that serve them."""

import asyncio
import collections
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from remote_udf.errors import ErrorCode, ErrorKind, StreamError
from udf_server.base.metrics import ServerMetrics
from udf_server.cache.outcome_cache import OutcomeCache
from udf_server.hosting.registry import FunctionHost
from udf_server.limits.budgets import Budgets
from udf_server.limits.limiter import Limiter
from udf_server.runners.room import RESULT_BYTES, Rooms
from udf_server.security.access import ANYBODY, Caller
from udf_server.streams.entrance import Edits

__all__ = ["Admission", "AdmissionLimits", "StreamLimits", "StreamServices"]

PATIENCE_SECONDS = 2.0
"""How long a stream without rows in flight may wait for room before it is refused."""
RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class StreamLimits:
    """What one stream may hold on the server. If a limit is reached, the stream is not read until results are sent."""

    message_bytes: int = 64 << 20
    unanswered_rows: int = 1_000_000
    unanswered_bytes: int = 128 << 20
    result_bytes: int = RESULT_BYTES
    """Bytes of unsent results. If the limit is reached, the function is not called until some results are sent."""
    shared_memory: bool = True
    """Whether callers on this host may pass rows in memory shared with the server."""


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

    A batch larger than a limit is admitted if nothing else is held. A caller that holds little is admitted although
    others fill the server: see `Rooms`.
    """

    def __init__(self, limits: AdmissionLimits | None = None) -> None:
        self.limits = limits or AdmissionLimits()
        self.rooms = Rooms(self.limits.server_bytes)
        """The bytes that all streams hold."""
        self._rows: dict[str, int] = {}
        self._rows_of: collections.Counter[str] = collections.Counter()
        """By caller, without those that hold none."""
        self._changed = asyncio.Event()

    @property
    def bytes(self) -> int:
        """Bytes that all streams hold."""
        return self.rooms.held

    def rows(self, function: str) -> int:
        """Rows that all streams of a function hold."""
        return self._rows.get(function, 0)

    def rows_of(self, caller: str) -> int:
        """Rows that all streams of a caller hold."""
        return self._rows_of[caller]

    async def take(
        self, function: str, rows: int, size: int, *, patient: Callable[[], bool], caller: Caller = ANYBODY
    ) -> None:
        """Wait until there is room, then take it.

        `patient` tells whether the stream has rows in flight. If it has none, or none any more, its client would take
        it for unresponsive, so it is refused after PATIENCE_SECONDS: StreamError OVERLOADED names the limit and when
        to retry.
        """
        try:
            async with asyncio.timeout(None) as limit:
                while (full := self._full(function, rows, size, caller)) is not None:
                    if limit.when() is None and not patient():
                        limit.reschedule(asyncio.get_running_loop().time() + PATIENCE_SECONDS)
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise StreamError(
                ErrorKind.WORKER, ErrorCode.OVERLOADED, full or "the server is full", retryable=True,
                retry_after=RETRY_SECONDS,
            ) from None  # fmt: skip
        self._rows[function] = self.rows(function) + rows
        self._rows_of[caller.identity] += rows
        self.rooms.add(size, caller.identity)

    def give_back(self, function: str, rows: int, size: int, caller: Caller = ANYBODY) -> None:
        """Return room. Call when rows were answered or dropped, or when bytes of results were sent."""
        self._rows[function] = self.rows(function) - rows
        who = caller.identity
        self._rows_of[who] -= rows
        if not self._rows_of[who]:
            del self._rows_of[who]
        self.rooms.add(-size, who)
        self._changed.set()

    def _full(self, function: str, rows: int, size: int, caller: Caller) -> str | None:
        held, limits = self.rows(function), self.limits
        if held and held + rows > limits.function_rows:
            return f"function {function} has {held} rows in flight; max_function_rows is {limits.function_rows}"
        mine, most = self.rows_of(caller.identity), caller.settings.max_rows_in_flight
        if most is not None and mine and mine + rows > most:
            return f"{caller.identity or 'the caller'} has {mine} rows in flight; its max-rows-in-flight is {most}"
        if self.bytes and self.bytes + size > limits.server_bytes and self.rooms.has_part(caller.identity, size):
            return f"the server holds {self.bytes} bytes in flight; max_server_bytes is {limits.server_bytes}"
        return None


@dataclass(frozen=True)
class StreamServices:
    """What serves streams: each part is there once per server, or not at all."""

    host: FunctionHost
    metrics: ServerMetrics
    limits: StreamLimits = field(default_factory=StreamLimits)
    admission: Admission = field(default_factory=Admission)
    guards: Mapping[str, Limiter] = field(default_factory=lambda: MappingProxyType({}))
    """By function and version."""
    budgets: Budgets | None = None
    cache: OutcomeCache | None = None
    edits: Edits | None = None
    """Whether the plugins were edited, if the server serves them while they are."""
    clock: Callable[[], float] = time.monotonic
    new_random: Callable[[], Random] = Random
    """Makes what draws the jitter of a stream's retries."""
