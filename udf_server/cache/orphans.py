"""Orphans are calls that run although their stream was lost, so that what was paid for is kept and not paid again."""

import asyncio
import collections
import contextlib
from collections.abc import Coroutine
from typing import Any

__all__ = ["MOST_ORPHANS", "Orphans"]

MOST_ORPHANS = 10_000
"""Maximum number of rows of a server whose calls run for no stream. The calls of further streams are cancelled."""
SHARE = 2
"""A caller has at most this fraction of what other callers leave, so that there is always room for one more."""


class Orphans:
    """The orphaned calls of a server. It owns their tasks, until `close`. Use it on the server's event loop."""

    def __init__(self, most: int = MOST_ORPHANS) -> None:
        """`most` is the maximum number of rows."""
        self.rows = 0
        """Number of rows whose calls were taken and have not all ended, stream by stream."""
        self._most = most
        self._by_caller: collections.Counter[str] = collections.Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def has_room(self, rows: int, caller: str) -> bool:
        """Whether the calls of this number of rows of a caller may go on without their stream."""
        mine = self._by_caller[caller]
        return not self._closed and (mine + rows) * SHARE <= self._most - (self.rows - mine)

    def take(self, rows: int, caller: str, calls: Coroutine[Any, Any, None], held: contextlib.ExitStack) -> None:
        """Run `calls`, which returns when all of them have ended. Then what they hold is released."""
        self.rows += rows
        self._by_caller[caller] += rows
        task = asyncio.get_running_loop().create_task(calls)
        self._tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            # A task that is cancelled before it begins does not run any of its own code.
            calls.close()
            self.rows -= rows
            self._by_caller[caller] -= rows
            if not self._by_caller[caller]:
                del self._by_caller[caller]
            self._tasks.discard(task)
            held.close()

        task.add_done_callback(done)

    async def wait(self) -> None:
        """Wait until all calls have ended, those that are taken meanwhile included."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Cancel all calls and take no more. Safe to call twice."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            # The callbacks of the tasks run in the next iteration of the loop.
            await asyncio.sleep(0)
