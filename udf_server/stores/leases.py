"""Beats tells other servers that this one is alive, so that they wait for what it has claimed."""

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import Awaitable, Callable

__all__ = ["BEAT_SECONDS", "LEASE_SECONDS", "LONGEST_SECONDS", "Beats"]

LEASE_SECONDS = 10.0
"""The claims of a server end this long after its last beat."""
BEAT_SECONDS = 3.0
LONGEST_SECONDS = LEASE_SECONDS + BEAT_SECONDS
"""A lease with more time left is not believed: the clock was set back, or it is not ours."""


class Beats:
    """The lease of one server on all that it has claimed. One beat renews it, however many claims there are."""

    def __init__(self, beat: Callable[[str], Awaitable[object]], clock: Callable[[], float] = time.monotonic) -> None:
        """`beat` gets the name of this server, and must make it count as alive for LEASE_SECONDS."""
        self._name = uuid.uuid4().hex
        self._beat = beat
        self._clock = clock
        self._until = math.inf
        """When the lease ends, if it is not renewed."""
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def name(self) -> str:
        """The name under which this server claims.

        It is another one once the lease has ended, so that the next beat does not renew what was claimed before: other
        servers may have called that, and a claim whose release was lost would have no end.
        """
        if (now := self._clock()) >= self._until:
            self._name, self._until = uuid.uuid4().hex, now + LEASE_SECONDS
        return self._name

    def start(self) -> None:
        """Beat from now on. Safe to call twice."""
        if self._task is None:
            self._until = min(self._until, self._clock() + LEASE_SECONDS)
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
            # While the store fails, nothing is claimed either. Whatever a library raises, later beats must go on.
            with contextlib.suppress(Exception):
                name, began = self.name, self._clock()
                await self._beat(name)
                if name == self._name:
                    self._until = began + LEASE_SECONDS
            if not self._stopped:
                await asyncio.sleep(BEAT_SECONDS)
