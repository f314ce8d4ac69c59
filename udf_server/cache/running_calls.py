"""The calls that run in this process: Flights has their keys, Orphans has those whose stream was lost.

Equal rows wait for a call that runs (single flight). What was paid for is kept although nobody reads it any more.
"""

import asyncio
import collections
import contextlib
import itertools
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from typing import Generic, TypeVar

__all__ = ["MOST_ORPHANS", "Flights", "Orphans"]

MOST_ORPHANS = 10_000
"""Maximum number of rows of a server whose calls run for no stream. The calls of further streams are cancelled."""
SHARE = 2
"""A caller has at most this fraction of what other callers leave, so that there is always room for one more."""

Batch = TypeVar("Batch")


class Flights(Generic[Batch]):
    """The batch that owns each key, and the rows that wait for its outcome. Use it on the server's event loop.

    A row that waits is a pair of its batch and its index there. Methods take many keys at a time, because a call of
    Python per key would take as long as everything else that a cheap row needs.
    """

    def __init__(self) -> None:
        self._owners: dict[bytes, Batch] = {}
        self._waiting: dict[bytes, dict[tuple[Batch, int], None]] = {}

    def __len__(self) -> int:
        """The number of keys that have an owner."""
        return len(self._owners)

    @property
    def waited_for(self) -> bool:
        """Whether rows wait for a key. Safe to call on any thread."""
        return bool(self._waiting)

    def own(self, keys: Sequence[bytes], batch: Batch) -> list[int]:
        """Make the batch the owner of the keys that have none. Returns the positions of those that have one.

        If a key occurs twice, the second position has an owner: the first one.
        """
        owners, mine = self._owners, dict.fromkeys(keys, batch)
        if len(mine) == len(keys) and owners.keys().isdisjoint(mine):
            owners.update(mine)
            return []
        taken = []
        for place, key in enumerate(keys):
            if key in owners:
                taken.append(place)
            else:
                owners[key] = batch
        return taken

    def owner(self, key: bytes) -> Batch | None:
        return self._owners.get(key)

    def wait(self, key: bytes, row: tuple[Batch, int]) -> None:
        """Have a row wait for the owner of a key."""
        self._waiting.setdefault(key, {})[row] = None

    def leave(self, key: bytes, row: tuple[Batch, int]) -> None:
        """End the waiting of a row."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            waiting.pop(row, None)
            if not waiting:
                del self._waiting[key]

    def land(self, keys: Sequence[bytes | None]) -> Iterator[tuple[int, Iterable[tuple[Batch, int]]]]:
        """End the calls of keys, because they have outcomes. A row without a key has None.

        Returns the position of each key for which rows wait, and these rows.
        """
        collections.deque(map(self._owners.pop, keys, itertools.repeat(None)), maxlen=0)  # type: ignore[arg-type]
        if not self._waiting:
            return iter(())
        return self._landed(keys)

    def _landed(self, keys: Sequence[bytes | None]) -> Iterator[tuple[int, Iterable[tuple[Batch, int]]]]:
        for place, key in enumerate(keys):
            if key in self._waiting:
                yield place, self._waiting.pop(key)

    def waiting(self, key: bytes) -> list[tuple[Batch, int]]:
        """The rows that wait for a key, in the order in which they began."""
        return list(self._waiting.get(key, ()))

    def pass_on(self, key: bytes) -> tuple[Batch, int] | None:
        """End the ownership of a key without an outcome.

        Returns the row that has waited longest, whose batch is the owner now; None if none waits.
        """
        waiting = self._waiting.get(key)
        if not waiting:
            self._owners.pop(key, None)
            return None
        heir = next(iter(waiting))
        self.leave(key, heir)
        self._owners[key] = heir[0]
        return heir


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

    def take(self, rows: int, caller: str, calls: Coroutine[None, None, None], held: contextlib.ExitStack) -> None:
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
