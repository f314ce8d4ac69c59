"""OpenStreams counts the open streams of a server, and of each caller, over all processes of the server."""

import asyncio
import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterable

from udf_server.limits.sharing.account import Account
from udf_server.limits.sharing.claims import Grant, LimitClaim
from udf_server.limits.sharing.coordinator import Coordinator
from udf_server.limits.sharing.ledger import LEASE_SECONDS

__all__ = ["OpenStreams", "StreamPlaces"]

PATIENCE_SECONDS = 0.2
"""How long a stream waits for a place, which another process may just return."""
IDLE_SECONDS = 60.0
"""The account of a caller is kept for this time after its last stream, which may be followed by another stage."""
_NAME = "streams"


class StreamPlaces(Account):
    """The places of the streams of one limit that are open in this process. Use it on the server's event loop.

    If processes share the limit, this one leases as many places as it has streams, so that no process lacks what
    another one does not use. Places of streams that have ended stay for the next claim, in case others follow at once.
    """

    kind = "streams"

    def __init__(self, name: str, whose: str, most: int, clock: Callable[[], float], *, shared: bool) -> None:
        # Processes may have read `most` at different times, so it does not belong to what they must have in common.
        super().__init__(name, whose, _NAME, threading.Lock(), clock, limit=whose, fail_open=True, opening="")
        self.most, self.open, self.idle_since = most, 0, clock()
        self._shared, self._member = shared, uuid.uuid4().hex
        """A ledger must not take it for an earlier account of the same name, which has left."""
        self._places = self._spare = self._peak = self._waiting = 0
        self._until = 0.0
        """When the lease of the places ends."""
        self._changed = asyncio.Event()

    @property
    def is_idle(self) -> bool:
        """Whether no stream has a place or waits for one."""
        return not self.open and not self._waiting

    @property
    def _has_place(self) -> bool:
        if not self._shared or self.is_alone:
            return self.open < self.most
        return self.open < self._places and self._clock() < self._until

    async def take(self) -> bool:
        """Take a place for a stream. Returns False if all processes have none left. Call `give_back` at its end."""
        if not self._has_place:
            if not self._shared:
                return False
            await self._wait()
            if not self._has_place:
                return False
        self.open += 1
        self._peak = max(self._peak, self.open)
        return True

    async def _wait(self) -> None:
        self._waiting += 1
        self.call_back()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while not self._has_place:
                        self._changed.clear()
                        await self._changed.wait()
        finally:
            self._waiting -= 1

    def give_back(self) -> None:
        """Note that a stream has ended."""
        self.open -= 1
        self.idle_since = self._clock()
        self.changed()
        if not self._spare:  # otherwise a claim is due soon
            self.call_back()

    def changed(self) -> None:
        self._changed.set()

    def _needs(self) -> tuple[bool, bool]:
        return self._waiting > 0, self._spare > 0 or self._peak > self.open

    def _claim(self, leave: bool, now: float) -> LimitClaim:
        wanted = 0 if leave else self.open + self._waiting
        self._spare = 0 if leave else max(self._peak - wanted, 0)
        self._peak = self.open
        # What is not claimed is given up at once: the ledger has to know what this process may use.
        self._places = min(self._places, self.open + self._spare)
        ceiling = 0 if leave else max(self._places, self.open)
        return {
            "member": self._member, "most": self.most, "wanted": wanted, "spare": self._spare, "ceiling": ceiling
        }  # fmt: skip

    def _expected(self) -> tuple[int, Iterable[float], Iterable[str]]:
        return self.most, (), ()

    def _take_grant(self, grant: Grant, now: float, *, lost: bool) -> bool:
        more = grant.places > self._places
        self._places, self._until = grant.places, self._answered + LEASE_SECONDS
        return more


class OpenStreams:
    """The open streams. Use it on the server's event loop."""

    def __init__(
        self, most: int, coordinator: Coordinator | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """At most `most` streams are open at a time. A coordinator counts those of other processes too."""
        self._coordinator, self._clock = coordinator, clock
        self._all = StreamPlaces(_NAME, "the server", most, clock, shared=coordinator is not None)
        self._by_caller: dict[str, StreamPlaces] = {}
        self._joined = False

    def __len__(self) -> int:
        """Number of open streams in this process."""
        return self._all.open

    def of(self, caller: str) -> int:
        """Number of open streams of a caller in this process."""
        return self._by_caller[caller].open if caller in self._by_caller else 0

    async def enter(self, caller: str, most: int) -> str:
        """Count a stream of a caller who may have `most` of them. Returns why it cannot be opened, or an empty text.

        Call `leave` when it has ended.
        """
        if not self._joined and self._coordinator is not None:
            self._joined = True
            self._coordinator.add(self._all)
        if not await self._all.take():
            return f"the server has {self._all.most} streams open and takes no more"
        entered = False
        try:
            entered = await self._of(caller, most).take()
        finally:
            if not entered:
                self._all.give_back()
        return "" if entered else f"{caller or 'the caller'} has {most} streams open and gets no more"

    def leave(self, caller: str) -> None:
        """Note that a stream of the caller has ended."""
        self._by_caller[caller].give_back()
        self._all.give_back()

    def sweep(self) -> None:
        """Forget callers who have had no stream for some time. Call about once a second."""
        now = self._clock()
        for caller, places in list(self._by_caller.items()):
            if not places.is_idle or now - places.idle_since < IDLE_SECONDS:
                continue
            del self._by_caller[caller]
            if self._coordinator is not None:
                self._coordinator.remove(places)

    async def close(self) -> None:
        """Return all places."""
        if self._coordinator is not None:
            await self._coordinator.close()

    def _of(self, caller: str, most: int) -> StreamPlaces:
        places = self._by_caller.get(caller)
        if places is None:
            name, shared = f"{_NAME}:{caller}", self._coordinator is not None
            places = self._by_caller[caller] = StreamPlaces(name, caller, most, self._clock, shared=shared)
            if self._coordinator is not None:
                self._coordinator.add(places)
        return places
