"""Beats tells other servers that this one is alive, so that they wait for what it has claimed."""

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable

from udf_server.cache.store import StoreError

__all__ = ["BEAT_SECONDS", "LEASE_SECONDS", "Beats"]

LEASE_SECONDS = 10.0
"""The claims of a server end this long after its last beat."""
BEAT_SECONDS = 3.0


class Beats:
    """The lease of one server on all that it has claimed. One beat renews it, however many claims there are."""

    def __init__(self, beat: Callable[[str], Awaitable[object]]) -> None:
        """`beat` gets the name of this server, and must make it count as alive for LEASE_SECONDS."""
        self.name = uuid.uuid4().hex
        self._beat = beat
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    def start(self) -> None:
        """Beat from now on. Safe to call twice."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Beat no more. Safe to call twice."""
        task, self._task = self._task, None
        self._stopped = True
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        # A library may raise an error of its own instead of the cancellation, so the task also asks for this.
        while not self._stopped:
            # While the store fails, nothing is claimed either.
            with contextlib.suppress(StoreError, OSError):
                await self._beat(self.name)
            if not self._stopped:
                await asyncio.sleep(BEAT_SECONDS)
