"""Coordinator sends the claims of this process's shared limits, and gives them their grants."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from udf_server.base.errors import InvalidConfig
from udf_server.coordination.ledger import LEASE_SECONDS
from udf_server.coordination.ledgers import CoordinationFailed, Ledgers

__all__ = ["Coordinator", "Sharing"]

log = logging.getLogger(__name__)

SHORTEST_SECONDS = 0.005
"""Shortest time between two claims of one limit."""
CONFLICT_SECONDS = LEASE_SECONDS + 1.0
"""How long a start waits for servers with other settings to leave: one that crashed leaves when its lease ends."""


class Sharing(Protocol):
    """One limit that is shared. The coordinator calls it on the server's event loop."""

    name: str
    settings: str
    call_back: Callable[[], None]
    """Set by the coordinator. Call it, from any thread, if a claim is due at once."""

    def due(self) -> float:
        """Seconds until the next claim."""

    def claim(self) -> dict[str, Any]: ...

    def granted(self, grant: dict[str, Any]) -> None:
        """Take the grant for the last claim."""

    def failed(self, why: str) -> None:
        """The last claim was not answered, or was refused."""


class Coordinator:
    """Keeps one task per shared limit between `open` and `close`."""

    def __init__(
        self,
        ledgers: Ledgers,
        sharing: Sequence[Sharing],
        *,
        observe: Callable[[float, bool], None] = lambda seconds, good: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`observe` is called after each claim, with its seconds and whether it was answered."""
        self._ledgers, self._sharing = ledgers, sharing
        self._observe, self._clock = observe, clock
        self._member = uuid.uuid4().hex
        self._tasks: list[asyncio.Task[None]] = []
        self._away: set[str] = set()
        self._closed = False

    async def open(self) -> None:
        """Join the ledgers. Raises InvalidConfig if other servers have other settings for a limit.

        If they do not answer, the limits are told, and asked again at intervals.
        """
        began = self._clock()
        for each in self._sharing:
            while (conflict := await self._exchange(each)) is not None:
                if self._clock() - began > CONFLICT_SECONDS:
                    await self.close()
                    raise InvalidConfig(
                        f"setting guards, {each.name}: this server has {each.settings}; other servers that run have "
                        f"{conflict}. Stop them first, or give this server another coordination_namespace"
                    )
                await asyncio.sleep(0.5)
        self._tasks = [asyncio.create_task(self._run(each)) for each in self._sharing]

    async def close(self) -> None:
        """Return what was leased, and close the connections."""
        tasks, self._tasks, self._closed = self._tasks, [], True
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
            await asyncio.gather(*(self._exchange(each, leave=True) for each in self._sharing))
        await self._ledgers.close()

    async def _run(self, sharing: Sharing) -> None:
        loop, wake, asked = asyncio.get_running_loop(), asyncio.Event(), False

        def woken() -> None:
            nonlocal asked
            asked = False
            wake.set()

        def call_back() -> None:
            nonlocal asked
            if not asked:
                asked = True
                loop.call_soon_threadsafe(woken)

        sharing.call_back = call_back
        # A library may raise an error of its own instead of the cancellation, so the task also asks for this.
        while not self._closed:
            sent = self._clock()
            await self._exchange(sharing)
            if self._closed:
                return
            wake.clear()
            try:
                async with asyncio.timeout(max(sharing.due(), 0.0)):
                    await wake.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(max(sent + SHORTEST_SECONDS - self._clock(), 0.0))

    async def _exchange(self, sharing: Sharing, *, leave: bool = False) -> str | None:
        """Send one claim. Returns the settings of other servers if they differ."""
        began = self._clock()
        claim = {**sharing.claim(), "member": self._member, "fresh": uuid.uuid4().hex, "leave": leave}
        try:
            grant = await self._ledgers.exchange(sharing.name, claim)
        except CoordinationFailed as error:
            self._observe(self._clock() - began, False)
            self._report(sharing, str(error))
            return None
        self._observe(self._clock() - began, True)
        if "conflict" in grant:
            conflict: str = grant["conflict"]
            self._report(sharing, f"this server has {sharing.settings}; other servers have {conflict}")
            return conflict
        if sharing.name in self._away:
            self._away.discard(sharing.name)
            log.info("guard is coordinated again", extra={"guard": sharing.name})
        sharing.granted(grant)
        return None

    def _report(self, sharing: Sharing, why: str) -> None:
        if sharing.name not in self._away:
            self._away.add(sharing.name)
            log.warning("guard is not coordinated", extra={"guard": sharing.name, "why": why})
        sharing.failed(why)
